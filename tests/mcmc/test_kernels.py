"""What every kernel to freeze must do, whatever it proposes: one contract for `hm.mala` and `hm.hmc`."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import assert_full_precision
from runs import chain
from targets import skewed_logdensity

import householder_mcmc as hm

DIM = 5


class AroundOnes:
    """A sampler with a center whose numbers are 1, of whatever positions."""

    def __init__(self, build, logdensity, step_size, preconditioner):
        build(logdensity, step_size, preconditioner)  # for its checks
        self.build, self.given = build, (logdensity, step_size, preconditioner)
        self.init = build(logdensity, 1.0, preconditioner).init

    def step(self, rng_key, state):
        center = jax.tree.map(jnp.ones_like, state.position)
        return self.build(*self.given, center).step(rng_key, state)


SAMPLERS = {
    "mala": (hm.mala, 0.3),
    "hmc": (hm.hmc, 0.4),
    "mala with a center": (partial(AroundOnes, hm.mala), 0.3),
    "hmc with a center": (partial(AroundOnes, hm.hmc), 0.4),
}


@pytest.fixture(params=SAMPLERS)
def sampler(request):
    """(logdensity, preconditioner, factor of a usual step size) -> kernel."""
    build, step_size = SAMPLERS[request.param]
    return lambda logdensity, preconditioner, factor=1.0: build(logdensity, factor * step_size, preconditioner)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_nonfinite_proposals_are_rejected_and_flagged(sampler, value):
    def hole(x):
        return jnp.where(jnp.sum(x**2) < 1.0, -0.5 * jnp.sum(x**2), value)

    positions, info = chain(sampler(hole, jnp.ones(2), 2), jnp.zeros(2))
    assert info.is_nonfinite.any() and info.is_accepted.any()
    assert jnp.all(jnp.sum(positions**2, axis=1) < 1.0)
    assert not jnp.any(info.is_accepted & info.is_nonfinite)
    np.testing.assert_array_equal(info.acceptance_rate[info.is_nonfinite], 0)


def test_nonfinite_gradient_with_finite_density_is_rejected(sampler):
    @jax.custom_jvp
    def logdensity(x):
        return -0.5 * jnp.sum(x**2)

    @logdensity.defjvp
    def _(primals, tangents):
        (x,), (dx,) = primals, tangents
        slope = jnp.where(x[0] > 0.5, jnp.nan, -x)
        return logdensity(x), jnp.vdot(slope, dx)

    # HMC takes one step here, so that no further gradient is asked for
    positions, info = chain(sampler(logdensity, jnp.ones(2), 3.5), jnp.zeros(2))
    assert info.is_nonfinite.any() and info.is_accepted.any() and jnp.all(positions[:, 0] <= 0.5)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_nonfinite_start_raises_unless_traced(sampler, value):
    kernel = sampler(lambda x: jnp.sum(x) + value, jnp.ones(2))
    with pytest.raises(ValueError, match="must be finite at the start"):
        kernel.init(jnp.zeros(2))
    jax.jit(kernel.init)(jnp.zeros(2))


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_position_that_is_not_finite_is_flagged_though_its_density_is(sampler, value):
    kernel, start = sampler(lambda x: -(x[0] ** 2), jnp.ones(2)), jnp.array([0.0, value])
    with pytest.raises(ValueError, match="must be finite at the start: the position is not"):
        kernel.init(start)
    assert kernel.step(jax.random.key(0), jax.jit(kernel.init)(start))[1].is_nonfinite


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_bad_start_under_jit_is_left_at_once_and_flagged(sampler, value):
    """For the first finite proposal."""

    def logdensity(x):
        return jnp.where(jnp.abs(x[0] - 6) < 1e-3, value, -0.5 * jnp.sum(x**2))

    kernel = sampler(logdensity, jnp.ones(2))
    state, info = jax.jit(kernel.step)(jax.random.key(0), jax.jit(kernel.init)(jnp.array([6.0, 0.0])))
    assert info.is_accepted and info.is_nonfinite and jnp.isfinite(state.logdensity)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("part", ["logdensity", "logdensity_grad"])
def test_a_bad_start_moves_as_if_it_had_no_gradient(sampler, part, value):
    """Else the proposal of a start without a finite gradient is never finite, and the chain stays for ever."""
    kernel = sampler(skewed_logdensity, jnp.linspace(0.5, 1.5, DIM))
    good = kernel.init(jnp.linspace(-1, 1, DIM))
    bad = good._replace(logdensity=jnp.asarray(value)) if part == "logdensity" else good
    bad = bad._replace(logdensity_grad=good.logdensity_grad.at[1].set(value)) if part == "logdensity_grad" else bad
    step = jax.jit(kernel.step)
    state, info = step(jax.random.key(0), bad)
    without, _ = step(jax.random.key(0), good._replace(logdensity_grad=jnp.zeros(DIM)))
    assert info.is_accepted and info.is_nonfinite and info.acceptance_rate == 1
    assert jnp.any(without.position != good.position)  # accepted as well
    np.testing.assert_allclose(state.position, without.position, rtol=1e-6)


def test_a_step_size_that_is_not_a_number_moves_nothing(sampler):
    @jax.jit
    def step(factor):
        kernel = sampler(skewed_logdensity, jnp.ones(DIM), factor)
        return kernel.step(jax.random.key(0), kernel.init(jnp.zeros(DIM)))

    state, info = step(jnp.nan)
    assert info.is_nonfinite and not info.is_accepted and info.acceptance_rate == 0
    np.testing.assert_array_equal(state.position, 0)


@pytest.mark.parametrize("sampler", ["mala", "hmc"], indirect=True)  # not where z = 1e8 is solved as a Gaussian's
def test_an_improvement_beyond_the_range_of_exp_is_accepted(sampler):
    kernel = sampler(lambda x: -1e5 * x[0] ** 2, jnp.full(1, 1e-6))
    state, info = kernel.step(jax.random.key(0), kernel.init(jnp.array([100.0])))
    assert info.acceptance_rate == 1 and info.is_accepted


@pytest.mark.parametrize("make", [lambda: np.ones(DIM), lambda: hm.Diagonal(np.ones(DIM))])
def test_float32_positions_stay_float32_with_x64(x64, sampler, make):
    positions, info = chain(sampler(skewed_logdensity, make(), np.float64(1)), jnp.zeros(DIM, jnp.float32), 3)
    assert positions.dtype == info.acceptance_rate.dtype == jnp.float32


def test_bad_parameters(sampler):
    with pytest.raises(ValueError, match=r"step_size must be a positive and finite number, got -0\.[34]"):
        sampler(skewed_logdensity, jnp.ones(DIM), -1)
    for wrong in (jnp.inf, jnp.ones(1)):
        with pytest.raises(ValueError, match="step_size must be a positive and finite number, got"):
            sampler(skewed_logdensity, jnp.ones(DIM), wrong)
    with pytest.raises(ValueError, match="must have positive and finite variances"):
        sampler(skewed_logdensity, jnp.zeros(DIM))
    for length in (1, DIM + 1):
        kernel = sampler(skewed_logdensity, jnp.ones(length))
        with pytest.raises(ValueError, match=rf"expected a vector of shape \({length},\), got shape \(5,\)"):
            kernel.step(jax.random.key(0), kernel.init(jnp.zeros(DIM)))


class Halves(NamedTuple):
    """A user's own map, without an inverse: L = scale I."""

    scale: jax.Array

    def apply(self, z):
        return self.scale * z

    def apply_transpose(self, g):
        return self.scale * g

    def to_dense(self):
        return self.scale * jnp.eye(DIM)


@pytest.mark.parametrize("sampler", ["mala", "hmc"], indirect=True)
def test_a_map_of_ones_own_needs_no_inverse(sampler):
    own, _ = chain(sampler(skewed_logdensity, Halves(jnp.array(0.5))), jnp.zeros(DIM), 20)
    ours, _ = chain(sampler(skewed_logdensity, hm.Diagonal(jnp.full(DIM, 0.5))), jnp.zeros(DIM), 20)
    np.testing.assert_allclose(own, ours, rtol=1e-5, atol=1e-5)


def test_products_ask_for_full_precision(sampler):
    """GPUs default to less; a CPU would not show it."""
    for preconditioner in (
        hm.Dense(jnp.eye(DIM)),
        hm.LowRank(jnp.ones(DIM), jnp.eye(2, DIM), jnp.ones(2)),
        hm.Householder(hm.reflections.compact(jnp.eye(2, DIM)), jnp.ones(DIM)),
        hm.Householder(hm.reflections.sequential(jnp.eye(2, DIM)), jnp.ones(DIM)),
    ):
        kernel = sampler(skewed_logdensity, preconditioner)
        program = jax.make_jaxpr(kernel.step)(jax.random.key(0), kernel.init(jnp.zeros(DIM)))
        assert_full_precision(program.jaxpr)


def test_positions_are_pytrees(sampler):
    """A dict of mixed shapes walks the path of its ravelled twin."""

    def logdensity(position):
        return skewed_logdensity(jnp.concatenate([position["a"][None], position["b"].ravel()]))

    x = jnp.linspace(-1, 1, DIM)
    variances = jnp.linspace(0.5, 1.5, DIM)
    position = {"b": x[1:].reshape(2, 2), "a": x[0]}
    tree, _ = chain(sampler(logdensity, variances), position)
    flat, _ = chain(sampler(skewed_logdensity, variances), x)
    assert tree["b"].shape == (200, 2, 2)
    np.testing.assert_allclose(jnp.c_[tree["a"], tree["b"].reshape(200, -1)], flat, rtol=1e-5, atol=1e-5)


def test_vmap_over_chains_agrees_with_single_runs(sampler):
    kernel = sampler(skewed_logdensity, jnp.linspace(0.5, 1.5, DIM))
    starts = jax.random.normal(jax.random.key(0), (3, DIM))
    keys = jax.random.split(jax.random.key(2), 3)
    together, _ = jax.vmap(kernel.step)(keys, jax.vmap(kernel.init)(starts))
    for i in range(3):
        alone, _ = kernel.step(keys[i], kernel.init(starts[i]))
        np.testing.assert_allclose(together.position[i], alone.position, rtol=1e-6)


@pytest.mark.parametrize("kernel, other", [("mala", "hmc"), ("hmc", "mala")])
def test_a_state_of_another_sampler_is_refused(kernel, other):
    def logdensity(x):
        return -0.5 * jnp.sum(x**2)

    x = jnp.ones(3)
    step = getattr(hm, kernel)(logdensity, 0.5, x).step
    message = f"steps from a {kernel.upper()}State, got a {other.upper()}State: make one with"
    for transformed in (step, jax.jit(step)):
        with pytest.raises(TypeError, match=message):
            transformed(jax.random.key(0), getattr(hm, other).init(x, logdensity))
    with pytest.raises(TypeError, match=f"steps from a {kernel.upper()}State, got a ArrayImpl"):
        step(jax.random.key(0), x)


@pytest.mark.parametrize("empty", [{}, np.ones(0), [np.ones((0, 2)), np.ones(0)]], ids=["tree", "vector", "list"])
@pytest.mark.parametrize(
    "start",
    [
        lambda x: hm.mala.init(x, lambda x: 0.0),
        lambda x: hm.hmc.init(x, lambda x: 0.0),
        lambda x: hm.adaptive_mala(lambda x: 0.0, hm.none(), 4).init(with_chains(x)),
        lambda x: hm.warmup(lambda x: 0.0, hm.none(), 4).run(jax.random.key(0), with_chains(x), 2),
        lambda x: hm.variational.LowRankGaussian.start(x, 1),
        lambda x: hm.variational.LowRankScaleGaussian.start(x, 1),
        lambda x: hm.metric_core(2).init(sum(leaf.size for leaf in jax.tree.leaves(x))),
    ],
    ids=["mala", "hmc", "adaptive_mala", "warmup", "variational", "scale", "metric_core"],
)
def test_positions_without_numbers_are_refused_alike(start, empty):
    with pytest.raises(ValueError, match=r"^a position must have at least one number, got d = 0\.$"):
        start(empty)


def with_chains(position):
    return jax.tree.map(lambda leaf: np.stack([leaf] * 4), position)
