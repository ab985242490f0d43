"""The adaptive step in parts: which draws are learnt from, what chains that are behind do, what a step returns.

Kernels whose acceptance rates and log-densities are given stand in for a sampler.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.adaptation import adaptive
from householder_mcmc.adaptation.climbing import Lag
from householder_mcmc.adaptation.samplers import SAMPLERS, Sampler
from householder_mcmc.mcmc.mala import MALAInfo, MALAState

TARGET = 0.6


def chains(num_chains=4, dim=2, bad=(), part="logdensity", value=jnp.nan):
    """Chains at 10, 11, ... in the first coordinate and 0, 1, ... in the others; scores 100 times that."""
    x = jnp.arange(num_chains)[:, None] + jnp.zeros(dim).at[0].set(10.0)
    state = MALAState(x, jnp.zeros(num_chains), 100 * x)
    for chain in bad:
        state = state._replace(**{part: getattr(state, part).at[chain].set(value)})
    return state


@pytest.mark.parametrize("part", MALAState._fields)
@pytest.mark.parametrize(
    "bad, kept", [((), [0, 1, 2, 3]), ((0,), [1, 1, 2, 3]), ((0, 1, 3), [2] * 4), ((3,), [0, 1, 2, 0])]
)
def test_the_first_good_chain_takes_the_place_of_bad_ones(bad, kept, part):
    x, scores = adaptive.good_draws(chains(bad=bad, part=part))
    expected = np.array(kept)[:, None] + np.array([10.0, 0.0])
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(scores, 100 * expected)


def test_chains_that_are_behind_are_replaced_as_bad_ones_are():
    x, scores = adaptive.good_draws(chains(bad=(0,)), jnp.array([False, True, False, True]))
    np.testing.assert_array_equal(x[:, 1], [2, 2, 2, 2])
    np.testing.assert_array_equal(scores, 100 * x)
    x, _ = adaptive.good_draws(chains(), jnp.array([False, True, False, False]))
    np.testing.assert_array_equal(x[:, 1], [0, 0, 2, 3])


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


def given_rates(rng_key, state, rates, step_size, inverse_mass_matrix):
    """A kernel that accepts with the rate that is passed for a log-density, and takes each chain one to the right."""
    moved = state._replace(position=state.position + 1)
    return moved, MALAInfo(jnp.asarray(rates, jnp.float32), jnp.asarray(True), jnp.asarray(False))


def states(rates, gain=lambda count: 1 / (count + 1), **options):
    """The states after steps whose chains accept with these rates, the start first, and the infos."""
    sampler = Sampler(given_rates, MALAState, lambda sigma: 10 * sigma, TARGET, lambda info: jnp.full(3, 7))
    kernel = jax.jit(adaptive.build_kernel(hm.diagonal(), sampler, TARGET, gain, **options))
    x = jnp.zeros((3, 16))
    state = adaptive.init(x, lambda x: -jnp.sum(x**2) / 2, hm.diagonal(), SAMPLERS["mala"], 3)
    found, infos = [state], []
    for rate in rates:
        state, info = kernel(jax.random.key(0), state, rate)
        found.append(state)
        infos.append(info)
    return found, infos


def test_what_a_step_returns():
    """The running means from 1/2, the moved chains, the learner that has seen them, the step size that was used."""
    found, infos = states(np.float32([0.9, 0.1]))
    np.testing.assert_allclose(found[2].acceptance_rate, 0.5 + 0.4 / 50 + (0.1 - 0.508) / 50, rtol=1e-6)
    np.testing.assert_array_equal(found[2].position, 2)
    gain = hm.DEFAULT_GAINS.moments
    mean = gain(0) * 1.0
    np.testing.assert_allclose(found[2].scheme.mean, mean + gain(1) * (2 - mean), rtol=1e-6)
    assert found[2].scheme.count == found[2].num_steps == found[2].climb.steps_learnt == 2
    # log sigma starts at log(16^(-1/4) / 2); it is sought, and moves by the gain of 1 once the target is crossed
    factors = [1, 4**0.75, 4**0.75 * np.exp(-0.5)]
    np.testing.assert_allclose(jnp.exp(jnp.array([state.log_sigma for state in found])), 0.25 * np.array(factors), 1e-5)
    np.testing.assert_allclose([info.step_size for info in infos], 2.5 * np.array(factors[:2]), rtol=1e-5)
    assert [int(state.step_size.count) for state in found] == [0, 0, 1]
    np.testing.assert_array_equal(infos[0].acceptance_rate, np.float32([0.9] * 3))
    np.testing.assert_array_equal(infos[0].num_gradients, [7] * 3)


def test_a_kernel_that_does_not_learn_keeps_the_map_and_follows_the_step_size():
    """It is not sought then: from the first step on it moves by the gain times the error."""
    found, _ = states(np.float32([0.9, 0.8]), is_learning=False)
    chex.assert_trees_all_equal(found[2].scheme, found[0].scheme)
    chex.assert_trees_all_equal(found[2].climb, found[0].climb)
    np.testing.assert_allclose(found[2].log_sigma - found[0].log_sigma, 0.3 + 0.2 / 2, rtol=1e-5)
    assert found[2].step_size.count == found[2].num_steps == 2


# Chains that are behind: of four in d = 5, by more than 15


class Given(NamedTuple):
    """What each chain accepts, and where it is: rates and logdensity (4,), positions (4, 5)."""

    rates: jax.Array
    logdensity: jax.Array
    positions: jax.Array


def given(rates=(0.6,) * 4, logdensity=(0.0,) * 4, spread=1.0):
    """Positions are the numbers of the chains, times the spread."""
    return Given(*map(jnp.asarray, (rates, logdensity)), spread * jnp.arange(4.0)[:, None] * jnp.ones(5))


def given_chains(rng_key, state, given, step_size, inverse_mass_matrix):
    """A kernel whose chains know their number by their score, and keep the step size in the last coordinate."""
    chain = state.logdensity_grad[0].astype(int)
    position = given.positions[chain].at[-1].set(step_size)
    info = MALAInfo(given.rates[chain], jnp.asarray(True), jnp.asarray(False))
    return MALAState(position, given.logdensity[chain], state.logdensity_grad), info


GIVEN = Sampler(given_chains, MALAState, lambda sigma: sigma, TARGET, lambda info: jnp.zeros(4, int))


def run(steps, state=None, scheme=None, **options):
    """The states after steps that are `Given`, from chains at rest at 0 that have learnt for 60 steps."""
    scheme = hm.diagonal() if scheme is None else scheme
    kernel = jax.jit(adaptive.build_kernel(scheme, GIVEN, TARGET, lambda count: 0.1, **options))
    if state is None:
        state = adaptive.init(jnp.zeros((4, 5)), lambda x: 0.0 * x[0], scheme, SAMPLERS["mala"], 4)
        numbers = jnp.arange(4.0)[:, None] * jnp.ones(5)
        state = state._replace(
            chains=state.chains._replace(logdensity_grad=numbers),
            climb=state.climb._replace(steps_learnt=jnp.asarray(60)),
        )
    found = [state]
    for step in steps:
        state, _ = kernel(jax.random.key(0), state, step)
        found.append(state)
    return found


LOW = (0.0, 0.0, 0.0, -400.0)


def behind(rate=0.6, logdensity=-400.0, **options):
    """Chain 3 is at a log-density that is lower than that of the others, and accepts with a rate of its own."""
    return given((0.7, 0.6, 0.5, rate), (0.0, 0.0, 0.0, logdensity), **options)


def test_a_chain_that_is_behind_has_a_step_size_of_its_own():
    """It doubles where all is accepted and halves where nothing is; the others know nothing of it, nor of the rate."""
    # its level is a running mean of 20: at -20 after the first step
    up = run([behind(1.0)] * 3 + [behind(0.0)] * 2)
    factors = jnp.exp(jnp.array([state.log_factors for state in up]))
    np.testing.assert_allclose(factors[:, 3], [1, 2, 4, 8, 4, 2], rtol=1e-5)
    np.testing.assert_array_equal(factors[:, :3], 1)
    used = jnp.array([state.position[:, -1] for state in up[1:]])
    sigma = jnp.exp(jnp.array([state.log_sigma for state in up[:-1]]))
    np.testing.assert_allclose(used, sigma[:, None] * factors[:-1], rtol=1e-5)
    down = run([behind(0.0)] * 5)
    for one, other in zip(up, down, strict=True):
        chex.assert_trees_all_equal(one.step_size, other.step_size)


def test_a_chain_that_is_no_longer_behind_has_the_step_size_of_the_others():
    found = run([behind(1.0)] * 3 + [given()])
    assert found[3].log_factors[3] > 1
    np.testing.assert_array_equal(found[4].log_factors, 0)


def test_a_chain_that_is_behind_teaches_nothing():
    """Not even where it is not finite, or the first one: the learner sees another twice."""
    for spread in (0.0, 1e8, jnp.nan):
        far = behind(spread=1.0)
        far = far._replace(positions=far.positions.at[3].set(spread))
        learnt = run([far] * 3)[-1].scheme
        expected = run([far._replace(positions=far.positions.at[3].set(far.positions[0]))] * 3)[-1].scheme
        np.testing.assert_array_equal(learnt.mean[:-1], expected.mean[:-1])  # the last coordinate is the step size
        np.testing.assert_array_equal(learnt.second[:-1], expected.second[:-1])


@pytest.mark.parametrize("rise", [0.0, 100.0])
def test_a_chain_that_comes_up_to_the_others_does_not_start_the_learner_anew(rise):
    """Step by step, or from far behind in one leap. If all rise it does start anew."""
    ways = {"leap": [LOW] * 3, "climb": [(0, 0, 0, level) for level in (-400.0, -200.0, -100.0, -50.0, -20.0, -12.0)]}
    for way in ways.values():
        before = run([given(logdensity=tuple(map(float, level))) for level in way])
        (after,) = run([given(logdensity=(rise,) * 4)], before[-1])[1:]
        assert before[-1].climb.resets_left == 0
        assert after.climb.resets_left == (10 if rise else 0)
        assert after.climb.steps_learnt == (0 if rise else 61 + len(way))
        assert after.scheme.count == (0 if rise else 1 + len(way))


@pytest.mark.parametrize(
    "options, late, is_moved",
    [
        ({"may_move": True}, 49, True),
        ({"may_move": True}, 48, False),  # it has been behind for 49 steps with this one
        ({"may_move": False}, 49, False),
        ({}, 49, False),
        ({"may_move": True, "is_learning": False}, 49, True),
    ],
)
def test_a_chain_that_has_been_behind_for_50_steps_takes_the_state_of_another(options, late, is_moved):
    state = run([behind()])[-1]
    state = state._replace(lag=state.lag._replace(num_steps=jnp.array([0, 0, 0, late])))
    after = run([behind(1.0, spread=1.0)], state, **options)[-1]
    np.testing.assert_array_equal(after.num_moves, [0, 0, 0, is_moved])
    np.testing.assert_array_equal(after.chains.logdensity, [0, 0, 0, 0 if is_moved else -400])
    np.testing.assert_array_equal(after.chains.logdensity_grad[:, 0], [0, 1, 2, 0 if is_moved else 3])
    np.testing.assert_array_equal(after.position[:, 0], [0, 1, 2, 0 if is_moved else 3])
    assert (after.levels[3] == after.levels[0]) == is_moved
    assert (after.log_factors[3] == 0) == is_moved
    assert after.climb.resets_left == 0
    again = run([given()], after, **options)[-1]
    assert again.climb.resets_left == 0 and again.log_factors[3] == 0


def test_no_chain_is_moved_before_the_map_is_known():
    for steps_learnt, is_moved in ((39, False), (40, True)):
        state = run([behind()])[-1]
        state = state._replace(
            lag=state.lag._replace(num_steps=jnp.array([0, 0, 0, 49])),
            climb=state.climb._replace(steps_learnt=jnp.asarray(steps_learnt)),
        )
        assert run([behind()], state, may_move=True)[-1].num_moves[3] == is_moved


@pytest.mark.parametrize("width, is_moved", [(1.0, True), (1e3, False)])
def test_a_chain_in_a_wide_mode_is_not_moved(width, is_moved):
    """From a level of -30: by d + 10 and d log 1000 the limit is at 50, and at 15 without a width."""
    state = run([behind(logdensity=-30.0)] * 30, scheme=hm.none())[-1]  # until the running mean is there
    away = state.position.at[3].add(np.sqrt(2) * width)
    state = state._replace(lag=state.lag._replace(num_steps=jnp.array([0, 0, 0, 49]), positions=away))
    after = run([behind(logdensity=-30.0)], state, scheme=hm.none(), may_move=True)[-1]
    np.testing.assert_array_equal(after.num_moves, [0, 0, 0, is_moved])


def test_a_chain_goes_to_the_first_that_is_not_behind():
    step = given(logdensity=(-400.0, 0.0, 0.0, 0.0))
    state = run([step])[-1]
    state = state._replace(lag=state.lag._replace(num_steps=jnp.array([49, 0, 0, 0])))
    after = run([step], state, may_move=True)[-1]
    np.testing.assert_array_equal(after.num_moves, [1, 0, 0, 0])
    np.testing.assert_array_equal(after.chains.logdensity_grad[:, 0], [1, 1, 2, 3])


@pytest.mark.parametrize("width, is_outweighed", [(1.0, True), (1e-2, False)])
@pytest.mark.parametrize("lead, may_move", [(49, True), (48, True), (49, False)])
def test_all_go_to_a_chain_whose_mode_outweighs_theirs(width, is_outweighed, lead, may_move):
    """It has been ahead for 50 steps, by 25 nats: more than d + 10, and less than with d log 100. Then all start
    anew."""
    step = given(logdensity=(0.0, 0.0, 25.0, 0.0))
    state = run([step] * 50, scheme=hm.none())[-1]  # until the running mean is there
    begin = state.position + np.sqrt(2)
    begin = begin.at[2].set(state.position[2] + np.sqrt(2) * width)
    state = state._replace(lead=Lag(jnp.full(4, lead), begin, state.levels))
    after = run([step], state, scheme=hm.none(), may_move=may_move)[-1]
    is_moved = is_outweighed and lead == 49 and may_move
    np.testing.assert_array_equal(after.num_moves, [1, 1, 0, 1] if is_moved else [0, 0, 0, 0])
    np.testing.assert_array_equal(after.chains.logdensity, [25.0] * 4 if is_moved else [0, 0, 25, 0])
    assert after.climb.resets_left == (10 if is_moved else 0)


def test_no_chain_goes_to_one_that_was_not_ahead_50_steps_before():
    step = given(logdensity=(0.0, 0.0, 25.0, 0.0))
    state = run([step] * 50, scheme=hm.none())[-1]
    lead = Lag(jnp.full(4, 49), state.position + np.sqrt(2), state.levels.at[2].set(14.0))
    after = run([step], state._replace(lead=lead), scheme=hm.none(), may_move=True)[-1]
    np.testing.assert_array_equal(after.num_moves, 0)
    np.testing.assert_array_equal(after.lead.levels, after.levels)  # the next 50 begin here


def test_a_chain_that_starts_behind_does_not_reach_the_start_of_the_learner():
    x = jnp.ones((4, 5)).at[3].set(1e6)
    state = adaptive.init(x, lambda x: -jnp.sum(x**2), hm.diagonal(), SAMPLERS["mala"], 4)
    np.testing.assert_allclose(state.scheme.mean, 1)
    np.testing.assert_array_equal(state.lag.positions, x)
