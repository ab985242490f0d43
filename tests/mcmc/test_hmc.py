"""Quarter-period HMC against BlackJAX's HMC, its times, and what they are for."""

import math

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.util import run_inference_algorithm
from runs import chain
from targets import skewed_logdensity

import householder_mcmc as hm
from householder_mcmc.mcmc.hmc import HMCInfo

DIM, STEP_SIZE = 5, 0.4


def a_map(dtype=jnp.float32):
    rows = np.linalg.qr(np.random.default_rng(4).normal(size=(DIM, 2)))[0].T
    return hm.Householder(hm.reflections.compact(jnp.asarray(rows, dtype)), jnp.linspace(0.4, 1.3, DIM, dtype=dtype))


def test_is_blackjaxs_hmc_on_the_pushed_forward_target(x64):
    """x = L z: a transition is that of `blackjax.hmc` on the density of z, with the same keys and numbers of steps."""
    preconditioner, z = a_map(jnp.float64), jnp.linspace(-1, 1, DIM)
    xs, info = chain(hm.hmc(skewed_logdensity, STEP_SIZE, preconditioner), preconditioner.apply(z))
    plain = blackjax.hmc.build_kernel()

    def one_step(state, args):
        key, num_steps = args
        _, key = jax.random.split(key)
        state, info = plain(
            key, state, lambda z: skewed_logdensity(preconditioner.apply(z)), STEP_SIZE, jnp.ones(DIM), num_steps
        )
        return state, (state.position, info.is_accepted)

    start = blackjax.hmc.init(z, lambda z: skewed_logdensity(preconditioner.apply(z)))
    keys = jax.random.split(jax.random.key(1), 200)
    _, (zs, is_accepted) = jax.lax.scan(one_step, start, (keys, info.num_integration_steps))
    assert 0.5 < info.is_accepted.mean() < 1
    np.testing.assert_array_equal(info.is_accepted, is_accepted)
    np.testing.assert_allclose(xs, jax.vmap(preconditioner.apply)(zs), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("step_size, fewest, most", [(0.1, 12, 20), (0.4, 3, 5), (10.0, 1, 1), (1e-5, 1000, 1000)])
def test_trajectories_take_about_a_quarter_of_a_period(step_size, fewest, most):
    """Uniform times from 3/8 pi to 5/8 pi. An end has a probability of 0.017 or more: 2000 draws miss it with 1e-15."""
    kernel = hm.hmc(lambda x: -jnp.sum(x**2) / 2, step_size, jnp.ones(2), may_retry=False)
    keys, state = jax.random.split(jax.random.key(0), 2000), kernel.init(jnp.zeros(2))
    num_steps = jax.jit(jax.vmap(lambda key: kernel.step(key, state)[1]))(keys).num_integration_steps
    assert num_steps.min() == fewest and num_steps.max() == most
    if step_size == 0.1:
        assert abs(num_steps.mean() * step_size - math.pi / 2) < 0.03  # five standard errors


def test_draws_of_a_whitened_gaussian_are_nearly_independent():
    """Autocorrelation at lag 1 of x and of x^2, 100 chains of 200 draws in 10 dimensions: standard error 0.002.

    A half of a period would give 1 for x^2, an eighth 0.7 for x.
    """
    scales = jnp.geomspace(0.01, 100, 10)
    kernel = hm.hmc(lambda x: -jnp.sum((x / scales) ** 2) / 2, 0.3, hm.Diagonal(scales))

    def one_chain(key):
        key_start, key = jax.random.split(key)
        start = scales * jax.random.normal(key_start, (10,))
        return run_inference_algorithm(
            key, kernel, 200, initial_position=start, transform=lambda state, info: state.position
        )[1]

    z = np.asarray(jax.jit(jax.vmap(one_chain))(jax.random.split(jax.random.key(0), 100))) / scales
    for values, largest in ((z, 0.15), (z**2, 0.3)):
        centred = values - values.mean()
        correlation = (centred[:, 1:] * centred[:, :-1]).mean() / centred.var()
        assert abs(correlation) < largest
    np.testing.assert_allclose(z.var(axis=(0, 1)), 1, atol=0.06)  # six standard errors


@pytest.mark.parametrize("step_size, is_divergent", [(1e-4, False), (1.0, True)])
def test_a_step_that_is_far_too_long_is_divergent(step_size, is_divergent):
    """The energy of a leapfrog step of 1 grows by 1e6 where the standard deviation is 1e-3. It is finite."""

    def logdensity(x):
        return -0.5 * jnp.sum((1e3 * x) ** 2)

    state = hm.hmc.init(jnp.full(3, 1e-3), logdensity)
    _, info = hm.hmc.build_kernel()(jax.random.key(0), state, logdensity, step_size, jnp.ones(3))
    assert info.is_divergent == is_divergent and not info.is_nonfinite


@pytest.mark.parametrize("value", [jnp.nan, -jnp.inf, jnp.inf])
def test_a_trajectory_that_is_not_finite_is_divergent(value):
    def logdensity(x):
        return jnp.where(jnp.all(x > 0), -jnp.sum(x), value)

    state = hm.hmc.init(jnp.full(3, 1e-3), logdensity)
    _, info = hm.hmc.build_kernel()(jax.random.key(0), state, logdensity, 1.0, jnp.ones(3))
    assert info.is_divergent and info.is_nonfinite


def test_has_blackjaxs_shape():
    assert isinstance(hm.hmc, type(blackjax.hmc))
    kernel, state = hm.hmc.build_kernel(), hm.hmc.init(jnp.zeros(2), skewed_logdensity)
    assert type(state) is type(blackjax.hmc.init(jnp.zeros(2), skewed_logdensity))
    state, info = kernel(jax.random.key(0), state, skewed_logdensity, 0.1, jnp.ones(2))
    assert isinstance(info, HMCInfo)
