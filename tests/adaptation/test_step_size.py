"""The step size is sought, followed, and sought anew: by acceptance rates that are a known function of it.

At a scale r = sigma / s the error of the log-density in a proposal is N(m, 2 m) with m = 2 (r^2 / 4)^2, as of HMC on a
Gaussian in high dimension. Then the acceptance rate is on average 2 Phi(-r^2 / 4), which is 0.8 at r = 1.007.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

from householder_mcmc.adaptation.step_size import StepSize, search_move, start_search, weigh
from householder_mcmc.adaptation.warmup import _learning_gain
from householder_mcmc.learners.gains import STEP_SIZE_GAIN

TARGET = 0.6
LOG_BEST = {0.8: 0.5 * np.log(4 * 0.2533471), 0.574: 0.5 * np.log(4 * 0.5621704)}  # log r where the rate is that


def constant(gain):
    return lambda count: gain


# What a chain's rate counts


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
def test_weights_of_chains(means, bad, dtype):
    """Weight 1, (0.7 target / (mean + 0.01))^2 below 0.7 of the target, 0 if it does not count."""
    is_counted = np.array([chain not in bad for chain in range(4)])
    expected = [max(0.7 * TARGET / (mean + 0.01), 1) ** 2 * good for mean, good in zip(means, is_counted, strict=True)]
    weights = weigh(jnp.asarray(means, dtype), jnp.asarray(is_counted), TARGET)
    assert weights.dtype == dtype
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize("num_others", [3, 1000])
def test_a_stuck_chain_is_not_outvoted(num_others):
    """By a thousand that accept all: its weight is (0.42 / 0.01)^2 = 1764, and log sigma falls.

    While it is sought, it does not weigh so much: log sigma then moves by the plain mean.
    """
    rates = jnp.ones(num_others + 1).at[0].set(0.0)
    weights = weigh(rates, rates < 2, TARGET)
    followed = start_search(jnp.zeros(()))._replace(count=jnp.asarray(5), first_error_sign=jnp.ones(()))
    expected = (num_others * 0.4 - 1764 * 0.6) / (num_others + 1764)
    new = followed.follow(rates - TARGET, weights, TARGET, constant(0.5))
    np.testing.assert_allclose(new.log_sigma, 0.5 * expected, rtol=1e-3)
    sought = start_search(jnp.zeros(())).follow(rates - TARGET, weights, TARGET, constant(0.5))
    mean = (num_others * 0.4 - 0.6) / (num_others + 1)
    np.testing.assert_allclose(sought.log_sigma, np.log(4) * mean / 0.4, rtol=1e-4)


@pytest.mark.parametrize("is_sought", [True, False])
def test_a_chain_of_weight_0_counts_nothing(is_sought):
    """Whatever its rate is; and without any that counts nothing changes but the count of steps."""
    start = start_search(jnp.zeros(()))
    if not is_sought:
        start = start._replace(count=jnp.asarray(5), first_error_sign=jnp.ones(()))
    weights = jnp.array([1.0, 0.0, 1.0])
    few, many = (start.follow(jnp.array([0.3, error, 0.1]), weights, TARGET, constant(0.5)) for error in (-0.6, 0.4))
    chex.assert_trees_all_equal(few, many)
    np.testing.assert_allclose(few.log_sigma, np.log(4) / 2 if is_sought else 0.1, rtol=1e-5)
    none = start.follow(jnp.array([0.3, -0.6, 0.1]), 0 * weights, TARGET, constant(0.5))
    chex.assert_trees_all_equal(none, start._replace(count=start.count + (not is_sought)))


# How it moves


def test_a_search_moves_by_up_to_a_factor_of_four(dtype):
    moves = search_move(jnp.asarray([-0.8, -0.4, 0, 0.1, 0.2], dtype), 0.8)
    assert moves.dtype == dtype
    np.testing.assert_allclose(np.exp(moves), [1 / 4, 1 / 2, 1, 2, 4], rtol=1e-5)


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
    """Before, it is sought: log sigma moves by log 4 times the error in parts of the largest that there can be."""
    state, found = start_search(jnp.zeros(())), []
    for rate in np.float32(rates):
        state = state.follow(jnp.full(3, rate) - np.float32(TARGET), jnp.ones(3), TARGET, lambda t: 1 / (t + 1))
        found.append(state)
    np.testing.assert_array_equal([state.first_error_sign for state in found], signs)
    np.testing.assert_array_equal([state.count for state in found], counts)
    errors, before = np.array(rates) - TARGET, np.r_[0, counts[:-1]]
    moves = np.where(counts, errors / (before + 1), np.log(4) * errors / np.where(errors > 0, 0.4, 0.6))
    np.testing.assert_allclose([state.log_sigma for state in found], np.cumsum(moves), rtol=1e-5, atol=1e-6)


def test_where_it_may_not_be_sought_it_is_followed_from_the_first_step():
    """However far the acceptance is: each move is by the gain."""
    state = start_search(jnp.zeros(()))
    for count in range(100):
        state = state.follow(jnp.full(4, 0.2), jnp.ones(4), 0.8, constant(0.1), may_search=False)
        np.testing.assert_allclose(state.log_sigma, 0.02 * (count + 1), rtol=1e-4)
        assert state.count == count + 1


def test_seek_forgets_all_but_the_step_size():
    state = StepSize(jnp.asarray(-3.0), jnp.asarray(1.0), jnp.asarray(7), jnp.asarray(0.1))
    chex.assert_trees_all_equal(state.seek(jnp.asarray(False)), state)
    chex.assert_trees_all_equal(state.seek(jnp.asarray(True)), start_search(jnp.asarray(-3.0)))


@pytest.mark.parametrize(
    "error, gain, num_chains, after",
    [
        # memories of 10 steps, 1 - 0.9^n; of 8, 1 - 0.875^n; of 32 for one chain; of 100 where the gain is so small
        (-0.79, 0.1, 4, 9),
        (0.2, 0.1, 4, 14),
        (-0.79, 0.5, 4, 8),
        (-0.79, 0.5, 1, 30),
        (-0.79, 0.01, 4, 94),
        (-0.47, 0.1, 4, None),  # 0.6 of the target is 0.48
        (0.149, 0.1, 4, None),  # 0.75 of what is above it is 0.15
    ],
)
def test_a_search_begins_where_the_acceptance_stays_far_from_its_target(error, gain, num_chains, after):
    state = start_search(jnp.zeros(()))._replace(count=jnp.asarray(5), first_error_sign=jnp.ones(()))
    counts = []
    for _ in range(120):
        state = state.follow(jnp.full(num_chains, error), jnp.ones(num_chains), 0.8, constant(gain))
        counts.append(int(state.count))
    begins = next((step + 1 for step, count in enumerate(counts) if count == 0), None)
    assert begins == after


# What it finds


def run(start, shifts, key, *, target=0.8, gain=_learning_gain, num_chains=4, is_random=True, may_search=True):
    """log r at each step, and the counts, from a start at log r. shifts (num_steps,): log s.

    Chains weigh what their running mean of 50 rates says.
    """
    dtype = jnp.result_type(float)
    shifts = jnp.asarray(shifts, dtype)

    def one_step(carry, inputs):
        state, means = carry
        shift, key = inputs
        phi = jnp.minimum(jnp.exp(2 * (state.log_sigma - shift)) / 4, 1e4)
        errors = 2 * phi**2 + 2 * phi * jax.random.normal(key, (num_chains,), dtype)
        rates = jnp.exp(-jnp.maximum(errors, 0)) if is_random else jnp.full(num_chains, 2 * norm.cdf(-phi))
        weights = weigh(means, jnp.ones(num_chains, bool), target)
        state = state.follow(rates - target, weights, target, gain, may_search)
        return (state, means + (rates - means) / 50), (state.log_sigma - shift, state.count)

    carry = start_search(jnp.asarray(start, dtype)), jnp.full(num_chains, 0.5, dtype)
    return jax.lax.scan(one_step, carry, (shifts, jax.random.split(key, len(shifts))))[1]


def runs(starts, shifts, num_runs=20, **options):
    """As `run`, from many starts (n,) with shifts (n, num_steps), of many seeds each: (n, num_runs, num_steps)."""
    keys = jax.random.split(jax.random.key(0), num_runs)
    many = jax.vmap(lambda start, shifts: jax.vmap(lambda key: run(start, shifts, key, **options))(keys))
    return jax.jit(many)(jnp.asarray(starts), jnp.asarray(shifts))


@pytest.mark.parametrize("is_random", [False, True])
@pytest.mark.parametrize("target", [0.8, 0.574])
def test_a_search_finds_the_step_size_in_30_steps(target, is_random, dtype):
    """To a factor of 1.5, which is six standard deviations of what 500 seeds find, or more."""
    del dtype
    starts = np.log([1e-6, 1e-2, 1, 1e3, 1e6])
    found, _ = runs(starts, np.zeros((5, 60)), target=target, is_random=is_random)
    assert found.shape == (5, 20, 60) and np.all(np.abs(found[..., 29:] - LOG_BEST[target]) < np.log(1.5))


@pytest.mark.parametrize("is_random, num_steps", [(False, 30), (True, 35)])
def test_after_a_change_of_the_map_the_step_size_is_found_anew(is_random, num_steps, dtype):
    """Where it then is too large by 1e5, or too small by 30 or 1e5.

    In 30 steps, of random rates in 35: the acceptance is seen to be far from its target after about 10.
    """
    del dtype
    shifts = np.log([[1e-5], [30], [1e5]]) * np.repeat([0, 1], [200, 100])
    found, counts = runs(np.zeros(3), shifts, is_random=is_random)
    off = np.abs(found - LOG_BEST[0.8])
    assert np.all(off[..., 30:200] < np.log(1.5)) and np.all(off[..., 199 + num_steps :] < np.log(1.5))
    assert np.all(counts[..., 199] > 150) and np.all(np.min(counts[..., 200:], axis=-1) == 0)


@pytest.mark.parametrize("name, gain", [("floor", _learning_gain), ("decay", STEP_SIZE_GAIN)])
@pytest.mark.parametrize("num_chains", [1, 2, 4])
def test_searches_are_rare_in_equilibrium(name, gain, num_chains):
    """In 20,000 steps none; what is found stays where it should be."""
    found, counts = runs([0.0], np.zeros((1, 20_000)), gain=gain, num_chains=num_chains, num_runs=4)
    is_new = (counts[..., 1:] == 0) & (counts[..., :-1] > 0)
    assert np.sum(is_new) == 0
    spread = np.std(found[..., 1000:])
    assert abs(np.mean(found[..., 1000:]) - LOG_BEST[0.8]) < 0.02 and spread < (0.12 if name == "floor" else 0.03)


def test_with_gains_that_decay_searches_end():
    """A change after 10,000 steps, where the gain is 0.0016, is sought after hundreds; at a floor of 0.1 after ten."""
    shifts = np.repeat([0, np.log(1e5)], [10_000, 300])
    for gain, expected in ((STEP_SIZE_GAIN, False), (_learning_gain, True)):
        _, counts = run(0.0, shifts, jax.random.key(1), gain=gain)
        assert np.any(counts[10_000:] == 0) == expected


def test_no_search_where_there_may_be_none():
    found, counts = run(0.0, np.repeat([0, np.log(1e5)], [200, 300]), jax.random.key(1), may_search=False)
    np.testing.assert_array_equal(counts, np.arange(1, 501))
    assert np.max(np.abs(np.diff(found - np.repeat([0, -np.log(1e5)], [200, 300])))) < 0.6


def test_log_sigma_does_not_fall_without_end(dtype):
    """Where nothing is accepted it stops at 2 log eps; and it comes back in 40 steps once all is."""

    def one_step(state, error):
        state = state.follow(jnp.full(4, error), jnp.ones(4, dtype), 0.8, _learning_gain)
        return state, state

    _, found = jax.lax.scan(one_step, start_search(jnp.zeros((), dtype)), jnp.repeat(jnp.array([-0.8, 0.2]), 70))
    lowest = 2 * np.log(jnp.finfo(dtype).eps)
    assert np.all(np.isfinite(found.log_sigma)) and found.log_sigma.dtype == dtype
    np.testing.assert_allclose(found.log_sigma[69], lowest, rtol=1e-6)
    assert found.log_sigma[119] > lowest + 20 * np.log(4)


def test_the_longest_step_is_kept_and_not_sought_beyond(dtype):
    """All is accepted there. Then it can still fall, and without a longest one it would have grown."""
    for longest, expected in ((1.96, 1.96), (np.inf, 1e3)):
        step_size = start_search(jnp.asarray(0.0, dtype))
        for _ in range(100):
            step_size = step_size.follow(jnp.full(4, 0.2), jnp.ones(4), 0.8, constant(0.1), longest=longest)
        assert (jnp.exp(step_size.log_sigma) > expected) if longest > 2 else step_size.count > 90
        if longest < 2:
            np.testing.assert_allclose(jnp.exp(step_size.log_sigma), expected, rtol=1e-6)
            assert step_size.log_sigma.dtype == dtype
            fallen = step_size.follow(jnp.full(4, -0.3), jnp.ones(4), 0.8, constant(0.1), longest=longest)
            np.testing.assert_allclose(fallen.log_sigma, np.log(1.96) - 0.03, rtol=1e-4)


def test_jit_and_vmap_change_nothing(transform):
    def follow(state, errors, weights):
        return state.follow(errors, weights, 0.8, _learning_gain)

    rng = np.random.default_rng(0)
    errors, weights = rng.uniform(-0.8, 0.2, (2, 4)).astype(np.float32)
    for count in (0, 5):
        state = StepSize(jnp.asarray(-1.0), jnp.asarray(1.0), jnp.asarray(count), jnp.asarray(0.1))
        inputs = state, errors, weights**2
        chex.assert_trees_all_close(transform(follow)(*inputs), follow(*inputs), rtol=1e-5)


def test_a_step_size_of_32_bits_stays_so_where_x64_is_on(x64):
    state = start_search(jnp.zeros((), jnp.float32))
    for error in (0.1, -0.1, -0.1):
        errors = jnp.full(4, error, jnp.float32)
        new = state.follow(errors, jnp.ones_like(errors), 0.8, STEP_SIZE_GAIN)
        chex.assert_trees_all_equal_shapes_and_dtypes(new, state)
        state = new
