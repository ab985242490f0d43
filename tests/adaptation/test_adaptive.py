"""The adaptive step in parts: which chains count, which draws are learnt from, when the gains begin to decay.

A kernel whose acceptance rates are given stands in for a sampler.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.adaptation import adaptive
from householder_mcmc.adaptation.samplers import SAMPLERS, Sampler
from householder_mcmc.mcmc.mala import MALAInfo, MALAState

TARGET = 0.6


class Rates(NamedTuple):
    """An info, as far as `acceptance_error` reads it."""

    acceptance_rate: jax.Array


def chains(num_chains=4, dim=2, bad=(), part="logdensity", value=jnp.nan):
    """Chains at 10, 11, ... in the first coordinate and 0, 1, ... in the others; scores 100 times that."""
    x = jnp.arange(num_chains)[:, None] + jnp.zeros(dim).at[0].set(10.0)
    state = MALAState(x, jnp.zeros(num_chains), 100 * x)
    for chain in bad:
        state = state._replace(**{part: getattr(state, part).at[chain].set(value)})
    return state


def weighted_error(rates, means, is_good):
    """In NumPy, chain by chain: weight 1, (0.7 target / (mean + 0.01))^2 below 0.7 of the target, 0 if not finite."""
    total, weights = 0.0, 0.0
    for rate, mean, good in zip(rates, means, is_good, strict=True):
        shortfall = 0.7 * TARGET / (mean + 0.01)
        weight = (max(shortfall, 1) ** 2) if good else 0
        total, weights = total + weight * (rate - TARGET), weights + weight
    return total / weights


@pytest.mark.parametrize(
    "means, bad",
    [
        ([0.6, 0.7, 0.5, 0.42], ()),  # none is stuck: 0.42 + 0.01 is above 0.7 of the target
        ([0.6, 0.2, 0.5, 0.3], ()),
        ([0.9, 0.0, 0.9, 0.9], ()),
        ([0.9, 0.0, 0.9, 0.1], (1,)),
        ([0.5, 0.5, 0.5, 0.01], (0, 2)),
    ],
)
def test_acceptance_error_is_a_weighted_mean(means, bad, dtype):
    rates = np.array([0.9, 0.1, 0.8, 0.3])
    error, new = adaptive.acceptance_error(
        chains(bad=bad), Rates(jnp.asarray(rates, jnp.float32)), jnp.asarray(means, dtype), TARGET
    )
    expected = weighted_error(rates, means, [chain not in bad for chain in range(4)])
    assert error.dtype == new.dtype == dtype
    np.testing.assert_allclose(error, expected, rtol=1e-5)
    np.testing.assert_allclose(new, np.array(means) + (rates - means) / 50, rtol=1e-5)


def test_chains_that_are_not_stuck_count_alike():
    error, _ = adaptive.acceptance_error(chains(), Rates(jnp.array([1.0, 0.8, 0.6, 0.4])), jnp.full(4, 0.5), TARGET)
    np.testing.assert_allclose(error, 0.1, rtol=1e-5)


@pytest.mark.parametrize("num_others", [3, 1000])
def test_a_stuck_chain_is_not_outvoted(num_others):
    """By a thousand that accept all: its weight is (0.42 / 0.01)^2 = 1764, and the error stays below 0."""
    rates = jnp.ones(num_others + 1).at[0].set(0.0)
    error, means = adaptive.acceptance_error(chains(num_others + 1), Rates(rates), rates, TARGET)
    expected = (num_others * 0.4 - 1764 * 0.6) / (num_others + 1764)
    np.testing.assert_allclose(error, expected, rtol=1e-3)
    np.testing.assert_array_equal(means, rates)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("part", MALAState._fields)
def test_a_chain_that_is_not_finite_counts_nothing(part, value):
    """Whatever its rate is: the error is that of the others, and 0 if there are none."""
    for rate in (0.0, 1.0):
        error, _ = adaptive.acceptance_error(
            chains(3, bad=[1], part=part, value=value), Rates(jnp.array([0.9, rate, 0.7])), jnp.full(3, 0.5), TARGET
        )
        np.testing.assert_allclose(error, 0.2, rtol=1e-5)
    error, _ = adaptive.acceptance_error(
        chains(3, bad=range(3), part=part, value=value), Rates(jnp.ones(3)), jnp.full(3, 0.5), TARGET
    )
    assert error == 0


@pytest.mark.parametrize("part", MALAState._fields)
@pytest.mark.parametrize(
    "bad, kept", [((), [0, 1, 2, 3]), ((0,), [1, 1, 2, 3]), ((0, 1, 3), [2] * 4), ((3,), [0, 1, 2, 0])]
)
def test_the_first_good_chain_takes_the_place_of_bad_ones(bad, kept, part):
    x, scores = adaptive.good_draws(chains(bad=bad, part=part))
    expected = np.array(kept)[:, None] + np.array([10.0, 0.0])
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(scores, 100 * expected)


def test_without_a_good_chain_draws_are_left_as_they_are():
    x, scores = adaptive.good_draws(chains(bad=range(4)))
    expected = np.arange(4)[:, None] + np.array([10.0, 0.0])
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(scores, 100 * expected)


def test_good_draws_of_pytrees_ravel_each_chain_in_the_dtype_of_positions():
    position = {"a": jnp.arange(2.0), "b": jnp.arange(8.0).reshape(2, 2, 2)}
    score = jax.tree.map(lambda leaf: (leaf + 1).astype(jnp.bfloat16), position)
    x, scores = adaptive.good_draws(MALAState(position, jnp.zeros(2), score))
    np.testing.assert_array_equal(x, [[0, 0, 1, 2, 3], [1, 4, 5, 6, 7]])
    np.testing.assert_array_equal(scores, np.asarray(x) + 1)
    assert x.dtype == scores.dtype == jnp.float32


def given_rates(rng_key, state, rates, step_size, preconditioner):
    """A kernel that accepts with the rate that is passed for a log-density, and takes each chain one to the right."""
    moved = state._replace(position=state.position + 1)
    return moved, MALAInfo(jnp.asarray(rates, jnp.float32), jnp.asarray(True), jnp.asarray(False))


def states(rates, gain=lambda count: 1 / (count + 1)):
    """The states after steps whose chains accept with these rates, the start first, and the infos."""
    sampler = Sampler(given_rates, MALAState, lambda sigma: 10 * sigma, TARGET, lambda info: jnp.full(3, 7))
    kernel = jax.jit(adaptive.build_kernel(hm.diagonal(), sampler, TARGET, gain))
    x = jnp.zeros((3, 16))
    state = adaptive.init(x, lambda x: -jnp.sum(x**2) / 2, hm.diagonal(), SAMPLERS["mala"], 3)
    found, infos = [state], []
    for rate in rates:
        state, info = kernel(jax.random.key(0), state, rate)
        found.append(state)
        infos.append(info)
    return found, infos


@pytest.mark.parametrize(
    "rates, signs, counts",
    [
        # above the target for three steps, then below it, which starts the count; it then counts every step
        ([0.9, 0.8, 0.7, 0.5, 0.9, 0.9, 0.2], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 2, 3, 4]),
        ([0.3, 0.5, 0.7, 0.5], [-1, -1, -1, -1], [0, 0, 1, 2]),
        # exactly at the target: no side yet, and no crossing
        ([0.6, 0.6, 0.9, 0.6, 0.3, 0.6], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 2]),
    ],
)
def test_the_gains_decay_from_where_the_acceptance_crosses_its_target(rates, signs, counts):
    found, _ = states(np.float32(rates))
    assert found[0].first_error_sign == found[0].count == 0
    np.testing.assert_array_equal([state.first_error_sign for state in found[1:]], signs)
    np.testing.assert_array_equal([state.count for state in found[1:]], counts)
    # log sigma moves by the error times the gain at the count before the step; it starts at log(16^(-1/4) / 2)
    gains = 1 / (np.r_[0, counts[:-1]] + 1)
    expected = np.log(0.25) + np.cumsum(np.r_[0, gains * (np.array(rates) - TARGET)])
    np.testing.assert_allclose([state.log_sigma for state in found], expected, rtol=1e-5)


def test_what_a_step_returns():
    """The running means from 1/2, the moved chains, the learner that has seen them, the step size that was used."""
    found, infos = states(np.float32([0.9, 0.1]))
    np.testing.assert_allclose(found[2].acceptance_rate, 0.5 + 0.4 / 50 + (0.1 - 0.508) / 50, rtol=1e-6)
    np.testing.assert_array_equal(found[2].position, 2)
    gain = hm.DEFAULT_GAINS.moments
    mean = gain(0) * 1.0
    np.testing.assert_allclose(found[2].scheme.mean, mean + gain(1) * (2 - mean), rtol=1e-6)
    assert found[2].scheme.count == 2
    np.testing.assert_allclose([info.step_size for info in infos], [2.5, 2.5 * np.exp(0.3)], rtol=1e-5)
    np.testing.assert_array_equal(infos[0].acceptance_rate, np.float32([0.9] * 3))
    np.testing.assert_array_equal(infos[0].num_gradients, [7] * 3)
