"""Adapt, then freeze."""

import blackjax
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from targets import skewed_logdensity

import householder_mcmc as hm
from householder_mcmc.adaptation import adaptive
from householder_mcmc.adaptation.samplers import SAMPLERS
from householder_mcmc.adaptation.warmup import _learning_gain, _one_step, _start
from householder_mcmc.mcmc.chains import run_chains

DIM, NUM_CHAINS = 5, 4


def starts(dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(0).normal(size=(NUM_CHAINS, DIM)), dtype)


def sample(logdensity, state, parameters, num_draws, sampler, seed=3):
    """Acceptance rates (num_draws, NUM_CHAINS)."""
    kernel = sampler(logdensity, **parameters)

    def run(state):
        return run_chains(kernel.step, jax.random.key(seed), state, num_draws, lambda _, info: info.acceptance_rate)[1]

    return jax.jit(run)(state)


@pytest.mark.parametrize("sampler, dtype", [("mala", "float32"), ("hmc", "float64")], indirect=["dtype"])
def test_tunes_the_sampler_and_counts_its_gradients(sampler, dtype):
    """To an acceptance of 0.8; MALA's longest step has one of 0.69 here."""
    target = 0.8
    warmup = hm.warmup(
        skewed_logdensity,
        hm.two_ended(2),
        NUM_CHAINS,
        sampler=sampler,
        target_acceptance_rate=target,
        keep=lambda state, info: info.num_gradients,
    )
    (state, parameters), info = warmup.run(jax.random.key(0), starts(dtype), num_steps=1000)
    assert isinstance(warmup, blackjax.base.AdaptationAlgorithm)
    assert set(parameters) == {"step_size", "inverse_mass_matrix", "center"}
    assert parameters["step_size"].dtype == state.position.dtype == dtype
    chex.assert_tree_all_finite((state, parameters, info))
    # 2000 x 4 acceptances of a skewed target: their mean has standard error below 0.01; the rest is the step size's
    acceptance = sample(skewed_logdensity, state, parameters, 2000, sampler=getattr(hm, sampler))
    assert abs(acceptance.mean() - target) < 0.05
    times = np.linspace(0.75, 1.25, 1000) * np.pi / 2
    per_step = 1 if sampler == "mala" else np.ceil(times / float(parameters["step_size"])).mean()
    of_last_phase = info.num_gradients - info.history.sum(axis=0)
    assert jnp.all(jnp.abs(of_last_phase / 100 - per_step) <= (0 if sampler == "mala" else 0.5))


def test_the_center_is_returned_where_one_gaussian_fits():
    """Of the form of a position; a scheme that has none gives none."""

    def logdensity(position):
        return -0.5 * jnp.sum((position["a"] - 3) ** 2) - 0.5 * jnp.sum(((position["b"] + 1) / 10) ** 2)

    positions = {"a": starts()[:, :2], "b": starts()[:, 2:].reshape(NUM_CHAINS, -1, 1)}
    (_, parameters), info = hm.warmup(logdensity, hm.two_ended(), NUM_CHAINS).run(jax.random.key(0), positions, 300)
    center = parameters["center"]
    chex.assert_trees_all_equal_shapes(center, jax.tree.map(lambda leaf: leaf[0], positions))
    np.testing.assert_allclose(center["a"], 3, atol=0.2)
    np.testing.assert_allclose(center["b"], -1, atol=2)
    assert parameters["step_size"] <= 1.97 and np.all(info.acceptance_rate > 0.8)
    (_, without), _ = hm.warmup(logdensity, hm.diagonal(), NUM_CHAINS).run(jax.random.key(0), positions, 20)
    assert "center" not in without


def test_a_walk_along_a_flat_direction_uses_up_no_digits(dtype):
    """Nothing depends on the sum of all coordinates: there is no center, and steps do not shrink to nothing."""
    positions = jax.random.normal(jax.random.key(0), (NUM_CHAINS, 10), dtype)
    warmup = hm.warmup(lambda x: -0.5 * jnp.sum(jnp.diff(x) ** 2), hm.two_ended(), NUM_CHAINS)
    (state, parameters), _ = warmup.run(jax.random.key(0), positions, 600)
    assert not jnp.any(jnp.isfinite(parameters["center"])) and parameters["step_size"] > (
        0.3 if dtype == "float32" else 0.03
    )
    assert jnp.abs(state.position).max() < 1e-2 / jnp.finfo(dtype).eps


def test_another_sampler_begins_with_a_step_size_that_it_can_use():
    """From the 1.96 of trajectories that solve this Gaussian, ten steps of the last phase would not lead to MALA's."""
    keys = jax.random.split(jax.random.key(0), 2)
    positions = jax.random.normal(keys[0], (NUM_CHAINS, 1000))
    without_center = SAMPLERS["mala"]._replace(longest_sigma=None)
    warmup = hm.warmup(lambda x: -0.5 * jnp.sum(x**2), hm.two_ended(2), NUM_CHAINS, sampler=without_center)
    (_, parameters), info = warmup.run(keys[1], positions, 100)
    assert np.all(info.acceptance_rate > 0.3) and 0.02 < parameters["step_size"] < 0.3


def test_keeps_nothing_by_default():
    _, info = hm.warmup(skewed_logdensity, hm.eigen(2), NUM_CHAINS).run(jax.random.key(0), starts(), 20)
    assert info.history is None


def test_trajectories_grow_while_the_map_is_learnt():
    """By a step at every 8th transition from where the acceptance crosses its target on, up to a quarter period."""
    warmup = hm.warmup(
        lambda x: -0.5 * jnp.sum(x**2),
        hm.none(),
        NUM_CHAINS,
        target_acceptance_rate=0.99,
        keep=lambda state, info: (state.step_size.count, info.num_gradients, info.step_size),
    )
    _, info = warmup.run(jax.random.key(0), starts(), num_steps=400)
    count, num_gradients, step_size = info.history
    most = 1 + np.append(0, count[:-1]) // 8
    shortest, longest = (np.round(part * np.pi / 2 / np.asarray(step_size)) for part in (0.75, 1.25))
    assert np.all(num_gradients <= np.minimum(most, longest)[:, None])
    assert np.all(num_gradients >= np.minimum(most, shortest)[:, None]) and shortest.min() > 1
    assert count[-1] > 300 and np.any(num_gradients[-100:] > longest[-100:, None] - 2)


def test_far_starts_of_unscaled_coordinates(dtype):
    """A logistic regression whose coefficients have sizes from 1e-3 to 1e3, from starts of size 1.

    Chains start thousands of standard deviations away in some, and at nearly one point in others. Without learning on
    the way the step size ends at 0.001.
    """
    rng = np.random.default_rng(0)
    features = rng.normal(size=(150, 25)) / np.logspace(-3, 3, 25)
    features[:, 1] += features[:, 0] * np.std(features[:, 1]) / np.std(features[:, 0])
    labels = jnp.asarray(rng.random(150) < 0.5, dtype)
    precision = jnp.asarray(np.logspace(3, -3, 25), dtype)
    features = jnp.asarray(features, dtype)

    def logdensity(x):
        logits = jnp.matmul(features, x, precision="highest")
        return jnp.sum(labels * logits - jnp.logaddexp(0, logits)) - jnp.sum((precision * x) ** 2) / 8

    positions = jax.random.uniform(jax.random.key(1), (4, 25), dtype, -2, 2)
    (state, parameters), info = hm.warmup(logdensity, hm.two_ended()).run(jax.random.key(2), positions, 1000)
    assert parameters["step_size"] > 0.3
    assert 450 < info.num_learnt <= 900
    assert jnp.ptp(state.logdensity) < 30


@pytest.mark.parametrize("size, num_steps, low, high", [(1, 100, 90, 90), (1e4, 20, 1, 9), (1e4, 300, 100, 260)])
def test_num_learnt_is_the_number_of_updates_since_the_last_start(size, num_steps, low, high):
    """A start in equilibrium is the only one; a warm-up that is too short ends on its way; one that is long enough has
    some steps left. The learner's own count says how many."""
    warmup = hm.warmup(lambda x: -jnp.sum(x**2) / 2, hm.diagonal(), keep=lambda state, info: state.scheme.count)
    near = jax.random.normal(jax.random.key(0), (4, 5))
    near *= 2 / jnp.linalg.norm(near, axis=1, keepdims=True)  # log-densities are alike: no chain arrives before
    _, info = warmup.run(jax.random.key(1), size * near, num_steps)
    assert info.num_learnt == info.history[-1]
    assert low <= info.num_learnt <= high


def test_the_gain_of_the_step_size_has_a_floor_while_the_map_is_learnt():
    """(t + 2)^(-0.7) at first; 0.1 from t = 25 on, so that the step size follows the map."""
    gains = [_learning_gain(count) for count in (0, 8, 24, 25, 1000, 10**6)]
    np.testing.assert_allclose(gains, [2**-0.7, 10**-0.7, 26**-0.7, 0.1, 0.1, 0.1], rtol=1e-6)


NUM_LEARNING = 400


@jax.jit
def one_step(key, state):
    """A step of a warm-up of 400 steps of learning, and some of tuning, on N(0, 100 I)."""
    return _one_step(key, state, wide, hm.none(), SAMPLERS["hmc"], 0.8)[0]


def wide(x):
    return -jnp.sum(x**2) / 200


def made_state(num_steps, rise=0.0, x=None, **step_size):
    """After some steps, at a log-density that is higher by `rise` than where the learner last started."""
    start = adaptive.init(starts() if x is None else x, wide, hm.none(), SAMPLERS["hmc"], NUM_CHAINS)
    state = _start(start, NUM_LEARNING)
    learnt = state.adaptive
    fields = {name: jnp.asarray(value, getattr(learnt.step_size, name).dtype) for name, value in step_size.items()}
    learnt = learnt._replace(
        step_size=learnt.step_size._replace(**fields),
        climb=learnt.climb._replace(levels=learnt.climb.levels - rise, steps_learnt=jnp.asarray(num_steps, jnp.int32)),
        num_steps=jnp.asarray(num_steps, jnp.int32),
    )
    return state._replace(adaptive=learnt, count=jnp.asarray(num_steps, jnp.int32))


@pytest.mark.parametrize("rise", [0.0, 1000.0])
def test_where_a_climb_begins_the_step_size_is_sought_anew(rise):
    """The side of the acceptance and the count of its gain start again, as the learner does."""
    new = one_step(jax.random.key(0), made_state(250, rise, first_error_sign=1, count=77))
    learnt = new.adaptive
    assert (learnt.step_size.first_error_sign, learnt.step_size.count) == ((0, 0) if rise else (1, 78))
    assert (learnt.climb.resets_left, learnt.climb.steps_learnt) == ((10, 0) if rise else (0, 251))
    assert new.count == learnt.num_steps == 251


@pytest.mark.parametrize(
    "count, rise, is_reset",
    [(199, 69.0, False), (199, 71.0, True), (200, 71.0, False), (200, 109.0, False), (200, 111.0, True)],
)
def test_a_climb_is_a_smaller_rise_in_the_first_half(count, rise, is_reset):
    """In d = 100 of 70, then of 110. Chains stay where they are, because their steps are so long."""
    x = jnp.ones((NUM_CHAINS, 100))
    new = one_step(jax.random.key(0), made_state(count, rise, x, log_sigma=20.0)).adaptive
    np.testing.assert_array_equal(new.position, x)
    assert (new.climb.resets_left > 0) == is_reset


def test_no_climb_and_no_search_begin_in_the_last_phase():
    before = made_state(NUM_LEARNING + 5, 1000.0, log_sigma=20.0, count=77, recent_error=-0.8)
    after = one_step(jax.random.key(0), before)
    chex.assert_trees_all_equal(after.adaptive.climb, before.adaptive.climb)
    assert after.adaptive.step_size.count == 78
    in_time = one_step(jax.random.key(0), made_state(250, log_sigma=20.0, count=77, recent_error=-0.8))
    assert in_time.adaptive.step_size.count == 0


@pytest.mark.parametrize(
    "count, is_moved", [(NUM_LEARNING - 1, True), (NUM_LEARNING, False), (NUM_LEARNING + 5, False)]
)
def test_no_chain_is_moved_in_the_last_phase(count, is_moved):
    """One that has been far below the others for 49 steps."""
    state = made_state(count)
    learnt, far = state.adaptive, jnp.zeros((NUM_CHAINS, DIM)).at[2].set(1e4)
    position = learnt.position + far
    learnt = learnt._replace(
        chains=SAMPLERS["hmc"].state(position, jax.vmap(wide)(position), jax.vmap(jax.grad(wide))(position)),
        levels=jax.vmap(wide)(position),
        lag=learnt.lag._replace(num_steps=jnp.array([0, 0, 49, 0]), positions=position),
    )
    after = one_step(jax.random.key(0), state._replace(adaptive=learnt)).adaptive
    np.testing.assert_array_equal(after.num_moves, [0, 0, is_moved, 0])
    assert np.all(after.position[2] == after.position[0]) == is_moved
    assert (after.position[2, 0] > 1e3) != is_moved


def test_no_step_repeats_the_random_numbers_of_another():
    """The first two steps of both phases from one state. Trajectories have one step in both, because it is so long, and
    nearly all are accepted: with the same key they would end at the same point."""
    ends = []
    for count in (0, 1, NUM_LEARNING, NUM_LEARNING + 1):
        state = made_state(count, log_sigma=np.log(1.98))
        chains = one_step(jax.random.key(0), state).adaptive.chains
        again = one_step(jax.random.key(0), state).adaptive.chains
        np.testing.assert_array_equal(chains.position, again.position)
        ends.append(np.asarray(chains.position))
    has_moved = [np.any(end != starts(), axis=1) for end in ends]
    for i in range(4):
        for j in range(i):
            both = has_moved[i] & has_moved[j]
            assert both.sum() > 1 and np.all(np.abs(ends[i] - ends[j])[both] > 1e-6)


def test_unknown_sampler_or_impossible_target():
    for sampler, error, got in (("nuts", ValueError, "'nuts'"), (hm.hmc, TypeError, "SamplingAPI")):
        with pytest.raises(error, match=f"sampler must be one of .'hmc', 'mala'. or a Sampler, got {got}"):
            hm.warmup(skewed_logdensity, hm.none(), NUM_CHAINS, sampler=sampler)
    for rate in (80, 0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="target_acceptance_rate must be between 0 and 1, got"):
            hm.warmup(skewed_logdensity, hm.none(), NUM_CHAINS, target_acceptance_rate=rate)
        with pytest.raises(ValueError, match="target_acceptance_rate must be between 0 and 1, got"):
            hm.adaptive_mala(skewed_logdensity, hm.none(), NUM_CHAINS, target_acceptance_rate=rate)


def test_the_last_phase_keeps_the_map():
    """The map returned is that of the last learning step, the 45th, and the same whatever the sampler."""
    scheme, maps = hm.diagonal(), []
    for sampler in ("hmc", "mala"):
        warmup = hm.warmup(
            skewed_logdensity, scheme, NUM_CHAINS, sampler=sampler, keep=lambda state, info: state.scheme
        )
        (_, parameters), info = warmup.run(jax.random.key(0), starts(), 50)
        assert len(info.history.count) == 45
        last = jax.tree.map(lambda leaf: leaf[-1], info.history)
        chex.assert_trees_all_equal(parameters["inverse_mass_matrix"], scheme.preconditioner(last))
        maps.append(parameters["inverse_mass_matrix"])
    chex.assert_trees_all_close(*maps, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sampler, target", [("mala", 0.75), ("hmc", 0.65)])
def test_a_target_of_ones_own(sampler, target):
    warmup = hm.warmup(skewed_logdensity, hm.diagonal(), NUM_CHAINS, sampler=sampler, target_acceptance_rate=target)
    (state, parameters), _ = warmup.run(jax.random.key(0), starts(), num_steps=1000)
    acceptance = sample(skewed_logdensity, state, parameters, 2000, sampler=getattr(hm, sampler))
    assert abs(acceptance.mean() - target) < 0.05  # as in the test above


@pytest.mark.parametrize(
    "num_steps, sampler", [(0, "hmc"), (1, "mala"), (2, "hmc"), (9, "mala"), (10, "mala"), (10, "hmc")]
)
def test_short_warmups(num_steps, sampler):
    warmup = hm.warmup(skewed_logdensity, hm.eigen(2), NUM_CHAINS, sampler=sampler)
    (state, parameters), info = warmup.run(jax.random.key(0), starts(), num_steps)
    chex.assert_tree_all_finite((state, parameters))
    assert jnp.all(jnp.isnan(info.acceptance_rate)) == (num_steps < 10)
    if num_steps == 0:
        np.testing.assert_array_equal(state.position, starts())


def test_keeps_what_is_asked():
    warmup = hm.warmup(
        skewed_logdensity, hm.diagonal(), NUM_CHAINS, keep=lambda state, info: (state.position, info.step_size)
    )
    _, info = warmup.run(jax.random.key(0), starts(), 30)
    positions, step_sizes = info.history
    assert positions.shape == (27, NUM_CHAINS, DIM) and step_sizes.shape == (27,)


def test_memory_does_not_grow_with_the_number_of_steps():
    """Of the compiled warm-up: temporary memory and outputs at 20,000 steps are those at 200."""
    warmup = hm.warmup(skewed_logdensity, hm.diagonal(), NUM_CHAINS)

    def bytes_used(num_steps):
        run = jax.jit(lambda key, positions: warmup.run(key, positions, num_steps))
        memory = run.lower(jax.random.key(0), starts()).compile().memory_analysis()
        return memory.temp_size_in_bytes, memory.output_size_in_bytes

    assert bytes_used(20_000) == bytes_used(200)


@pytest.mark.parametrize("sampler, target", [("mala", 0.574), ("hmc", 0.8)])
@pytest.mark.parametrize("num_steps", [20, 80, 400, 2000])
def test_step_size_works_after_any_warmup(num_steps, sampler, target):
    """Frozen acceptance on a Gaussian, d = 20. Few steps can only come near; many must hit the target.

    HMC's step size is that of the learning phase. MALA's comes from there with an acceptance of 0.8, and few steps of
    tuning leave some of that. The bounds are two to four times the standard deviation of 12 seeds above their mean.
    """
    x = jnp.asarray(np.random.default_rng(1).normal(size=(NUM_CHAINS, 20)), jnp.float32)

    def logdensity(x):
        return -0.5 * jnp.sum(x**2)

    warmup = hm.warmup(logdensity, hm.none(), NUM_CHAINS, sampler=sampler)
    (state, parameters), _ = warmup.run(jax.random.key(0), x, num_steps)
    acceptance = sample(logdensity, state, parameters, 1000, sampler=getattr(hm, sampler)).mean()
    mala, hmc = {20: (0.28, 0.08), 80: (0.19, 0.07), 400: (0.06, 0.05), 2000: (0.03, 0.03)}[num_steps]
    assert abs(acceptance - target) < (mala if sampler == "mala" else hmc)


def test_counts_nonfinite_proposals_by_chain():
    def logdensity(x):
        return jnp.where(jnp.sum(x**2) < 1, 0.0, jnp.nan) - 0.5 * jnp.sum(x**2)

    _, info = hm.warmup(logdensity, hm.none(), NUM_CHAINS).run(jax.random.key(0), jnp.zeros((NUM_CHAINS, DIM)), 300)
    assert info.num_nonfinite.shape == (NUM_CHAINS,) and jnp.all(info.num_nonfinite > 0)


def test_compiles_once_and_runs_under_jit_and_vmap(caplog):
    traces = []

    def logdensity(x):
        traces.append(1)
        return skewed_logdensity(x)

    warmup = hm.warmup(logdensity, hm.diagonal(), NUM_CHAINS)
    once, _ = warmup.run(jax.random.key(0), starts(), 20)
    before = len(traces)
    with jax.log_compiles():
        warmup.run(jax.random.key(1), starts(), 20)
    assert len(traces) == before
    assert not [record for record in caplog.records if record.getMessage().startswith("Compiling")]
    keys = jnp.stack([jax.random.key(0), jax.random.key(1)])
    many, _ = jax.jit(jax.vmap(lambda key, x: warmup.run(key, x, 20)))(keys, jnp.stack([starts(), starts()]))
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[0], many), once, rtol=1e-3, atol=1e-4)


def test_starts_of_numpy():
    positions = {"a": np.ones((NUM_CHAINS, 2)), "b": np.zeros(NUM_CHAINS, np.float32)}
    warmup = hm.warmup(lambda p: -jnp.sum(p["a"] ** 2) - p["b"] ** 2, hm.two_ended(), NUM_CHAINS)
    (state, _), _ = warmup.run(jax.random.key(0), positions, 20)
    chex.assert_trees_all_equal_shapes_and_dtypes(state.position, jax.tree.map(jnp.asarray, positions))


@pytest.mark.parametrize("sampler", ["hmc", "mala"])
def test_a_logdensity_of_fewer_bits(sampler):
    warmup = hm.warmup(lambda x: -jnp.sum(x.astype(jnp.bfloat16) ** 2), hm.diagonal(), NUM_CHAINS, sampler=sampler)
    (state, _), info = warmup.run(jax.random.key(0), starts(), 20)
    assert state.logdensity.dtype == jnp.bfloat16 and info.acceptance_rate.dtype == jnp.float32


def test_a_number_of_steps_that_is_no_integer():
    with pytest.raises(TypeError, match="num_steps must be an integer, got"):
        hm.warmup(lambda x: -jnp.sum(x**2), hm.diagonal()).run(jax.random.key(0), jnp.zeros((4, 2)), 1e3)


def test_negative_number_of_steps():
    with pytest.raises(ValueError, match="num_steps must be at least 0, got -1"):
        hm.warmup(skewed_logdensity, hm.none(), NUM_CHAINS).run(jax.random.key(0), starts(), -1)


def test_a_sampler_of_the_users_own(dtype):
    """HMC under another name, which the warm-up does not take for its own learner: the same numbers."""
    own = SAMPLERS["hmc"]._replace(num_gradients=lambda info: info.num_integration_steps)
    results = [
        hm.warmup(skewed_logdensity, hm.diagonal(), NUM_CHAINS, sampler=sampler).run(
            jax.random.key(0), starts(dtype), 40
        )
        for sampler in ("hmc", own)
    ]
    chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-5)


# Modes. Two chains start in each of two, or one of four in the lower one


def modes(log_heights, means, sds):
    """Of normal distributions in d = 5 that have these heights."""

    def logdensity(x):
        parts = [
            height - jnp.sum(((x - mean) / sd) ** 2) / 2
            for height, mean, sd in zip(log_heights, means, sds, strict=True)
        ]
        return jax.nn.logsumexp(jnp.stack(parts))

    return logdensity


def warm_up_in_modes(logdensity, in_second, mean, sd, num_steps=600):
    """The states of the warm-up at each step, and what it returns; in_second: which chains start in the second mode."""
    x = starts()
    x = x.at[jnp.asarray(in_second)].set(mean + sd * x[jnp.asarray(in_second)])

    def keep(state, info):
        return {
            "num_moves": state.num_moves,
            "position": state.position[:, 0],
            "log_factors": state.log_factors,
            "acceptance_rate": info.acceptance_rate,
        }

    warmup = hm.warmup(logdensity, hm.two_ended(), NUM_CHAINS, keep=keep)
    (state, parameters), info = warmup.run(jax.random.key(2), x, num_steps)
    assert 0.3 < parameters["step_size"] < 3
    return state, parameters, info


@pytest.mark.parametrize(
    "in_second, sd, log_height",
    [((2, 3), 1.0, 0.0), ((0,), 1.0, -5.0), ((2, 3), 100.0, -5 * np.log(100)), ((0,), 100.0, -5 * np.log(100))],
)
def test_no_chain_leaves_a_mode_that_holds_mass(in_second, sd, log_height):
    """Of the same height or 150 times lower; or lower by 5 log 100 = 23, and so wide that it holds as much."""
    mean = 2000.0
    logdensity = modes((0.0, log_height), (0.0, mean), (1.0, sd))
    state, _, info = warm_up_in_modes(logdensity, in_second, mean, sd)
    is_in_second = np.isin(np.arange(4), in_second)
    np.testing.assert_array_equal(info.history["num_moves"], 0)
    np.testing.assert_array_equal(state.position[:, 0] > 1000, is_in_second)
    np.testing.assert_array_equal(info.history["position"] > 1000, np.tile(is_in_second, (540, 1)))
    np.testing.assert_array_equal(info.is_behind, is_in_second & (sd > 1))
    np.testing.assert_allclose(info.acceptance_rate, 0.8, atol=0.2) if sd == 1 else None


@pytest.mark.parametrize("sd, log_height", [(1.0, -1e6), (0.01, -1e6), (0.01, -40.0)])
def test_a_chain_in_a_mode_without_mass_is_moved_once(sd, log_height):
    """After 50 steps behind and 50 of learning. Nothing is learnt from where it was."""
    mean = 2000.0
    logdensity = modes((0.0, log_height), (0.0, mean), (1.0, sd))
    state, parameters, info = warm_up_in_modes(logdensity, (1,), mean, sd)
    np.testing.assert_array_equal(info.history["num_moves"][-1], [0, 1, 0, 0])
    step = int(np.argmax(info.history["num_moves"][:, 1]))
    assert 49 <= step <= 150 and info.history["position"][step, 1] == info.history["position"][step, 0]
    assert np.all(np.abs(state.position) < 10) and not np.any(info.is_behind)
    assert info.num_learnt == 540
    np.testing.assert_allclose(jnp.diag(parameters["inverse_mass_matrix"].to_dense()), 1, atol=0.3)


def test_a_chain_that_hangs_on_a_plateau_is_moved():
    """10^6 below the others there is no gradient, as far as it may go: it does not find back."""

    def logdensity(x):
        return jnp.maximum(-jnp.sum(x**2) / 2, -1e6)

    state, parameters, info = warm_up_in_modes(logdensity, (1,), 1e5, 1.0)
    assert info.history["num_moves"][-1, 1] == 1 and np.sum(info.history["num_moves"][-1]) == 1
    assert np.all(np.abs(state.position) < 10) and not np.any(info.is_behind)
    assert info.num_learnt == 540


def test_a_chain_that_is_behind_is_named_and_left_out():
    """It has no time to be moved, and finds the step size of its mode, a hundredth of that of the others."""
    mean, sd = 2000.0, 0.01
    logdensity = modes((0.0, -40.0), (0.0, mean), (1.0, sd))
    state, parameters, info = warm_up_in_modes(logdensity, (1,), mean, sd, num_steps=54)
    np.testing.assert_array_equal(info.is_behind, [False, True, False, False])
    np.testing.assert_array_equal(info.history["num_moves"], 0)
    assert abs(np.mean(info.history["log_factors"][-20:, 1]) - np.log(0.01)) < 1.5
    np.testing.assert_array_equal(info.history["log_factors"][:, [0, 2, 3]], 0)
    assert np.all(np.abs(state.position[1] - mean) < 1)


@pytest.mark.parametrize(
    "sd, log_height, num_steps", [(1.0, 30.0, 600), (1.0, 1e4, None), (100.0, 30.0, None), (0.3, 60.0, None)]
)
def test_all_chains_join_the_one_that_has_found_the_mass(sd, log_height, num_steps):
    """Three rest in a mode without mass. What was learnt there is forgotten."""
    mean = 2000.0
    logdensity = modes((0.0, log_height), (0.0, mean), (1.0, sd))
    x = starts()
    x = x.at[1].set(mean + sd * x[1])
    (state, parameters), info = hm.warmup(logdensity, hm.two_ended()).run(jax.random.key(2), x, num_steps)
    np.testing.assert_array_equal(info.num_moves, [1, 0, 1, 1])
    assert np.all(state.position > 1000) and not np.any(info.is_behind)
    assert num_steps or info.has_settled and info.num_steps < 1000
    np.testing.assert_allclose(jnp.diag(parameters["inverse_mass_matrix"].to_dense()), sd, rtol=0.4)


def test_no_chain_joins_one_in_a_narrow_mode_of_the_same_mass():
    """It is higher by 5 log 100 = 23."""
    logdensity = modes((0.0, 5 * np.log(100)), (0.0, 2000.0), (1.0, 0.01))
    x = starts()
    x = x.at[1].set(2000.0 + 0.01 * x[1])
    (state, _), info = hm.warmup(logdensity, hm.two_ended()).run(jax.random.key(2), x, 600)
    np.testing.assert_array_equal(info.num_moves, 0)
    np.testing.assert_array_equal(state.position[:, 0] > 1000, [False, True, False, False])


def test_a_chain_where_the_log_density_has_no_digits_is_set_back():
    """As where a formula cancels: 10^20, rounded to multiples of 10^13 in float32, by the other chains' 1."""

    def logdensity(x):
        return jnp.where(x[0] > 1000, 1e20 * (1 + x[0] / 1e4), -jnp.sum(x**2) / 2)

    x = starts().at[2, 0].set(2000.0)
    (state, parameters), info = hm.warmup(logdensity, hm.two_ended()).run(jax.random.key(2), x, 400)
    np.testing.assert_array_equal(info.num_moves, [0, 0, 1, 0])
    assert np.all(np.abs(state.position) < 10) and parameters["step_size"] > 0.3
