"""Frozen kernels leave posteriors invariant: simulation-based calibration with exact ranks, and adaptive moments.

For a parameter from the prior and data from the parameter, that parameter is a draw from the posterior. Put at a random
place of a chain that runs from it both ways (MALA is reversible), it is exchangeable with the chain's other states
(Besag & Clifford 1989, Biometrika 76), so its rank among them is exactly uniform, however slowly the chain mixes.
Chi-squared over the ranks of many data sets, Bonferroni over the statistics, 1e-4 per test.
"""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.util import run_inference_algorithm
from scipy.stats import chi2
from scipy.stats import t as student
from targets import log_gamma_logdensity

import householder_mcmc as hm

DIM, NUM_OBSERVATIONS = 4, 12
NUM_DATA_SETS, NUM_DRAWS, THIN = 8000, 7, 3
FEATURES = jnp.asarray(np.random.default_rng(0).normal(size=(NUM_OBSERVATIONS, DIM)), jnp.float32)
PRIOR_SCALES = jnp.array([2.0, 1.0, 1.0, 0.5])
ROWS = jnp.asarray(np.linalg.qr(np.random.default_rng(1).normal(size=(DIM, 2)))[0].T, jnp.float32)

MAPS = {
    "householder": hm.Householder(hm.reflections.compact(ROWS), jnp.array([0.5, 0.3, 0.35, 0.25])),
    "low rank": hm.LowRank(jnp.array([0.5, 0.4, 0.35, 0.3]), ROWS, jnp.array([1.5, 0.7])),
}


class Model(NamedTuple):
    """simulate: (key, weights) -> data. log_likelihood: (weights, data) -> log-density."""

    simulate: Callable
    log_likelihood: Callable


def linear(weights):
    return jnp.matmul(FEATURES, weights, precision="highest")


MODELS = {
    "normal": Model(
        lambda key, weights: linear(weights) + jax.random.normal(key, (NUM_OBSERVATIONS,)),
        lambda weights, data: -0.5 * jnp.sum((data - linear(weights)) ** 2),
    ),
    "logistic": Model(
        lambda key, weights: jax.random.bernoulli(key, jax.nn.sigmoid(linear(weights))).astype(jnp.float32),
        lambda weights, data: jnp.sum(data * linear(weights) - jnp.logaddexp(0, linear(weights))),
    ),
}


def log_prior(weights):
    return -0.5 * jnp.sum((weights / PRIOR_SCALES) ** 2)


def statistics(model, weights, data):
    return jnp.append(weights, jnp.stack([model.log_likelihood(weights, data), log_prior(weights)]))


def ranks(model, preconditioner, sampler=hm.mala, step_size=1.0):
    """Of the parameter among NUM_DRAWS others, by weights, log-likelihood and log-prior, (NUM_DATA_SETS, DIM + 2).

    And the mean acceptance rate.
    """

    def one_rank(key):
        key_weights, key_data, key_place, *keys_chain, key_tie = jax.random.split(key, 6)
        weights = PRIOR_SCALES * jax.random.normal(key_weights, (DIM,))
        data = model.simulate(key_data, weights)

        def logdensity(weights):
            return log_prior(weights) + model.log_likelihood(weights, data)

        kernel = sampler(logdensity, step_size, preconditioner)

        def one_step(state, key):
            state, info = kernel.step(key, state)
            return state, (statistics(model, state.position, data), info.acceptance_rate)

        def chain(key):
            keys = jax.random.split(key, NUM_DRAWS * THIN)
            draws, acceptance = jax.lax.scan(one_step, kernel.init(weights), keys)[1]
            return draws[THIN - 1 :: THIN], acceptance.mean()

        (before, acceptance), (after, _) = chain(keys_chain[0]), chain(keys_chain[1])
        num_before = jax.random.randint(key_place, (), 0, NUM_DRAWS + 1)
        index = jnp.arange(NUM_DRAWS)[:, None]
        others = jnp.where(index < num_before, before, after[index[:, 0] - num_before])
        value = statistics(model, weights, data)
        num_less, num_equal = jnp.sum(others < value, axis=0), jnp.sum(others == value, axis=0)
        return num_less + jax.random.randint(key_tie, value.shape, 0, num_equal + 1), acceptance

    found, acceptance = jax.jit(jax.vmap(one_rank))(jax.random.split(jax.random.key(0), NUM_DATA_SETS))
    return np.asarray(found), acceptance.mean()


def assert_uniform(found):
    expected = len(found) / (NUM_DRAWS + 1)
    counts = np.stack([np.bincount(column, minlength=NUM_DRAWS + 1) for column in found.T])
    p_values = chi2.sf(np.sum((counts - expected) ** 2 / expected, axis=1), NUM_DRAWS)
    assert p_values.min() > 1e-4 / len(p_values), p_values.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, preconditioner, sampler, step_size, highest",
    [
        ("normal", "low rank", hm.mala, 0.5, 0.9),
        ("logistic", "householder", hm.mala, 1.0, 0.9),
        ("logistic", "low rank", hm.hmc, 1.2, 0.92),  # trajectories of one and of two steps
    ],
)
def test_frozen_kernels_are_calibrated(model, preconditioner, sampler, step_size, highest):
    found, acceptance = ranks(MODELS[model], MAPS[preconditioner], sampler, step_size)
    assert 0.3 < acceptance < highest
    assert_uniform(found)


def accept_all(key, log_ratio, state, proposal):
    del key, state
    return proposal, (jnp.ones((), bool), jnp.clip(jnp.exp(log_ratio), max=1), None)


DEFECTS = {
    "every proposal accepted": ("metropolis", "static_binomial_sampling", accept_all),
    "no proposal ratio": ("mala", "_log_q_ratio", lambda noise, drifts: jnp.zeros(())),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_caught(defect, monkeypatch):
    """(L in place of L^T is none of these: that is another drift, which the proposal ratio makes up for.)"""
    module, name, planted = DEFECTS[defect]
    monkeypatch.setattr(import_module(f"householder_mcmc.mcmc.{module}"), name, planted)
    found, _ = ranks(MODELS["logistic"], MAPS["householder"])
    with pytest.raises(AssertionError):
        assert_uniform(found)


@jax.jit
def ranks_after_a_warmup(temper):
    """Of the parameter among NUM_DRAWS draws of HMC after a warm-up that ends by itself, from starts of the prior.

    (num_data_sets, DIM + 2), and the steps of the warm-ups. temper: the power of the likelihood that the sampler uses.
    """
    model, num_data_sets, num_chains, thin = MODELS["logistic"], 1000, 4, 10

    def one_rank(key):
        key_weights, key_data, key_starts, key_warmup, key_draws = jax.random.split(key, 5)
        weights = PRIOR_SCALES * jax.random.normal(key_weights, (DIM,))
        data = model.simulate(key_data, weights)

        def logdensity(weights):
            return log_prior(weights) + temper * model.log_likelihood(weights, data)

        starts = PRIOR_SCALES * jax.random.normal(key_starts, (num_chains, DIM))
        (state, parameters), info = hm.warmup(logdensity, hm.two_ended(), num_chains).run(key_warmup, starts)
        kernel = hm.hmc(logdensity, **parameters)

        def one_step(state, key):
            state, _ = jax.vmap(kernel.step)(jax.random.split(key, num_chains), state)
            return state, statistics(model, state.position[0], data)

        _, draws = jax.lax.scan(one_step, state, jax.random.split(key_draws, NUM_DRAWS * thin))
        return jnp.sum(draws[thin - 1 :: thin] < statistics(model, weights, data), axis=0), info.num_steps

    return jax.lax.map(one_rank, jax.random.split(jax.random.key(0), num_data_sets), batch_size=100)


@pytest.mark.slow
def test_a_warmup_that_ends_by_itself_leaves_draws_calibrated():
    """Its length is random, but draws are made after it: the parameter's rank among those of a chain is uniform."""
    found, num_steps = ranks_after_a_warmup(1.0)
    assert len(np.unique(num_steps)) > 3
    assert_uniform(np.asarray(found))
    found, _ = ranks_after_a_warmup(0.5)
    with pytest.raises(AssertionError):
        assert_uniform(np.asarray(found))


def adaptive_averages(num_runs=64, num_chains=4, num_burn=1000, num_draws=2000):
    """Averages of x and x^2 over each of many independent adaptive runs, (num_runs, 2, d), and the truths (2, d)."""
    shapes = np.linspace(0.7, 3, 6)
    logdensity, mean, variance = log_gamma_logdensity(shapes)
    starts = np.log(np.random.default_rng(1).gamma(shapes, size=(num_runs, num_chains, 6)))
    sampler = hm.adaptive_mala(logdensity, hm.eigen(2), num_chains)

    def moments(state, info):
        del info
        return jnp.stack([state.position.mean(axis=0), (state.position**2).mean(axis=0)])

    def one_run(key, positions):
        _, draws = run_inference_algorithm(
            key, sampler, num_burn + num_draws, initial_state=sampler.init(positions), transform=moments
        )
        return draws[num_burn:].mean(axis=0)

    keys = jax.random.split(jax.random.key(0), num_runs)
    averages = jax.jit(jax.vmap(one_run))(keys, jnp.asarray(starts, jnp.float32))
    return np.asarray(averages, np.float64), np.stack([mean, mean**2 + variance])


@pytest.mark.slow
def test_adaptive_moments_with_the_default_gains():
    """64 independent runs of 4 chains, whose averages give the standard errors: Student's t, 1e-4 for all moments."""
    averages, truths = adaptive_averages()
    num_runs = len(averages)
    z = np.abs(averages.mean(axis=0) - truths) / (averages.std(axis=0, ddof=1) / num_runs**0.5)
    assert z.max() < student.ppf(1 - 1e-4 / (2 * z.size), num_runs - 1), z
