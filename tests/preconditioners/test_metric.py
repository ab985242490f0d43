"""Our metric against BlackJAX's own: function by function, and the same draws of their kernels on the same keys."""

from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.metrics import default_metric
from test_maps import DIM, preconditioners

import householder_mcmc as hm


def scales_of_both(name):
    preconditioner, dense = preconditioners(jnp.float64)[name]
    return hm.to_metric(preconditioner), preconditioner, np.asarray(dense)


@pytest.mark.parametrize("name", ["diagonal", "dense", "low_rank", "householder", "householder_sequential"])
def test_functions_agree_with_the_dense_definitions(name, x64):
    metric, _, root = scales_of_both(name)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=DIM))
    expected = {
        (False, False): np.linalg.solve(root.T, x),
        (False, True): np.linalg.solve(root, x),
        (True, False): root @ x,
        (True, True): root.T @ x,
    }
    for (inv, trans), value in expected.items():
        np.testing.assert_allclose(metric.scale(x, x, inv=inv, trans=trans), value, rtol=1e-8, atol=1e-10)
    theirs = default_metric(jnp.asarray(root @ root.T))
    np.testing.assert_allclose(metric.kinetic_energy(x), theirs.kinetic_energy(x), rtol=1e-10)
    turned = set()
    for _ in range(50):
        left, right, total = (jnp.asarray(rng.normal(size=DIM)) for _ in range(3))
        turns = bool(metric.check_turning(left, right, total + left + right))
        assert turns == bool(theirs.check_turning(left, right, total + left + right))
        turned.add(turns)
    assert turned == {True, False}


@pytest.mark.parametrize("name", ["diagonal", "low_rank"])
def test_scale_is_blackjaxs_in_all_cases(name, x64):
    """`scale` equals that of BlackJAX's metric, for maps whose square root L is the one that BlackJAX takes."""
    preconditioner, _ = preconditioners(jnp.float64)[name]
    ours, theirs = hm.to_metric(preconditioner), default_metric(preconditioner.to_inverse_mass_matrix())
    x = jnp.linspace(-1, 2, DIM)
    for inv in (False, True):
        for trans in (False, True):
            scaled = ours.scale(x, x, inv=inv, trans=trans)
            np.testing.assert_allclose(scaled, theirs.scale(x, x, inv=inv, trans=trans), rtol=1e-10)


@pytest.mark.parametrize("name", ["dense", "householder"])
def test_momenta_have_the_mass_matrix(name, x64):
    """20,000 momenta: each entry of L^T cov L within five standard errors (0.035 off, 0.05 on the diagonal) of I."""
    metric, _, root = scales_of_both(name)
    keys = jax.random.split(jax.random.key(0), 20_000)
    momenta = jax.vmap(lambda key: metric.sample_momentum(key, jnp.zeros(DIM)))(keys)
    whitened = np.asarray(momenta) @ root
    np.testing.assert_allclose(whitened.T @ whitened / len(keys), np.eye(DIM), atol=0.05)


def start(kernel, position):
    return kernel.init(position, jax.random.key(2))


def draws(kernel, state, num=30):
    def one_step(state, key):
        state, _ = kernel.step(key, state)
        return state, state.position

    return jax.lax.scan(one_step, state, jax.random.split(jax.random.key(1), num))[1]


def test_nuts_repeats_blackjaxs_dense_metric(x64):
    """d = 20, the same keys: with L the Cholesky factor that BlackJAX takes of the same covariance."""
    rng = np.random.default_rng(2)
    square = rng.normal(size=(20, 20))
    covariance = jnp.asarray(square @ square.T / 20 + np.eye(20))

    def logdensity(x):
        return -0.5 * jnp.vdot(x, jnp.linalg.solve(covariance, x))

    ours = blackjax.nuts(logdensity, 0.5, hm.to_metric(covariance))
    theirs = blackjax.nuts(logdensity, 0.5, covariance)
    state = start(theirs, jnp.ones(20))
    np.testing.assert_allclose(draws(ours, state), draws(theirs, state), rtol=1e-8, atol=1e-8)


KERNELS = {
    "hmc": lambda f, metric: blackjax.hmc(f, 0.3, metric, 5),
    "nuts": lambda f, metric: blackjax.nuts(f, 0.3, metric),
    "mhmc": lambda f, metric: blackjax.mhmc(f, 0.3, metric, 5),
    "dynamic_hmc": lambda f, metric: blackjax.dynamic_hmc(f, 0.3, metric),
    "ghmc": lambda f, metric: blackjax.ghmc(f, 0.3, metric, alpha=0.5, delta=0.1),
    "barker": lambda f, metric: blackjax.barker(f, 0.3, metric),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_with_a_householder_map_walk_the_whitened_path(name, x64):
    """x = L z: a kernel with our metric on pi is the kernel with the identity on the density of z, on the same keys.

    BlackJAX's Barker kernel scales its proposals by the root of the mass matrix, L^{-T}.
    """
    _, preconditioner, _ = scales_of_both("householder")
    colour = preconditioner.solve_transpose if name == "barker" else preconditioner.apply

    def logdensity(x):
        return jnp.sum(2 * x - jnp.exp(x))

    z = jnp.linspace(-0.5, 0.5, DIM)
    ours = KERNELS[name](logdensity, hm.to_metric(preconditioner))
    theirs = KERNELS[name](lambda z: logdensity(colour(z)), jnp.ones(DIM))
    state, white = start(ours, colour(z)), start(theirs, z)
    if name == "ghmc":  # it keeps its momentum, and starts with that of the identity
        state = state._replace(momentum=preconditioner.solve_transpose(white.momentum))
    xs, zs = draws(ours, state), draws(theirs, white)
    assert jnp.abs(xs[0] - xs[-1]).max() > 0.1
    np.testing.assert_allclose(xs, jax.vmap(colour)(zs), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["diagonal", "low_rank"])
def test_mclmc_takes_our_inverse_mass_matrices(name, x64):
    """x = L z again, L the symmetric root: MCLMC has no metric, but takes arrays and low-rank matrices."""
    preconditioner, root = preconditioners(jnp.float64)[name]
    inverse_mass_matrix = preconditioner.to_inverse_mass_matrix()

    def logdensity(x):
        return -0.5 * jnp.sum(x**2)

    kernel = blackjax.mclmc(logdensity, L=1.0, step_size=0.2, inverse_mass_matrix=inverse_mass_matrix)
    white = blackjax.mclmc(lambda z: logdensity(root @ z), L=1.0, step_size=0.2)
    z = jnp.linspace(-0.5, 0.5, DIM)
    xs, zs = draws(kernel, start(kernel, root @ z)), draws(white, start(white, z))
    np.testing.assert_allclose(xs, zs @ root.T, rtol=1e-7, atol=1e-7)


def test_positions_are_pytrees_and_maps_without_inverse_are_refused():
    metric = hm.to_metric(jnp.ones(3))
    position = {"a": jnp.zeros(()), "b": jnp.zeros(2)}
    momentum = metric.sample_momentum(jax.random.key(0), position)
    assert jax.tree.map(jnp.shape, momentum) == {"a": (), "b": (2,)}

    class ForwardOnly(NamedTuple):
        scale: jax.Array
        apply = apply_transpose = to_dense = lambda self: None

    with pytest.raises(TypeError, match="ForwardOnly has no solve"):
        hm.to_metric(ForwardOnly(jnp.ones(())))
