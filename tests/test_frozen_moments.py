"""The frozen kernel reproduces known moments.

Chains are replicates: each statistic's standard error comes from the spread of the chains' averages, so its z is
Student's t with num_chains - 1 degrees of freedom whatever the autocorrelation. Two-sided, Bonferroni over the
statistics, 1e-4 per test.
"""

from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import t as student
from targets import log_gamma_logdensity

import householder_mcmc as hm
from benchmarks.targets import gaussian_second
from householder_mcmc.mcmc.chains import run_chains
from householder_mcmc.mcmc.integrator import rotate

pytestmark = pytest.mark.slow

NUM_CHAINS = 64


def householder(dim, rank, seed):
    rows = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, rank)))[0].T
    scales = np.exp(0.3 * np.random.default_rng(seed + 1).normal(size=dim))
    return hm.Householder(hm.reflections.compact(jnp.asarray(rows, jnp.float32)), jnp.asarray(scales, jnp.float32))


def chain_averages(logdensity, starts, parameters, num_burn, num_draws, seed=0, sampler=hm.mala):
    """Averages of x and x^2 over each chain, (NUM_CHAINS, 2, d)."""
    kernel = sampler(logdensity, **parameters)

    @jax.jit
    def run(state, key):
        key_burn, key_draws = jax.random.split(key)
        state, _ = run_chains(kernel.step, key_burn, state, num_burn, lambda state, info: None)
        return run_chains(
            kernel.step, key_draws, state, num_draws, lambda state, info: (state.position, info.acceptance_rate)
        )[1]

    draws, acceptance = run(jax.vmap(kernel.init)(starts), jax.random.key(seed))
    assert 0.3 < acceptance.mean() < 0.9
    draws = np.asarray(draws, np.float64)
    return np.stack([draws.mean(axis=0), (draws**2).mean(axis=0)], axis=1)


def assert_moments(averages, truths, mcse=0.0):
    estimate = averages.mean(axis=0)
    error = np.sqrt(averages.var(axis=0, ddof=1) / NUM_CHAINS + np.square(mcse))
    z = np.abs(estimate - truths) / error
    limit = student.ppf(1 - 1e-4 / (2 * z.size), NUM_CHAINS - 1)
    assert z.max() < limit, (z.max(), limit)


def gaussian_case():
    target = gaussian_second(10, np.random.default_rng(0), rank=2)
    starts = jnp.asarray(target.start(np.random.default_rng(1), NUM_CHAINS), jnp.float32)
    truths = np.stack([target.mean, target.mean**2 + np.diag(np.linalg.inv(target.precision))])
    return target.logdensity, starts, truths, {"step_size": 0.12, "inverse_mass_matrix": householder(10, 3, 2)}


def skewed_case():
    shapes = np.linspace(0.7, 3, 8)
    logdensity, mean, variance = log_gamma_logdensity(shapes)
    starts = jnp.asarray(np.log(np.random.default_rng(1).gamma(shapes, size=(NUM_CHAINS, 8))), jnp.float32)
    truths = np.stack([mean, mean**2 + variance])
    return logdensity, starts, truths, {"step_size": 0.15, "inverse_mass_matrix": householder(8, 3, 4)}


@pytest.mark.parametrize("case", [gaussian_case, skewed_case], ids=["gaussian", "skewed"])
def test_known_moments(case):
    logdensity, starts, truths, parameters = case()
    assert_moments(chain_averages(logdensity, starts, parameters, 0, 4000), truths)


@pytest.mark.parametrize("case", [gaussian_case, skewed_case], ids=["gaussian", "skewed"])
def test_an_unadjusted_kernel_is_caught(case, monkeypatch):
    """Planted defect: accept every proposal."""
    monkeypatch.setattr(import_module("householder_mcmc.mcmc.metropolis"), "static_binomial_sampling", accept_all)
    logdensity, starts, truths, parameters = case()
    averages = chain_averages(logdensity, starts, parameters, 0, 4000)
    with pytest.raises(AssertionError):
        assert_moments(averages, truths)


def around(center_of, step_size=0.6):
    """Parameters with steps so long that kicks matter, and a center by the number of dimensions."""

    def build(case):
        logdensity, starts, truths, parameters = case()
        dim = starts.shape[1]
        return logdensity, starts, truths, parameters | {"step_size": step_size, "center": center_of(dim)}

    return build


@pytest.mark.parametrize("sampler, step_size", [(hm.hmc, 0.6), (hm.mala, 0.15)], ids=["hmc", "mala"])
@pytest.mark.parametrize("case", [gaussian_case, skewed_case], ids=["gaussian", "skewed"])
def test_known_moments_by_exact_trajectories_of_another_gaussian(case, sampler, step_size):
    """Map and center are far from right."""
    logdensity, starts, truths, parameters = around(lambda dim: jnp.linspace(-1, 1.5, dim), step_size)(case)
    assert_moments(chain_averages(logdensity, starts, parameters, 0, 4000, sampler=sampler), truths)


DEFECTS = {
    "every end is accepted": None,
    "the kick without the Gaussian": lambda start, move, momentum, time, frequency: rotate(
        start * 0, move, momentum, time, frequency
    ),
    "a rotation that loses speed": lambda start, move, momentum, time, frequency: tuple(
        factor * part for factor, part in zip((1, 0.97), rotate(start, move, momentum, time, frequency), strict=True)
    ),
}


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS)
def test_wrong_trajectories_are_caught(defect, monkeypatch):
    if defect is None:
        monkeypatch.setattr(import_module("householder_mcmc.mcmc.metropolis"), "static_binomial_sampling", accept_all)
    else:
        monkeypatch.setattr(import_module("householder_mcmc.mcmc.hmc"), "rotate", defect)
    logdensity, starts, truths, parameters = around(lambda dim: jnp.linspace(-1, 1.5, dim))(skewed_case)
    try:
        averages = chain_averages(logdensity, starts, parameters, 0, 4000, sampler=hm.hmc)
    except AssertionError:  # of the acceptance rate
        return
    with pytest.raises(AssertionError):
        assert_moments(averages, truths)


def accept_all(key, log_ratio, state, proposal):
    del key, state
    return proposal, (jnp.ones((), bool), jnp.clip(jnp.exp(log_ratio), max=1), None)


@pytest.mark.optimised
def test_german_credit_after_warmup(german_credit):
    """Logistic regression, d = 25: eigen warm-up, frozen, against the reference moments and their errors."""
    logdensity, mean, sd, mcse = german_credit
    starts = jnp.asarray(mean + sd * np.random.default_rng(0).normal(size=(NUM_CHAINS, 25)), jnp.float32)
    (state, parameters), _ = hm.warmup(logdensity, hm.eigen(3), NUM_CHAINS, sampler="mala").run(
        jax.random.key(0), starts, 2000
    )
    averages = chain_averages(logdensity, state.position, parameters, 200, 2000)
    truths = np.stack([mean, mean**2 + sd**2])
    # the reference has no error for its sd: carry that of the mean to x^2 by (2 |mean| + 2 sd)
    assert_moments(averages, truths, np.stack([mcse, (2 * np.abs(mean) + 2 * sd) * mcse]))
