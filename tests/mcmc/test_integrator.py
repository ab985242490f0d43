"""Trajectories that solve a Gaussian exactly: reversible, of unit volume, exact where the target is that Gaussian."""

import math
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.integrators import IntegratorState, new_integrator_state
from runs import chain
from scipy.linalg import expm
from targets import skewed_logdensity

import householder_mcmc as hm
from householder_mcmc.mcmc.chains import run_chains
from householder_mcmc.mcmc.integrator import rotate

DIM = 5


def a_map(dtype=None):
    rows = np.linalg.qr(np.random.default_rng(4).normal(size=(DIM, 2)))[0].T
    return hm.LowRank(jnp.linspace(0.4, 1.3, DIM, dtype=dtype), jnp.asarray(rows, dtype), jnp.array([3.0, 0.2], dtype))


MAPS = {
    "low rank": a_map,
    "diagonal": lambda: hm.Diagonal(jnp.linspace(0.4, 1.3, DIM)),
    "dense": lambda: hm.Dense(jnp.linalg.cholesky(a_map().to_dense() @ a_map().to_dense().T)),
    "householder": lambda: hm.Householder(
        hm.reflections.compact(a_map().eigenvectors), jnp.linspace(0.4, 1.3, DIM, dtype=a_map().scales.dtype)
    ),
}


@pytest.mark.parametrize("angle", [1e-3, 0.7, 2.0, -1.0])
def test_rotation_is_the_flow_of_a_standard_gaussian(angle, x64):
    """By the exponential of its generator."""
    (z, v), move = np.random.default_rng(0).normal(size=(2, DIM)), np.linspace(-1, 1, DIM)
    expected = expm(angle * np.array([[0.0, 1.0], [-1.0, 0.0]])) @ np.stack([z + move, v])
    new_move, momentum = rotate(jnp.asarray(z), jnp.asarray(move), jnp.asarray(v), angle)
    np.testing.assert_allclose(np.stack([z + new_move, momentum]), expected, rtol=1e-12, atol=1e-12)


def test_a_start_far_out_does_not_round_a_short_move_away():
    """At |z| = 1e6 a float32 is known to 0.06; the move of a step of 1e-3 to one part in a million."""
    start, momentum = np.full(3, 1e6), np.array([1.0, -2.0, 3.0])
    move, _ = rotate(jnp.asarray(start, jnp.float32), jnp.zeros(3), jnp.asarray(momentum, jnp.float32), 1e-3)
    np.testing.assert_allclose(move, start * (math.cos(1e-3) - 1) + momentum * math.sin(1e-3), rtol=1e-6)


@pytest.mark.parametrize("make", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("step_size", [0.3, 1.7])
def test_a_step_can_be_undone_and_keeps_the_volume(make, step_size, x64):
    """On a skewed target, with map and center of another: by the reversed momentum; the Jacobian has determinant 1."""
    preconditioner, center = make(), jnp.linspace(2, -1, DIM)
    step = hm.to_integrator(preconditioner, center)(skewed_logdensity)

    def flow(phase):
        end = step(new_integrator_state(skewed_logdensity, *jnp.split(phase, 2)), step_size)
        return jnp.concatenate([end.position, end.momentum])

    start = jnp.asarray(np.random.default_rng(1).normal(size=2 * DIM))
    end = flow(start)
    assert jnp.abs(end - start).max() > 0.1
    back = flow(end * jnp.repeat(jnp.array([1.0, -1.0]), DIM))
    np.testing.assert_allclose(back * jnp.repeat(jnp.array([1.0, -1.0]), DIM), start, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(jnp.linalg.det(jax.jacobian(flow)(start)), 1, rtol=1e-9)


def test_short_steps_are_those_of_leapfrog(x64):
    """To third order in the step size."""
    preconditioner = a_map()
    integrator = hm.to_integrator(preconditioner, jnp.linspace(2, -1, DIM))(skewed_logdensity)
    leapfrog = blackjax.mcmc.integrators.velocity_verlet(skewed_logdensity, hm.to_metric(preconditioner).kinetic_energy)
    start = new_integrator_state(skewed_logdensity, jnp.linspace(-1, 1, DIM), jnp.linspace(1, -2, DIM))
    errors = [
        jnp.abs(integrator(start, step_size).position - leapfrog(start, step_size).position).max()
        for step_size in (1e-2, 1e-3)
    ]
    assert 500 < errors[0] / errors[1] < 20000 and errors[0] < 1e-4


@pytest.mark.parametrize("step_size", [0.3, 1.5, 3.0])
@pytest.mark.parametrize("make", MAPS.values(), ids=MAPS)
def test_is_blackjaxs_hmc_with_our_integrator_and_metric(make, step_size, x64):
    """The same keys, numbers of steps and their lengths give the same path."""
    preconditioner, center = make(), jnp.linspace(0.5, -0.5, DIM)
    start = jnp.linspace(-1, 1, DIM)
    xs, info = chain(hm.hmc(skewed_logdensity, step_size, preconditioner, center, may_retry=False), start)
    theirs = blackjax.hmc.build_kernel(integrator=hm.to_integrator(preconditioner, center))
    metric = hm.to_metric(preconditioner)

    def one_step(state, args):
        key, num_steps = args
        key_time, key = jax.random.split(key)
        time = jax.random.uniform(key_time, (), float, 0.75 * math.pi / 2, 1.25 * math.pi / 2)
        state, info = theirs(key, state, skewed_logdensity, time / num_steps, metric, num_steps)
        return state, (state.position, info.is_accepted, time / num_steps)

    keys = jax.random.split(jax.random.key(1), 200)
    state = blackjax.hmc.init(start, skewed_logdensity)
    _, (ys, is_accepted, sizes) = jax.lax.scan(one_step, state, (keys, info.num_integration_steps))
    assert 0 < info.is_accepted.mean() < 1
    assert sizes.max() <= step_size and (info.num_integration_steps.max() == 1) == (step_size > 2)
    np.testing.assert_array_equal(info.is_accepted, is_accepted)
    np.testing.assert_allclose(xs, ys, rtol=1e-5, atol=1e-5)  # rounding, carried along 200 transitions


@pytest.mark.parametrize("step_size, num_steps", [(0.5, 3.2), (2.0, 1.0), (100.0, 1.0)])
def test_its_own_gaussian_is_sampled_in_one_gradient_whatever_d(step_size, num_steps):
    """d = 100,000 in float32: acceptance 1 but for rounding, and draws a quarter period apart."""
    dim = 100_000
    scales, center = jnp.logspace(-2, 2, dim), jnp.linspace(-1, 1, dim)
    rows = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (dim, 3)))[0].T
    preconditioner = hm.LowRank(scales, rows, jnp.array([50.0, 4.0, 0.02]))

    def logdensity(x):
        return -jnp.sum(preconditioner.solve(x - center) ** 2) / 2

    kernel = hm.hmc(logdensity, step_size, preconditioner, center)
    start = center + preconditioner.apply(jax.random.normal(jax.random.key(1), (dim,)))
    positions, info = chain(kernel, start, num_steps=20)
    assert info.acceptance_rate.min() > 0.8  # the log-density, 5e4, is known to 0.004, its differences to about 0.05
    assert abs(info.num_integration_steps.mean() - num_steps) < 0.5
    z = jax.vmap(preconditioner.solve)(positions - center)
    correlation = jnp.mean(z[1:] * z[:-1], axis=1)  # cosines of the angles: of mean 0, at most 0.38
    assert jnp.abs(correlation).max() < 0.4 and abs(correlation.mean()) < 0.2
    np.testing.assert_allclose(jnp.mean(z**2, axis=1), 1, atol=0.03)


def test_the_time_stays_random_where_one_step_is_enough():
    """Angles of a quarter period, 3/4 to 5/4 of it; of 400 the extremes are within 0.02 of the ends but for 1e-5."""
    kernel = hm.hmc(lambda x: -jnp.sum(x**2) / 2, 5.0, jnp.ones(20_000), jnp.zeros(20_000))
    z = jax.random.normal(jax.random.key(0), (20_000,))
    keys, state = jax.random.split(jax.random.key(1), 400), kernel.init(z)
    cosines = jax.jit(lambda keys: jax.lax.map(lambda key: jnp.mean(kernel.step(key, state)[0].position * z), keys))
    angles = jnp.arccos(cosines(keys) / jnp.mean(z**2))
    assert abs(angles.min() - 0.75 * math.pi / 2) < 0.04 and abs(angles.max() - 1.25 * math.pi / 2) < 0.04
    assert abs(angles.std() - 0.5 * math.pi / 2 / math.sqrt(12)) < 0.02


def test_capped_trajectories_keep_their_step_size():
    kernel = hm.hmc.build_kernel()
    target, center = (lambda x: -jnp.sum(x**2) / 2), jnp.zeros(20_000)
    state = hm.hmc.init(jnp.ones(20_000), target)
    new, info = kernel(jax.random.key(0), state, target, 0.1, jnp.ones(20_000), center, max_integration_steps=3)
    assert info.num_integration_steps == 3
    np.testing.assert_allclose(jnp.mean(new.position), math.cos(0.3), atol=0.02)


@pytest.mark.parametrize("distance", [1e3, 1e6])
def test_a_start_far_out_comes_in(distance):
    """In float32, with a center that is off by as much again."""
    kernel = hm.hmc(lambda x: -jnp.sum(x**2) / 2, 0.5, jnp.ones(3), jnp.full(3, distance / 3))
    positions, _ = chain(kernel, jnp.full(3, distance), num_steps=300)
    assert jnp.abs(positions[-1]).max() < distance / 2 and jnp.all(jnp.isfinite(positions))


def test_nuts_with_it_takes_fewer_gradients():
    """BlackJAX's NUTS on a Gaussian whose map is known: as exact, at step sizes that leapfrog has not."""
    scales = jnp.logspace(-1, 1, 50)

    def logdensity(x):
        return -jnp.sum(((x - 1) / scales) ** 2) / 2

    given = {"step_size": 1.2, "inverse_mass_matrix": hm.Diagonal(scales), "center": jnp.ones(50)}
    kernel = blackjax.nuts(logdensity, **hm.for_blackjax(given))
    states = jax.vmap(kernel.init)(1 + scales * jax.random.normal(jax.random.key(0), (4, 50)))

    @jax.jit
    def sample(key, states):
        return run_chains(kernel.step, key, states, 500, lambda s, i: (s.position, i.acceptance_rate))[1]

    draws, rates = sample(jax.random.key(1), states)
    assert rates.min() > 0.99
    z = np.asarray((draws - 1) / scales)
    np.testing.assert_allclose(z.var(axis=(0, 1)), 1, atol=0.25)  # five standard errors of 1000 draws
    without = hm.for_blackjax({name: given[name] for name in ("step_size", "inverse_mass_matrix")})
    assert "integrator" not in without and without["step_size"] == 1.2


def test_centers_that_are_refused():
    kernel = hm.hmc(skewed_logdensity, 0.3, jnp.ones(DIM), jnp.zeros(DIM + 1))
    with pytest.raises(ValueError, match="center must be a position with d = 5, got 6 numbers"):
        kernel.step(jax.random.key(0), kernel.init(jnp.zeros(DIM)))


@pytest.mark.parametrize("step_size", [0.3, 1.1, 10.0])
def test_a_center_that_is_not_finite_gives_leapfrog_steps(step_size, x64):
    """In the kernel, numbers of steps too, and in BlackJAX's form."""
    preconditioner, start = a_map(), jnp.linspace(-1, 1, DIM)
    center = jnp.zeros(DIM).at[2].set(jnp.nan)
    leapfrog, info = chain(hm.hmc(skewed_logdensity, step_size, preconditioner, may_retry=False), start)
    ours, our_info = chain(hm.hmc(skewed_logdensity, step_size, preconditioner, center, may_retry=False), start)
    np.testing.assert_array_equal(our_info.num_integration_steps, info.num_integration_steps)
    np.testing.assert_allclose(ours, leapfrog, rtol=1e-9, atol=1e-9)
    step_size = min(step_size, 1.1)  # a longer one takes this density to 1e28
    state = new_integrator_state(skewed_logdensity, start, jnp.linspace(1, -2, DIM))
    expected = blackjax.mcmc.integrators.velocity_verlet(
        skewed_logdensity, hm.to_metric(preconditioner).kinetic_energy
    )(state, step_size)
    found = hm.to_integrator(preconditioner, center)(skewed_logdensity)(state, step_size)
    np.testing.assert_allclose(jnp.r_[found[:2]], jnp.r_[expected[:2]], rtol=1e-9, atol=1e-9)


class OneWay(NamedTuple):
    scales: jax.Array

    def apply(self, z):
        return self.scales * z

    apply_transpose = apply

    def to_dense(self):
        return jnp.diag(self.scales)


def test_a_map_without_inverse_is_refused():
    for enter in (
        lambda p: hm.to_integrator(p, jnp.zeros(DIM)),
        lambda p: hm.hmc(skewed_logdensity, 0.3, p, jnp.zeros(DIM)).step(
            jax.random.key(0), hm.hmc.init(jnp.zeros(DIM), skewed_logdensity)
        ),
    ):
        with pytest.raises(TypeError, match="a center needs the inverse map: OneWay has no solve"):
            enter(OneWay(jnp.ones(DIM)))


def test_positions_are_pytrees():
    """Of the center too."""

    def logdensity(position):
        return skewed_logdensity(jnp.concatenate([position["a"][None], position["b"].ravel()]))

    x, c = jnp.linspace(-1, 1, DIM), jnp.linspace(1, 0, DIM)
    position, center = ({"b": v[1:].reshape(2, 2), "a": v[0]} for v in (x, c))
    step = hm.to_integrator(jnp.linspace(0.5, 1.5, DIM), center)(logdensity)
    end = step(new_integrator_state(logdensity, position, jax.tree.map(jnp.ones_like, position)), 0.5)
    flat = hm.to_integrator(jnp.linspace(0.5, 1.5, DIM), c)(skewed_logdensity)
    expected = flat(new_integrator_state(skewed_logdensity, x, jnp.ones(DIM)), 0.5)
    assert isinstance(end, IntegratorState)
    for tree, vector in ((end.position, expected.position), (end.momentum, expected.momentum)):
        np.testing.assert_allclose(jnp.r_[tree["a"], tree["b"].ravel()], vector, rtol=1e-5, atol=1e-6)
