"""Chains on their way, behind the others, and in modes of no mass: told by their log-densities, without any chain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.adaptation.climbing import (
    Climb,
    Lag,
    are_negligible,
    find_ahead,
    find_behind,
    find_front,
    follow_levels,
    gaps,
    outweigh,
)

# Levels


def test_levels_are_running_means_of_20_steps(dtype):
    levels = follow_levels(jnp.zeros(3, dtype), jnp.array([10.0, -10.0, -1e6]), 5)
    np.testing.assert_allclose(levels, [0.5, -0.5, -5e4], rtol=1e-6)
    assert levels.dtype == dtype


def test_a_rise_beyond_what_draws_differ_by_is_followed_at_once():
    levels = follow_levels(jnp.array([-100.0, -100.0, -1e9]), jnp.array([-85.5, -84.5, -3.0]), 5)
    np.testing.assert_allclose(levels, [-100 + 14.5 / 20, -84.5, -3], rtol=1e-6)


def test_a_level_of_a_start_without_density_is_the_first_that_there_is():
    np.testing.assert_array_equal(follow_levels(jnp.array([-jnp.inf]), jnp.array([-1e8]), 5), [-1e8])


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_levels_do_not_follow_what_is_not_finite(value):
    levels = jnp.array([-7.0, -jnp.inf])
    np.testing.assert_array_equal(follow_levels(levels, jnp.array([value, value]), 5), levels)


def test_log_densities_of_fewer_bits_are_followed_in_the_dtype_of_the_levels():
    assert follow_levels(jnp.zeros(2), jnp.zeros(2, jnp.bfloat16), 5).dtype == jnp.float32


# Who is behind


@pytest.mark.parametrize("num_chains, leading", [(1, 0), (2, 0), (3, 0), (4, 1), (7, 1), (8, 2), (100, 25)])
def test_the_front_is_the_highest_level_but_for_a_quarter(num_chains, leading, dtype, transform):
    levels = np.random.default_rng(0).permutation(num_chains).astype(dtype)
    assert transform(find_front)(jnp.asarray(levels)) == num_chains - 1 - leading


@pytest.mark.parametrize("dim", [1, 5, 1000])
@pytest.mark.parametrize("num_chains", [2, 4, 8])
def test_chains_are_behind_by_more_than_d_and_10(num_chains, dim, transform):
    for gap, expected in ((dim + 9.9, False), (dim + 10.1, True)):
        levels = jnp.full(num_chains, 50.0).at[1].add(-gap)
        is_behind = transform(lambda levels: find_behind(levels, dim))(levels)
        np.testing.assert_array_equal(is_behind, np.arange(num_chains) == (1 if expected else -1))


def test_a_chain_alone_is_never_behind():
    for level in (0.0, -1e30, -jnp.inf):
        assert not find_behind(jnp.array([level]), 5)[0]


def test_a_chain_in_a_narrow_place_of_high_density_does_not_leave_three_others_behind():
    """It is one of four, or two of eight. One of three, or two of four, are ahead."""
    for levels in ([500.0, 0, 1, -1], [500.0, 400, *range(6)]):
        assert not np.any(find_behind(jnp.array(levels), 5))
    for levels in ([500.0, 0, 1], [500.0, 499, 0, 1]):
        np.testing.assert_array_equal(find_behind(jnp.array(levels), 5), np.array(levels) < 100)


def test_levels_that_rounding_cannot_tell_apart_are_equal(dtype):
    """At -1e9 8 units of rounding are 954 in 32 bits and 2e-6 in 64."""
    levels = jnp.asarray([-1e9, -1e9, -1e9 - 500, -1e9 - 2000], dtype)
    np.testing.assert_array_equal(find_behind(levels, 5), [False, False, dtype == jnp.float64, True])


def test_a_chain_without_density_is_behind_those_that_have_one():
    levels = jnp.array([0.0, -jnp.inf, 1.0, 2.0])
    np.testing.assert_array_equal(find_behind(levels, 5), [False, True, False, False])
    assert not np.any(find_behind(jnp.full(4, -jnp.inf), 5))


# How long they have been behind, and whether it is worth waiting


@pytest.mark.parametrize("dim", [1, 5, 1000])
@pytest.mark.parametrize("num_chains", [4, 8])
def test_a_chain_is_ahead_by_more_than_d_and_10(num_chains, dim, transform):
    for gap, expected in ((dim + 9.9, False), (dim + 10.1, True)):
        levels = jnp.full(num_chains, 50.0).at[1].add(gap)
        is_ahead = transform(lambda levels: find_ahead(levels, dim))(levels)
        np.testing.assert_array_equal(is_ahead, np.arange(num_chains) == (1 if expected else -1))


def test_no_chain_is_ahead_of_less_than_three():
    """The highest of three is the front."""
    for levels in ([1e30], [0.0, 1e6], [0.0, 1e6, -50.0], [-jnp.inf] * 4, [-jnp.inf, -jnp.inf, -jnp.inf, 0.0]):
        assert not np.any(find_ahead(jnp.array(levels), 5))


def test_a_level_without_digits_is_behind_and_never_ahead(dtype):
    """Eight units of rounding are more than d + 10, and more than those of the front by so much."""
    least = 15 / (8 * float(jnp.finfo(dtype).eps))
    for sign in (-1, 1):
        few, many = (jnp.array([100.0, 101.0, sign * factor * least, 99.0], dtype) for factor in (1.01, 0.99))
        np.testing.assert_array_equal(find_behind(few, 5), [False, False, True, False])
        np.testing.assert_array_equal(gaps(few, 5), [1, 0, jnp.inf, 2] if sign > 0 else [0, -1, jnp.inf, 1])
        assert not np.any(find_ahead(few, 5)) and np.all(jnp.isfinite(gaps(many, 5)))
        np.testing.assert_array_equal(find_ahead(many, 5), [False, False, sign > 0, False])


def test_chains_that_all_lack_digits_are_compared_as_far_as_they_go(dtype):
    unit = 8 * float(jnp.finfo(dtype).eps)
    levels = jnp.array([-1.0, -1.0, -1.0, -1.0 - 3 * unit], dtype) / unit * 1e4  # each is rounded by 1e4
    np.testing.assert_array_equal(find_behind(levels, 5), [False, False, False, True])
    assert np.all(jnp.isfinite(gaps(levels, 5))) and not np.any(find_ahead(levels, 5))


def test_lag_counts_the_steps_in_a_row_and_starts_again():
    """Chain 0 is behind from step 3 on, chain 1 but for every 40th step, chain 2 never. Positions are the step's."""
    lag, late = Lag.start(jnp.zeros((3, 2)), jnp.zeros(3)), []
    follow = jax.jit(Lag.follow)
    for step in range(120):
        is_behind = jnp.array([step >= 3, step % 40 > 0, False])
        lag, is_late = follow(lag, jnp.full((3, 2), float(step)), jnp.full(3, -float(step)), is_behind)
        np.testing.assert_array_equal(lag.levels, -lag.positions[:, 0])
        late.append(np.asarray(is_late))
        if step == 51:  # where it was before it fell behind, at step 2
            np.testing.assert_array_equal(lag.num_steps, [49, 11, 0])
            np.testing.assert_array_equal(lag.positions[:, 0], [2, 40, 51])
    np.testing.assert_array_equal(np.flatnonzero(np.array(late)[:, 0]), [52, 102])
    assert not np.any(np.array(late)[:, 1:])
    np.testing.assert_array_equal(lag.num_steps, [117, 39, 0])
    np.testing.assert_array_equal(lag.positions[:, 0], [102, 80, 119])


def test_a_chain_is_awaited_until_it_has_been_judged_three_times():
    """With a map that is known: steps before that do not count."""
    for num_steps, is_awaited in ((0, False), (1, True), (150, True), (151, False)):
        lag = Lag(jnp.full(2, num_steps), jnp.zeros((2, 2)), jnp.zeros(2))
        assert lag.are_awaited(jnp.asarray(1000)).tolist() == [is_awaited] * 2
        assert lag.have_stayed.tolist() == [num_steps > 49] * 2
        long_behind = lag._replace(num_steps=jnp.full(2, 1000))
        assert long_behind.are_awaited(jnp.asarray(num_steps)).tolist() == [num_steps < 151] * 2


def moves(width, dim, seed=0):
    """Of a chain between two independent draws of N(0, width^2 I), (1, dim)."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=(1, dim)) * np.sqrt(2) * width, jnp.float32)


def is_negligible(gap, moved, scales):
    return bool(are_negligible(jnp.atleast_1d(jnp.asarray(gap)), moved, hm.Diagonal(scales))[0])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dim", [5, 1000])
def test_a_wide_mode_of_the_same_mass_is_kept_and_a_narrow_one_is_not(dim, scale):
    """A mode a hundred times as wide is lower by d log 100. What is wide is seen in units of the map."""
    scales = jnp.full(dim, scale, jnp.float32)
    gap = dim * np.log(100)
    for seed in range(20):
        assert not is_negligible(gap, scale * moves(100, dim, seed), scales)
        assert is_negligible(gap, scale * moves(1, dim, seed), scales)
        assert is_negligible(gap, scale * moves(1e-4, dim, seed), scales)


@pytest.mark.parametrize("dim", [1, 5, 1000])
@pytest.mark.parametrize("width", [0.01, 1.0, 3.0, 100.0])
def test_a_mode_is_negligible_if_it_is_behind_with_its_volume(width, dim, transform):
    """By more than d + 10 + d log width, where all coordinates have moved by 2^(1/2) widths; not below d + 10."""
    moved = jnp.full((1, dim), np.float32(np.sqrt(2) * width))
    limit = dim + 10 + dim * np.log(max(width, 1))
    gaps = jnp.asarray([limit * 0.999, limit * 1.001], jnp.float32)
    negligible = transform(lambda gaps, moved: are_negligible(gaps, moved, hm.Diagonal(jnp.ones(dim))))(
        gaps, jnp.concatenate([moved, moved])
    )
    np.testing.assert_array_equal(negligible, [False, True])


def test_a_direction_that_the_map_knows_to_be_wide_is_none_of_the_modes_width():
    """The chain moved by 100 along a coordinate of scale 100."""
    moved = jnp.zeros((1, 5)).at[0, 0].set(100.0)
    assert is_negligible(20.0, moved, jnp.ones(5).at[0].set(100.0))
    assert not is_negligible(20.0, moved, jnp.ones(5))


def test_a_chain_that_is_not_finite_or_has_not_moved():
    assert not is_negligible(1e6, jnp.full((1, 3), jnp.nan), jnp.ones(3))
    assert is_negligible(1e6, jnp.zeros((1, 3)), jnp.ones(3)) and not is_negligible(
        12.0, jnp.zeros((1, 3)), jnp.ones(3)
    )


def test_a_way_whose_square_is_no_number_is_judged_by_the_widest_mode_that_counts(dtype):
    """A width of 1e15: d log 1e15 = 173 for d = 5."""
    for length in (1e25, 1e38, jnp.inf):
        moved = jnp.full((1, 5), length, dtype)
        assert is_negligible(1e6, moved, jnp.ones(5, dtype)) and not is_negligible(150.0, moved, jnp.ones(5, dtype))


def test_without_the_inverse_of_a_map_no_mode_is_negligible():
    assert not np.any(are_negligible(jnp.full(2, 1e9), jnp.ones((2, 3)), preconditioner=object()))


def outweighs(gap, moved, risen=0.0, scale=1.0, are_others=(True, True, False)):
    """Whether chain 2 does. moved: of each of three chains, by coordinate."""
    moved = jnp.asarray(moved, jnp.float32)
    gap, risen = jnp.full(3, gap, jnp.float32), jnp.full(3, risen, jnp.float32)
    return bool(outweigh(gap, risen, moved, hm.Diagonal(jnp.full(moved.shape[1], scale)), jnp.array(are_others))[2])


@pytest.mark.parametrize("dim", [1, 5, 1000])
@pytest.mark.parametrize("width", [0.01, 0.3, 1.0, 100.0])
@pytest.mark.parametrize("of_others, scale", [(1.0, 1.0), (1.0, 0.1), (1e-3, 1.0), (1.0, 10.0)])
def test_a_mode_outweighs_the_others_if_it_is_ahead_with_its_volume(width, dim, of_others, scale):
    """A narrower one must be higher by d log(ratio of the widths) more, a wide one by no less than d + 10. The others'
    width is that of the widest of them, and no less than the map's, whatever the map has learnt of the narrow one."""
    moved = np.sqrt(2) * np.array([of_others, of_others / 2, width])[:, None] * np.ones(dim)
    limit = dim + 10 + dim * max(np.log(max(of_others, scale) / width), 0)
    assert not outweighs(limit * 0.999, moved, scale=scale) and outweighs(limit * 1.001, moved, scale=scale)
    assert outweighs(limit * 1.001, moved, dim + 9.9, scale)
    assert not outweighs(limit * 1.001, moved, dim + 10.1, scale)  # it is still climbing


def test_chains_that_are_behind_say_nothing_of_the_others_volume():
    moved = np.array([1.0, 1e6, 1.0])[:, None] * np.ones(5)
    assert outweighs(20.0, moved, are_others=(True, False, False)) and not outweighs(20.0, moved)


def test_what_is_not_known_outweighs_nothing():
    """A chain that has not moved, one that is not finite, and a map without an inverse."""
    assert not outweighs(1e30, np.array([1.0, 1.0, 0.0])[:, None] * np.ones(3))
    assert not outweighs(1e30, np.array([1.0, 1.0, np.nan])[:, None] * np.ones(3))
    moved, one = jnp.ones((1, 3)), jnp.ones(1)
    assert not outweigh(1e30 * one, 0 * one, moved, object(), jnp.array([False]))[0]


# Climbs


def climb(level=0.0, resets_left=0, steps_learnt=50):
    return Climb(jnp.atleast_1d(jnp.asarray(level, float)), jnp.asarray(resets_left), jnp.asarray(steps_learnt))


def watch(state, logdensity, dim=4, count=0, is_early=True, is_behind=False):
    logdensity = jnp.asarray(logdensity, float)
    return state.watch(logdensity, jnp.broadcast_to(is_behind, logdensity.shape), dim, jnp.asarray(count), is_early)


@pytest.mark.parametrize(
    "dim, is_early, limit",
    [
        (100, True, 70),  # 6 sqrt(d) + 10
        (100, False, 110),  # d + 10
        (10_000, True, 610),
        (10_000, False, 10_010),
        (9, True, 19),  # below d = 36 that is less than 6 sqrt(d) + 10
        (9, False, 19),
        (36, True, 46),
    ],
)
def test_a_climb_is_a_rise_beyond_what_draws_differ_by(dim, is_early, limit):
    for rise, expected in ((limit - 0.5, False), (limit + 0.5, True)):
        # of one chain of three, from a level of its own
        start = climb([-1000.0, 0.0, 5.0])
        new, has_begun = watch(start, start.levels + jnp.array([0, rise, -1e6]), dim, is_early=jnp.asarray(is_early))
        assert has_begun == expected
        assert new.resets_left == (10 if expected else 0) and new.steps_learnt == (0 if expected else 51)
        np.testing.assert_allclose(new.levels, [-1000, rise, -999_995] if expected else [-1000, 0, 5])


@pytest.mark.parametrize(
    "count, steps_learnt, expected", [(99, 0, True), (100, 20, False), (100, 21, True), (5000, 20, False)]
)
def test_from_step_100_on_a_climb_waits_for_20_steps_of_learning(count, steps_learnt, expected):
    _, has_begun = watch(climb(steps_learnt=steps_learnt), [1e6], count=count)
    assert has_begun == expected


def test_chains_that_are_behind_climb_without_it():
    """Their levels follow them, so that it is no climb either where they come up to the others."""
    state = climb([0.0, -1e6])
    for step, logdensity in enumerate([-1e5, -1e3, -12.0]):
        state, has_begun = watch(state, [5.0, logdensity], count=step, is_behind=jnp.array([False, True]))
        assert not has_begun and state.steps_learnt == 51 + step
        np.testing.assert_array_equal(state.levels, [0, logdensity])
    state, has_begun = watch(state, [5.0, 1.0], count=3)
    assert not has_begun
    _, has_begun = watch(state, [15.0, 0.0], count=4, is_behind=jnp.array([False, True]))
    assert has_begun  # the others may


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_level_that_is_not_finite_is_replaced_by_the_first_log_density(value):
    """That is no climb, however far it rises; from there on it may become one."""
    start = climb([value, 0.0])
    first, has_begun = watch(start, [-1e5, 3.0])
    assert not has_begun and first.steps_learnt == 51
    np.testing.assert_array_equal(first.levels, [-1e5, 0])
    second, has_begun = watch(first, [-9e4, 3.0], count=1)
    assert has_begun
    np.testing.assert_array_equal(second.levels, [-9e4, 3])


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_log_density_that_is_not_finite_is_no_climb(value):
    _, has_begun = watch(climb(), [value])
    assert not has_begun


def test_a_climb_resets_ten_times_and_then_counts_each_step():
    """It begins at step 3, is at its level at steps 3 to 12, and again begins at step 20."""
    logdensity = np.r_[np.zeros(3), 100 + np.arange(17), np.full(20, 500.0)]
    state, found = climb(steps_learnt=0), []
    for count, value in enumerate(logdensity):
        state, has_begun = watch(state, [value], count=count)
        found.append((bool(has_begun), int(state.resets_left), int(state.steps_learnt), float(state.levels[0])))
    begun, resets_left, steps_learnt, level = map(list, zip(*found, strict=True))
    assert [step for step, begins in enumerate(begun) if begins] == [3, 20]
    assert resets_left == [0] * 3 + [*range(10, 0, -1)] + [0] * 7 + [*range(10, 0, -1)] + [0] * 10
    assert steps_learnt == [1, 2, 3] + [0] * 10 + [*range(1, 8)] + [0] * 10 + [*range(1, 11)]
    assert level == [0] * 3 + [*range(100, 110)] + [109] * 7 + [500] * 20
