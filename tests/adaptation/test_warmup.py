"""Adapt, then freeze."""

import blackjax
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from targets import skewed_logdensity

import householder_mcmc as hm
from householder_mcmc.adaptation.samplers import SAMPLERS
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


@pytest.mark.parametrize("sampler, target", [("mala", 0.574), ("hmc", 0.8)])
def test_tunes_the_sampler_and_counts_its_gradients(sampler, target, dtype):
    warmup = hm.warmup(
        skewed_logdensity,
        hm.two_ended(2),
        NUM_CHAINS,
        sampler=sampler,
        keep=lambda state, info: info.num_gradients,
    )
    (state, parameters), info = warmup.run(jax.random.key(0), starts(dtype), num_steps=1000)
    assert isinstance(warmup, blackjax.base.AdaptationAlgorithm)
    assert set(parameters) == {"step_size", "inverse_mass_matrix"}
    assert parameters["step_size"].dtype == state.position.dtype == dtype
    chex.assert_tree_all_finite((state, parameters, info))
    # 2000 x 4 acceptances of a skewed target: their mean has standard error below 0.01; the rest is the step size's
    acceptance = sample(skewed_logdensity, state, parameters, 2000, sampler=getattr(hm, sampler))
    assert abs(acceptance.mean() - target) < 0.05
    per_step = 1 if sampler == "mala" else np.pi / 2 / parameters["step_size"]
    of_last_phase = info.num_gradients - info.history.sum(axis=0)
    assert jnp.all(jnp.abs(of_last_phase / 100 - per_step) <= (0 if sampler == "mala" else 0.5 * per_step))


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
        keep=lambda state, info: (state.count, info.num_gradients, info.step_size),
    )
    _, info = warmup.run(jax.random.key(0), starts(), num_steps=400)
    count, num_gradients, step_size = info.history
    most = 1 + np.append(0, count[:-1]) // 8
    quarter = np.round(1.25 * np.pi / 2 / np.asarray(step_size))
    assert np.all(num_gradients <= np.minimum(most, quarter)[:, None])
    assert np.all(num_gradients[most < 4] == most[most < 4, None]) and quarter.min() > 4
    assert count[-1] > 300 and np.any(num_gradients[-100:] > quarter[-100:, None] - 2)


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
    assert 450 < info.num_learnt < 900
    assert jnp.ptp(state.logdensity) < 30


def test_num_learnt_counts_from_the_last_start():
    """A start in equilibrium is the only one; a warm-up that is too short ends on its way."""
    run = jax.jit(hm.warmup(lambda x: -jnp.sum(x**2) / 2, hm.diagonal()).run, static_argnums=2)
    near = jax.random.normal(jax.random.key(0), (4, 5))
    assert run(jax.random.key(1), near, 100)[1].num_learnt == 90
    assert run(jax.random.key(1), 1e4 * near, 30)[1].num_learnt < 10


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
    scheme, maps = hm.eigen(2), []
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


@pytest.mark.parametrize("sampler", ["mala", "hmc"])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 9, 10])
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
    warmup = hm.warmup(skewed_logdensity, hm.eigen(2), NUM_CHAINS)

    def bytes_used(num_steps):
        run = jax.jit(lambda key, positions: warmup.run(key, positions, num_steps))
        memory = run.lower(jax.random.key(0), starts()).compile().memory_analysis()
        return memory.temp_size_in_bytes, memory.output_size_in_bytes

    assert bytes_used(20_000) == bytes_used(200)


@pytest.mark.parametrize("sampler, target", [("mala", 0.574), ("hmc", 0.8)])
@pytest.mark.parametrize("num_steps", [20, 40, 80, 400, 2000])
def test_step_size_works_after_any_warmup(num_steps, sampler, target):
    """Frozen acceptance on a Gaussian, d = 20. Few steps can only come near; many must hit the target. The bounds are
    several times the spread over seeds."""
    x = jnp.asarray(np.random.default_rng(1).normal(size=(NUM_CHAINS, 20)), jnp.float32)

    def logdensity(x):
        return -0.5 * jnp.sum(x**2)

    warmup = hm.warmup(logdensity, hm.none(), NUM_CHAINS, sampler=sampler)
    (state, parameters), _ = warmup.run(jax.random.key(0), x, num_steps)
    acceptance = sample(logdensity, state, parameters, 1000, sampler=getattr(hm, sampler)).mean()
    assert abs(acceptance - target) < (0.03 if num_steps == 2000 else 0.06 if num_steps == 400 else 0.3)


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

    warmup = hm.warmup(logdensity, hm.eigen(2), NUM_CHAINS)
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
    with pytest.raises(TypeError, match="float"):
        hm.warmup(lambda x: -jnp.sum(x**2), hm.diagonal()).run(jax.random.key(0), jnp.zeros((4, 2)), 1e3)


def test_negative_number_of_steps():
    with pytest.raises(ValueError, match="num_steps must not be negative, got -1"):
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
