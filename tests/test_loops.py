"""BlackJAX's loops on our samplers: the same draws as the plain loop gives on the same keys."""

import blackjax
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.base import SamplingAlgorithm
from blackjax.util import run_inference_algorithm, store_only_expectation_values, thin_algorithm
from targets import skewed_logdensity

import householder_mcmc as hm
from householder_mcmc.results.diagnostics import ess_and_rhat

NUM_CHAINS, DIM, NUM_STEPS = 3, 5, 12


def frozen():
    """`hm.mala` on every chain: a sampler of vmapped steps."""
    kernel = hm.mala(skewed_logdensity, 0.2, jnp.ones(DIM))

    def step(rng_key, state):
        return jax.vmap(kernel.step)(jax.random.split(rng_key, NUM_CHAINS), state)

    return SamplingAlgorithm(jax.vmap(kernel.init), step)


@pytest.fixture(params=["frozen", "adaptive"])
def sampler(request):
    if request.param == "frozen":
        return frozen()
    return hm.adaptive_mala(skewed_logdensity, hm.eigen(2), NUM_CHAINS)


def starts():
    return jnp.asarray(np.random.default_rng(0).normal(size=(NUM_CHAINS, DIM)), float)


def run(sampler, state, num_steps=NUM_STEPS, transform=lambda state, info: state.position):
    return run_inference_algorithm(jax.random.key(1), sampler, num_steps, initial_state=state, transform=transform)


def test_store_only_expectation_values(sampler):
    state = sampler.init(starts())
    _, draws = run(sampler, state)
    averaging, transform = store_only_expectation_values(sampler, lambda state: state.position)
    _, (averages, _) = run(averaging, averaging.init(state), transform=transform)
    np.testing.assert_allclose(averages[-1], draws.mean(axis=0), rtol=1e-5)


def test_thin_algorithm(x64, sampler):
    """It keeps every third state and averages infos. In float64, where rounding that steps pass on stays small."""
    thinned = thin_algorithm(sampler, 3, lambda info: jax.tree.map(lambda x: jnp.mean(x, axis=0), info))
    state = sampler.init(starts())
    _, (draws, infos) = run(thinned, state, 4, lambda state, info: (state.position, info))
    acceptance_rates = []
    for i, key in enumerate(jax.random.split(jax.random.key(1), 4)):
        for sub_key in jax.random.split(key, 3):
            state, info = sampler.step(sub_key, state)
            acceptance_rates.append(info.acceptance_rate)
        np.testing.assert_allclose(draws[i], state.position, rtol=1e-5)
    expected = np.reshape(acceptance_rates, (4, 3, NUM_CHAINS)).mean(axis=1)
    np.testing.assert_allclose(infos.acceptance_rate, expected, rtol=1e-4)


def test_progress_bar(sampler):
    pytest.importorskip("jaxtap")
    state = sampler.init(starts())
    _, draws = run(sampler, state)
    with blackjax.progress_bar() as progress:
        _, draws_with_bar = run(sampler, state)
        jax.block_until_ready(draws_with_bar)
    jax.effects_barrier()
    chex.assert_trees_all_equal(draws, draws_with_bar)
    assert progress.n_steps == NUM_STEPS


def test_vmap_over_runs():
    """Independent adaptive samplers side by side."""
    sampler = hm.adaptive_mala(skewed_logdensity, hm.eigen(2), NUM_CHAINS)
    state = sampler.init(starts())
    keys = jax.random.split(jax.random.key(1), 2)

    def one_run(key):
        return run_inference_algorithm(
            key, sampler, NUM_STEPS, initial_state=state, transform=lambda state, info: state.position
        )[1]

    draws = jax.vmap(one_run)(keys)
    np.testing.assert_allclose(draws[1], one_run(keys[1]), rtol=1e-4, atol=1e-5)
    assert np.abs(draws[0] - draws[1]).max() > 0.1


@pytest.mark.slow
def test_mclmc_on_a_map():
    """BlackJAX's microcanonical sampler in whitened coordinates, where a pair of correlation 0.99 has none.

    Means and mean squares of 4 chains: each within four standard errors, and 10% more for what it does not adjust.
    """

    def logdensity(x):
        return -0.5 * jnp.sum(x**2) - 50 * (x[0] - x[1]) ** 2

    precision = np.eye(8)
    precision[:2, :2] += 100 * np.array([[1, -1], [-1, 1]])
    covariance = np.linalg.inv(precision)
    preconditioner = hm.Dense(
        jnp.asarray(np.linalg.cholesky(covariance), jnp.float32)
    )  # in its place that of a warm-up

    def whitened(z):
        return logdensity(preconditioner.apply(z))

    def one_chain(key):
        key_start, key_tune, key_draws = jax.random.split(key, 3)
        start = jax.random.normal(key_start, (8,))
        state = blackjax.mcmc.mclmc.init(position=start, logdensity_fn=whitened, rng_key=key_start)
        state, parameters, _ = blackjax.mclmc_find_L_and_step_size(
            mclmc_kernel=blackjax.mcmc.mclmc.build_kernel(),
            num_steps=2000,
            state=state,
            rng_key=key_tune,
            logdensity_fn=whitened,
        )
        kernel = blackjax.mclmc(whitened, **parameters._asdict())

        def step(state, key):
            state, _ = kernel.step(key, state)
            return state, preconditioner.apply(state.position)

        return jax.lax.scan(step, state, jax.random.split(key_draws, 4000))[1]

    x = np.asarray(jax.jit(jax.vmap(one_chain))(jax.random.split(jax.random.key(0), 4)), np.float64)
    _, ess, rhat = ess_and_rhat(x)
    assert np.all(ess > 400) and np.all(rhat < 1.02)
    assert np.all(np.abs(x.mean(axis=(0, 1))) < 4 * x.std(axis=(0, 1)) / np.sqrt(ess))
    _, ess, _ = ess_and_rhat(x**2)
    variances = np.mean(x**2, axis=(0, 1))
    assert np.all(np.abs(variances / np.diag(covariance) - 1) < 0.1 + 4 * np.sqrt(2 / ess))
    difference = np.mean((x[..., 0] - x[..., 1]) ** 2)
    assert difference == pytest.approx(1 / 100.5, rel=0.3)
