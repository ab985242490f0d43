"""The learners as BlackJAX's metric adaptation."""

import itertools
from functools import partial

import blackjax
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.metrics import LowRankInverseMassMatrix
from jax.flatten_util import ravel_pytree
from programs import largest_array

import householder_mcmc as hm
from benchmarks.targets import gaussian_first

DIM, RANK = 30, 2
TARGET = gaussian_first(DIM, np.random.default_rng(0), RANK)


def logdensity(position):
    return TARGET.logdensity(ravel_pytree(position)[0])


def explained(inverse_mass_matrix):
    """Learnt over true variance: along the wide directions, and in the narrow ones on average."""
    root = np.asarray(hm.as_preconditioner(inverse_mass_matrix).to_dense(), np.float64)
    covariance = root @ root.T
    along = np.einsum("id,de,ie->i", TARGET.directions, covariance, TARGET.directions)
    return along / TARGET.variances, (np.trace(covariance) - along.sum()) / (DIM - RANK) / 0.1


@pytest.mark.parametrize("tail", ["isotropic", "unit"])
def test_a_window_learns_what_the_scheme_learns(tail, dtype):
    """The start is the first draw; the map in use changes at the ends of windows only; nothing is forgotten there."""
    xs = jnp.asarray(TARGET.start(np.random.default_rng(1), 50), dtype)
    scheme = hm.eigen(RANK, tail)
    core = hm.metric_core(scheme)
    state, learnt = core.init(DIM), scheme.init(xs[:1])
    update_core, update = jax.jit(lambda state, x: core.update(state, x, x)), jax.jit(scheme.update)
    for i, x in enumerate(xs):
        in_use = state.inverse_mass_matrix
        state, learnt = update_core(state, x), update(learnt, x[None])
        chex.assert_trees_all_equal(state.inverse_mass_matrix, in_use)
        if i in (24, 49):
            state = core.final(state)
    chex.assert_trees_all_close(state.inverse_mass_matrix, scheme.preconditioner(learnt).to_inverse_mass_matrix())
    assert isinstance(state.inverse_mass_matrix, LowRankInverseMassMatrix)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.inverse_mass_matrix)} == {dtype}


def test_no_buffer_and_no_square():
    dim, rank = 4096, 5
    core = hm.metric_core(hm.eigen(rank, "isotropic"))
    state = core.init(dim)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) < (4 * rank + 3) * dim
    program = jax.make_jaxpr(lambda state, x: core.final(core.update(state, x, x)))(state, jnp.zeros(dim))
    assert largest_array(program) <= 3 * rank * dim


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [hm.eigen(RANK, "isotropic"), RANK], ids=["eigen", "two_ended"])
def test_nuts_warmup_jitted_and_vmapped(scheme):
    """Four chains, each with its own warm-up: the wide variances within a factor of 2, the narrow ones within 1.3, and
    at least 5 times the ESS per gradient of a diagonal metric, along the wide directions."""

    def run(metric, key, position):
        warmup = blackjax.staged_adaptation(
            blackjax.nuts, logdensity, metric=metric, adaptation_info_fn=lambda state, info, adaptation: None
        )
        key_warmup, key_sample = jax.random.split(key)
        (state, parameters), _ = warmup.run(key_warmup, position, 1000)
        kernel = blackjax.nuts(logdensity, **parameters)

        def one_step(state, key):
            state, info = kernel.step(key, state)
            return state, (ravel_pytree(state.position)[0], info.num_integration_steps)

        _, (draws, steps) = jax.lax.scan(one_step, state, jax.random.split(key_sample, 500))
        return parameters["inverse_mass_matrix"], draws, steps

    xs = jnp.asarray(TARGET.start(np.random.default_rng(1), 4), jnp.float32)
    positions = {"a": xs[:, :10], "b": xs[:, 10:]}
    keys = jax.random.split(jax.random.key(0), 4)
    efficiency = {}
    for name, metric in {"ours": hm.metric_core(scheme), "diagonal": "welford_diag"}.items():
        learnt, draws, steps = jax.jit(jax.vmap(lambda key, x, metric=metric: run(metric, key, x)))(keys, positions)
        ess = blackjax.ess(draws @ jnp.asarray(TARGET.directions.T, jnp.float32))
        efficiency[name] = float(ess.min() / steps.sum())
        for i in range(4) if name == "ours" else ():
            wide, narrow = explained(jax.tree.map(lambda leaf, i=i: leaf[i], learnt))
            assert 0.5 < wide.min() and wide.max() < 2
            assert 1 / 1.3 < narrow < 1.3
    assert efficiency["ours"] > 5 * efficiency["diagonal"], efficiency


def test_bad_input():
    for scheme, name in ((hm.eigen(2), "Householder"), (hm.diagonal(), "Diagonal")):
        with pytest.raises(TypeError, match=f"takes a scheme that learns a LowRank map.*learns a {name}"):
            hm.metric_core(scheme).init(3)
    for scheme in ("two", 2.5, hm.two_ended):
        with pytest.raises(TypeError, match="takes a rank or a Scheme, such as hm.two_ended.., got"):
            hm.metric_core(scheme)
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        hm.metric_core(hm.eigen(0, "isotropic"))
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        hm.metric_core(0)
    with pytest.raises(ValueError, match="rank must be at most d = 3, got 4"):
        hm.metric_core(hm.eigen(4, "isotropic")).init(3)


def test_the_first_draw_is_the_start_of_any_scheme():
    """Also of one whose state does not count."""
    one = hm.LowRank(jnp.ones(3), jnp.eye(1, 3), jnp.ones(1))
    keeps_the_start = hm.Scheme(lambda xs: (xs[0],), lambda state, xs, scores=None: state, lambda state: one)
    core = hm.metric_core(keeps_the_start)
    state = core.init(3)
    for value in (5.0, 7.0):
        state = core.update(state, jnp.full(3, value), jnp.zeros(3))
    np.testing.assert_array_equal(state.scheme[0], 5.0)


def test_a_number_stands_for_two_ended():
    draws = jax.random.normal(jax.random.key(0), (10, 4)) * jnp.array([1.0, 10.0, 1.0, 1.0])

    def learn(core):
        state, _ = jax.lax.scan(lambda state, x: (core.update(state, x, -x), None), core.init(4), draws)
        return core.final(state).inverse_mass_matrix

    chex.assert_trees_all_equal(learn(hm.metric_core(3)), learn(hm.metric_core(hm.two_ended(3))))


def learnt(core, draws, scores):
    state, _ = jax.lax.scan(
        lambda state, xs: (core.update(state, *xs), None), core.init(draws.shape[1]), (draws, scores)
    )
    return core.final(state)


@pytest.mark.parametrize(
    "scheme", [hm.eigen(1, "isotropic"), hm.two_ended(1, block_size=2)], ids=["eigen", "two_ended"]
)
def test_what_is_not_finite_teaches_nothing(scheme):
    """A draw or a score with one such number, at the start too, is as if it had not been."""
    run = jax.jit(partial(learnt, hm.metric_core(scheme)))
    draws = jax.random.normal(jax.random.key(0), (12, 3))
    good = jnp.array([i for i in range(12) if i not in (0, 5, 6)])
    expected = run(draws[good], -draws[good])
    for draw, score in itertools.product((jnp.nan, jnp.inf, None), (jnp.nan, None)):
        bad_draws = draws if draw is None else draws.at[jnp.array([0, 5, 6]), 1].set(draw)
        bad_scores = -draws if score is None else (-draws).at[jnp.array([0, 5, 6]), 2].set(score)
        if (draw, score) != (None, None):
            chex.assert_trees_all_equal(run(bad_draws, bad_scores), expected)


KNOWN = LowRankInverseMassMatrix(jnp.array([1.0, 2.0, 3.0]), jnp.eye(3, 1), jnp.array([4.0]))


def test_a_given_map_is_in_use_until_there_is_another():
    """In BlackJAX's warm-up the slow windows of 200 steps end at 100 and 150; a block of 40 draws is whole by 150."""
    core = hm.metric_core(hm.two_ended(1, block_size=40))
    warmup = blackjax.staged_adaptation(
        blackjax.hmc,
        lambda x: -jnp.sum(x**2) / 2,
        metric=core,
        initial_metric_state=core.init(3)._replace(inverse_mass_matrix=KNOWN),
        adaptation_info_fn=lambda state, info, adaptation: adaptation.inverse_mass_matrix,
        num_integration_steps=3,
    )
    (_, parameters), in_use = warmup.run(jax.random.key(0), jnp.ones(3), 200)
    is_known = np.all(in_use.sigma == KNOWN.sigma, axis=1) & np.all(in_use.lam == KNOWN.lam, axis=1)
    assert np.all(is_known[:125]) and not np.any(is_known[-50:])
    chex.assert_trees_all_equal(parameters["inverse_mass_matrix"], jax.tree.map(lambda leaf: leaf[-1], in_use))


def test_a_given_learner_is_not_made_anew():
    """Not by the first draw, when its own draws are forgotten."""
    scheme = hm.two_ended(1, block_size=2)
    core = hm.metric_core(scheme)
    draws = jax.random.normal(jax.random.key(0), (20, 3)) * jnp.array([1.0, 10.0, 100.0])
    before = learnt(core, draws, -draws).scheme
    state = core.init(3)._replace(scheme=scheme.start_anew(before, draws[:1]))
    state = core.final(core.update(state, draws[0], -draws[0]))
    known = scheme.preconditioner(before).to_inverse_mass_matrix()
    chex.assert_trees_all_equal(state.inverse_mass_matrix, known)


def test_a_given_map_of_another_rank_is_refused():
    core = hm.metric_core(2)
    with pytest.raises(ValueError, match=r"given at the start must have shapes .*\(3, 2\).* got .*\(3, 1\)"):
        core.final(core.init(3)._replace(inverse_mass_matrix=KNOWN))


@pytest.mark.parametrize(
    "scheme", [hm.eigen(1, "isotropic"), hm.two_ended(1, block_size=2)], ids=["eigen", "two_ended"]
)
def test_draws_of_another_dtype_are_cast(scheme, x64):
    draws = jax.random.normal(jax.random.key(0), (12, 3), jnp.float32)
    core = hm.metric_core(scheme)
    chex.assert_trees_all_equal(learnt(core, draws, -draws), learnt(core, draws.astype(float), -draws.astype(float)))
