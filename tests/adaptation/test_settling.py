"""When a warm-up has learnt enough: without any chain, then in whole warm-ups."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.adaptation.settling import Settling

LOOKS = [80, 100, 125, 157, 197]  # each later by a quarter, rounded up
NUM_CHAINS, DIM = 4, 3


def watched(
    draws,
    log_sigma=lambda count: 0.0,
    is_counted=(True,) * NUM_CHAINS,
    steps_learnt=lambda count: count,
    is_sought=False,
    is_awaited=(False,) * NUM_CHAINS,
    determined=None,
):
    """Whether it had settled after each step; draws (num_steps, NUM_CHAINS, DIM)."""
    is_counted, is_awaited = jnp.asarray(is_counted), jnp.asarray(is_awaited)

    def one_step(settling, each):
        x, count, size, learnt = each
        settling = settling.watch(
            x,
            -jnp.sum((x if determined is None else determined(x)) ** 2, axis=1) / 2,
            size,
            is_counted=is_counted,
            is_awaited=is_awaited,
            steps_learnt=learnt,
            is_sought=jnp.asarray(is_sought),
            count=count,
            determined=determined,
        )
        return settling, settling.has_settled

    counts = np.arange(1, len(draws) + 1)
    sizes, learnt = (np.array([function(count) for count in counts]) for function in (log_sigma, steps_learnt))
    start = Settling.start(jnp.asarray(draws[0]), jnp.zeros(NUM_CHAINS, draws.dtype))
    each = jnp.asarray(draws), jnp.asarray(counts), jnp.asarray(sizes, draws.dtype), jnp.asarray(learnt)
    return np.asarray(jax.jit(lambda: jax.lax.scan(one_step, start, each)[1])())


def independent(num_steps=200, dtype=np.float32):
    return np.random.default_rng(0).normal(size=(num_steps, NUM_CHAINS, DIM)).astype(dtype)


def first(settled):
    """The step at which it settled, or None."""
    return int(np.argmax(settled)) + 1 if settled.any() else None


def test_independent_draws_settle_at_the_second_look(dtype):
    """At the first one there is no step size to compare with."""
    assert first(watched(independent(dtype=dtype))) == LOOKS[1]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_units_and_places_change_nothing(scale):
    draws = independent(dtype=np.float64)
    with jax.enable_x64():
        assert first(watched(scale * (draws + np.array([0, 100, -1000])))) == LOOKS[1]


def test_a_step_size_that_still_grows_has_not_settled():
    """By more than 15% from one look to the next; it stops at step 130, so the looks at 157 and 197 are of one size."""
    settled = watched(independent(), log_sigma=lambda count: 0.02 * min(count, 130))
    assert first(settled) == LOOKS[4]
    assert first(watched(independent(), log_sigma=lambda count: 0.002 * count)) == LOOKS[1]


def test_chains_that_stay_apart_have_not_settled_unless_they_do_not_count():
    draws = independent()
    draws[:, 2, 1] += 3
    assert first(watched(draws)) is None
    assert first(watched(draws, is_counted=[True, True, False, True])) == LOOKS[1]
    draws[:, 2] = np.nan
    assert first(watched(draws, is_counted=[True, True, False, True])) == LOOKS[1]


def test_chains_that_walk_slowly_have_not_settled():
    """Autocorrelation 0.99: in 20 steps each stays where it is."""
    noise, draws = independent(), np.zeros((200, NUM_CHAINS, DIM), np.float32)
    draws[0] = noise[0]
    for step in range(1, 200):
        draws[step] = 0.99 * draws[step - 1] + np.sqrt(1 - 0.99**2) * noise[step]
    assert first(watched(draws)) is None


def test_a_learner_that_started_anew_or_a_search_has_not_settled():
    """It started anew at step 150: the look at 157 sees that, the one at 197 does not."""
    settled = watched(independent(), steps_learnt=lambda count: count - 150 if count > 150 else 0)
    assert first(settled) == LOOKS[4]
    assert first(watched(independent(), is_sought=True)) is None


def test_a_chain_that_may_still_arrive_is_waited_for():
    assert first(watched(independent(), is_awaited=[False, False, True, False])) is None


def test_chains_need_not_agree_along_a_flat_direction(dtype):
    """They drift apart along (1, 1, 0), by 100 from each look to the next."""
    draws = independent(dtype=dtype)
    flat = (np.array([1, 1, 0]) / np.sqrt(2)).astype(dtype)
    drift = np.random.default_rng(1).normal(size=(200, NUM_CHAINS, 1)).cumsum(axis=0).astype(dtype)
    draws = draws + 20 * drift * flat

    def determined(x):
        return x - (x @ flat)[:, None] * flat

    assert first(watched(draws)) is None
    assert first(watched(draws, determined=determined)) == LOOKS[1]
    draws[:, 1] += np.array([3, -3, 0], dtype)  # apart in what is determined
    assert first(watched(draws, determined=determined)) is None


def of_neighbours(x):
    """Nothing depends on the sum of the coordinates."""
    return -0.5 * jnp.sum((x - jnp.roll(x, 1)) ** 2 * jnp.arange(1.0, x.size + 1))


def of_halves(x):
    """Nothing depends on five of the ten directions."""
    return -0.5 * jnp.sum((x[:5] - x[5:]) ** 2 * jnp.arange(1.0, 6))


@pytest.mark.parametrize("logdensity", [of_neighbours, of_halves])
def test_a_warmup_ends_by_itself_along_flat_directions(logdensity, dtype):
    _, info = hm.warmup(logdensity, hm.two_ended()).run(jax.random.key(0), starts().astype(dtype))
    assert info.has_settled and info.num_steps < 1000


def gaussian(x):
    return -0.5 * jnp.sum(x**2 * jnp.logspace(-2, 2, x.size))


def starts(key=0, dim=10):
    return jax.random.normal(jax.random.key(key), (NUM_CHAINS, dim))


def test_a_warmup_ends_by_itself_eager_jitted_and_over_many():
    warmup = hm.warmup(gaussian, hm.two_ended(4))
    results, info = warmup.run(jax.random.key(0), starts())
    assert 111 <= info.num_steps < 1000 and info.has_settled
    assert info.num_steps == info.last_state.num_steps
    chex.assert_tree_all_finite(results)
    assert np.all(np.abs(info.acceptance_rate - 0.8) < 0.2)
    again, _ = hm.warmup(gaussian, hm.two_ended(4)).run(jax.random.key(0), starts())
    chex.assert_trees_all_equal(again, results)
    assert jax.jit(warmup.run)(jax.random.key(0), starts())[1].has_settled
    _, infos = jax.jit(jax.vmap(warmup.run))(jax.random.split(jax.random.key(1), 3), jnp.stack([starts()] * 3))
    assert np.all(infos.has_settled) and np.all(infos.num_steps < 1000)


def test_mala_has_its_last_phase_too():
    """Without a center, so that the acceptance comes down to its target."""
    scheme = hm.two_ended(4)._replace(center=None)
    (_, parameters), info = hm.warmup(gaussian, scheme, sampler="mala").run(jax.random.key(0), starts())
    assert info.has_settled and abs(info.acceptance_rate.mean() - 0.574) < 0.15 and "center" not in parameters


def test_a_slow_target_takes_longer():
    """A map of scales alone cannot undo a correlation of 0.9999."""

    def logdensity(x):
        return -0.5 * jnp.sum(x**2) - 5000 * (x[0] - x[1]) ** 2

    positions = 3 * starts(dim=2)
    steps = [
        hm.warmup(logdensity, scheme).run(jax.random.key(0), positions)[1].num_steps
        for scheme in (hm.diagonal(), hm.two_ended())
    ]
    assert steps[0] > 1.5 * steps[1]


def test_it_goes_on_from_its_last_state():
    warmup = hm.warmup(gaussian, hm.two_ended(4))
    (_, first_parameters), first_info = warmup.run(jax.random.key(0), starts(), 40)
    stored = jax.tree.map(np.asarray, first_info.last_state)  # as from a file
    (_, parameters), info = warmup.run(jax.random.key(1), stored, 200)
    assert info.last_state.num_steps == 240 and info.num_steps == 200 and info.num_learnt > 180
    assert info.num_gradients.sum() > 0
    values = parameters["inverse_mass_matrix"].to_dense()
    np.testing.assert_allclose(jnp.diag(values @ values.T), np.logspace(2, -2, 10), rtol=0.6)
    with pytest.raises(ValueError, match="of the same scheme"):
        hm.warmup(gaussian, hm.two_ended(3)).run(jax.random.key(1), stored, 10)
    with pytest.raises(ValueError, match="num_chains = 3 chains, got 4"):
        hm.warmup(gaussian, hm.two_ended(4), 3).run(jax.random.key(1), stored, 10)
    by_mala = hm.warmup(gaussian, hm.two_ended(4), sampler="mala")
    _, of_mala = by_mala.run(jax.random.key(0), starts(), 40)
    assert by_mala.run(jax.random.key(1), of_mala.last_state, 40)[1].last_state.num_steps == 80


@pytest.mark.parametrize("known", [hm.Diagonal(jnp.logspace(1, -1, 10)), "learnt", "inverse mass matrix"])
def test_a_known_map_is_where_the_learner_starts(known):
    """30 steps from it are worth what hundreds are without it; after 400 it is as good as if it had been learnt."""
    (state, parameters), _ = hm.warmup(gaussian, hm.two_ended(4)).run(jax.random.key(0), starts(), 500)
    if isinstance(known, str):
        known = parameters["inverse_mass_matrix"] if known == "learnt" else jnp.logspace(2, -2, 10)
    warmup = hm.warmup(gaussian, hm.two_ended(4), initial=known)
    (_, short), info = warmup.run(jax.random.key(1), state.position, 30)
    assert short["step_size"] > 0.5 * parameters["step_size"] and info.num_learnt == 27
    (_, without), _ = hm.warmup(gaussian, hm.two_ended(4)).run(jax.random.key(1), state.position, 9)
    assert without["step_size"] < 0.3 * short["step_size"]


def test_schemes_and_maps_that_cannot_begin():
    with pytest.raises(ValueError, match="cannot begin with a known map"):
        hm.warmup(gaussian, hm.diagonal(), initial=jnp.ones(10)).run(jax.random.key(0), starts(), 10)
    with pytest.raises(ValueError, match="LowRank or a Diagonal map, got a Dense"):
        hm.warmup(gaussian, hm.two_ended(), initial=jnp.eye(10)).run(jax.random.key(0), starts(), 10)
    with pytest.raises(ValueError, match="d = 10 coordinates"):
        hm.warmup(gaussian, hm.two_ended(), initial=jnp.ones(9)).run(jax.random.key(0), starts(), 10)
    with pytest.raises(ValueError, match="`keep` needs a number of steps"):
        hm.warmup(gaussian, hm.none(), keep=lambda state, info: info).run(jax.random.key(0), starts())


def test_a_known_map_in_blackjax():
    known = hm.LowRank(jnp.ones(10), jnp.eye(2, 10), jnp.array([100.0, 0.01]))
    core = hm.metric_core(2, initial=known)
    state = core.init(10)
    np.testing.assert_allclose(core.final(state).inverse_mass_matrix.lam, [100.0, 0.01], rtol=1e-5)
    rng, update = np.random.default_rng(0), jax.jit(core.update)
    for _ in range(20):
        x = jnp.asarray(5 + np.sqrt(np.r_[100.0, 0.01, np.ones(8)]) * rng.normal(size=10), jnp.float32)
        state = update(state, x, -(x - 5) / jnp.array([100.0, 0.01, *[1.0] * 8]))
    np.testing.assert_allclose(np.sort(core.final(state).inverse_mass_matrix.lam), [0.01, 100.0], rtol=0.5)
