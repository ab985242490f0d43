"""Adaptive MALA: the loop, its input checks, its cost in memory and compilations."""

from itertools import cycle
from typing import NamedTuple

import blackjax
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.util import run_inference_algorithm
from programs import assert_full_precision, largest_array
from targets import skewed_logdensity

import householder_mcmc as hm

DIM, NUM_CHAINS = 5, 3
SCHEMES = {
    "none": hm.none,
    "fixed": lambda: hm.fixed(jnp.ones(DIM)),
    "diagonal": hm.diagonal,
    "dense": hm.dense,
    "eigen_latest": lambda: hm.eigen(2, gains=hm.LATEST_GAINS),
    "eigen_isotropic": lambda: hm.eigen(2, "isotropic"),
    "eigen_identity": lambda: hm.eigen_identity(2),
    "eigen_periods": lambda: hm.eigen(2, orthonormalize_every=2, refresh_every=4),
    "eigen": lambda: hm.eigen(2),
    "eigen_authors": lambda: hm.eigen(2, gains=hm.AUTHORS_GAINS),
}


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return SCHEMES[request.param]()


def starts(dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(0).normal(size=(NUM_CHAINS, DIM)), dtype)


@pytest.mark.parametrize("scheme, dtype", list(zip(SCHEMES, cycle(["float32", "float64"]))), indirect=True)
def test_contract(scheme, dtype):
    """Runs in BlackJAX's loop; arrays only; keeps dtypes; compiles once; eager, jit and vmap agree."""
    sampler = hm.adaptive_mala(skewed_logdensity, scheme, NUM_CHAINS)
    state = sampler.init(starts(dtype))
    final, history = run_inference_algorithm(jax.random.key(1), sampler, 20, initial_state=state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, final)
    assert all(isinstance(leaf, jax.Array) and not leaf.weak_type for leaf in jax.tree.leaves(state))
    assert final.position.dtype == final.log_sigma.dtype == dtype
    chex.assert_tree_all_finite(final)
    assert history[0].position.shape == (20, NUM_CHAINS, DIM)
    assert history[1].acceptance_rate.shape == (20, NUM_CHAINS)

    key, tol = jax.random.key(2), 1e3 * jnp.finfo(dtype).eps
    compiled, _ = sampler.step(key, state)
    with jax.disable_jit():
        eager, _ = sampler.step(key, state)
    batched, _ = jax.vmap(sampler.step)(key[None], jax.tree.map(lambda leaf: leaf[None], state))
    chex.assert_trees_all_close(compiled, eager, rtol=tol, atol=tol)
    chex.assert_trees_all_close(compiled, jax.tree.map(lambda leaf: leaf[0], batched), rtol=tol, atol=tol)


def test_step_compiles_once(scheme):
    traces = []

    def logdensity(x):
        traces.append(1)
        return skewed_logdensity(x)

    sampler = hm.adaptive_mala(logdensity, scheme, NUM_CHAINS)
    state, _ = sampler.step(jax.random.key(0), sampler.init(starts()))
    before = len(traces)
    for seed in range(3):
        state, _ = sampler.step(jax.random.key(seed), state)
    assert len(traces) == before


def test_one_step_is_algorithm_2_and_then_algorithm_1():
    """MALA with the map and step size of the state, then the learner sees the new positions, then log sigma moves.

    It is sought until the acceptance has been on both sides of its target; then its gains decay.
    """
    scheme = hm.eigen(2)
    sampler = hm.adaptive_mala(skewed_logdensity, scheme, NUM_CHAINS, target_acceptance_rate=0.6)
    state = sampler.init(starts())
    np.testing.assert_allclose(jnp.exp(state.log_sigma), 0.5 * DIM**-0.25, rtol=1e-6)
    errors = []
    for seed in range(8):
        key = jax.random.key(seed)
        new, info = sampler.step(key, state)
        kernel = hm.mala(skewed_logdensity, jnp.exp(2 * state.log_sigma) / 2, scheme.preconditioner(state.scheme))
        chains, chain_info = jax.vmap(kernel.step)(jax.random.split(key, NUM_CHAINS), state.chains)
        chex.assert_trees_all_close(new.chains, chains, rtol=1e-5, atol=1e-6)
        chex.assert_trees_all_close(new.scheme, scheme.update(state.scheme, chains.position), rtol=1e-4, atol=1e-5)
        error = chain_info.acceptance_rate.mean() - 0.6  # no chain is stuck
        errors.append(error)
        has_crossed = np.any(np.sign(errors) != np.sign(errors[0]))
        count = state.step_size.count
        assert new.step_size.count == (count + 1 if has_crossed else 0)
        sought = np.log(4) * error / (0.4 if error > 0 else 0.6)
        moved = (count + 2.0) ** -0.7 * error if has_crossed else sought
        np.testing.assert_allclose(new.log_sigma - state.log_sigma, moved, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(info.step_size, jnp.exp(2 * state.log_sigma) / 2, rtol=1e-6)
        np.testing.assert_array_equal(info.num_gradients, 1)
        state = new
    assert 0 < new.step_size.count < 8


def three_modes(x):
    """N(0, I) and, lower by 1000, N(1000, 20^2 I) and N(-1000, 0.01^2 I): a chain in one of these is behind."""
    modes = (
        (jnp.abs(x[0]) < 500, 0.0, 1.0, 0.0),
        (x[0] >= 500, 1000.0, 20.0, 1000.0),
        (x[0] <= -500, -1000.0, 0.01, 1000.0),
    )
    return sum(jnp.where(is_in, -jnp.sum(((x - mean) / sd) ** 2) / 2 - lower, 0) for is_in, mean, sd, lower in modes)


@pytest.mark.parametrize(
    "scheme", [hm.diagonal(), hm.eigen(2), hm.two_ended(2)], ids=["diagonal", "eigen", "two_ended"]
)
def test_a_chain_that_is_behind_changes_nothing_for_the_others(scheme, x64):
    """Bit for bit, whether its mode is narrow or wide. Its own step size finds its mode's, and it is never moved."""
    sampler = hm.adaptive_mala(three_modes, scheme, 4)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)))
    finals = []
    for mean, sd in ((1000, 20), (-1000, 0.01)):
        state = sampler.init(x.at[3].set(mean + sd * x[3]))
        state, (states, info) = run_inference_algorithm(jax.random.key(0), sampler, 600, initial_state=state)
        assert np.all(np.abs(state.position[3] - mean) < 6 * sd) and np.all(state.num_moves == 0)
        assert state.lag.num_steps[3] == 600
        # its rates are correlated, and its step size does not converge
        assert abs(np.mean(info.acceptance_rate[300:, 3]) - 0.574) < 0.1
        assert abs(np.mean(states.log_factors[300:, 3]) - np.log(sd)) < 0.7
        np.testing.assert_array_equal(states.log_factors[:, :3], 0)
        others = jax.tree.map(lambda leaf: leaf[:3], state.chains)
        finals.append((others, state.scheme, state.step_size, state.acceptance_rate[:3], state.climb.steps_learnt))
    chex.assert_trees_all_equal(*finals)
    assert finals[0][-1] == 600


class OwnMap(NamedTuple):
    """A map of the user's own, with no more than `hm.Preconditioner` asks for."""

    scales: jax.Array

    def apply(self, z):
        return self.scales * z

    def apply_transpose(self, g):
        return self.scales * g

    def to_dense(self):
        return jnp.diag(self.scales)


def test_a_map_of_the_users_own():
    scales = jnp.arange(1.0, DIM + 1)
    ends = []
    for preconditioner in (OwnMap(scales), hm.Diagonal(scales)):
        sampler = hm.adaptive_mala(skewed_logdensity, hm.fixed(preconditioner), NUM_CHAINS)
        ends.append(sampler.step(jax.random.key(0), sampler.init(starts()))[0].position)
    np.testing.assert_allclose(*ends, rtol=1e-5)


def test_positions_are_pytrees():
    def logdensity(position):
        return skewed_logdensity(jnp.concatenate([position["a"][None], position["b"].ravel()]))

    x = starts()
    tree = hm.adaptive_mala(logdensity, hm.eigen(2), NUM_CHAINS)
    flat = hm.adaptive_mala(skewed_logdensity, hm.eigen(2), NUM_CHAINS)
    tree_state, flat_state = tree.init({"b": x[:, 1:].reshape(-1, 2, 2), "a": x[:, 0]}), flat.init(x)
    for seed in range(5):
        tree_state, _ = tree.step(jax.random.key(seed), tree_state)
        flat_state, _ = flat.step(jax.random.key(seed), flat_state)
    b = tree_state.position["b"].reshape(NUM_CHAINS, -1)
    np.testing.assert_allclose(jnp.c_[tree_state.position["a"], b], flat_state.position, rtol=1e-4, atol=1e-5)


def test_nonfinite_proposals_never_reach_the_learner():
    def logdensity(x):
        return jnp.where(jnp.sum(x**2) < 1, -0.5 * jnp.sum(x**2), jnp.nan)

    sampler = hm.adaptive_mala(logdensity, hm.eigen(2), NUM_CHAINS)
    state = sampler.init(jnp.zeros((NUM_CHAINS, DIM)))
    state, (_, info) = run_inference_algorithm(jax.random.key(0), sampler, 200, initial_state=state)
    assert info.is_nonfinite.any()
    chex.assert_tree_all_finite(state)


@pytest.mark.parametrize(
    "name, limit", [("eigen_latest", 4), ("eigen", 4), ("eigen_isotropic", 4), ("eigen_identity", 4), ("diagonal", 4)]
)
def test_nothing_of_size_d_by_d(name, limit):
    """Every array in the program of a step at d = 4096, rank 2, 3 chains has at most `limit` * d numbers."""
    dim = 4096
    sampler = hm.adaptive_mala(lambda x: -0.5 * jnp.sum(x**2), SCHEMES[name](), NUM_CHAINS)
    state = sampler.init(jnp.ones((NUM_CHAINS, dim)))
    program = jax.make_jaxpr(sampler.step)(jax.random.key(0), state)
    assert dim * NUM_CHAINS <= largest_array(program.jaxpr) <= limit * dim


@pytest.mark.parametrize("name", ["dense", "eigen_latest", "eigen_isotropic", "eigen_identity", "eigen"])
def test_products_ask_for_full_precision(name):
    sampler = hm.adaptive_mala(skewed_logdensity, SCHEMES[name](), NUM_CHAINS)
    assert_full_precision(jax.make_jaxpr(sampler.step)(jax.random.key(0), sampler.init(starts())).jaxpr)


def test_float32_positions_stay_float32_with_x64(scheme, x64):
    """Also where the density is float64, from data that are."""
    data = jnp.ones(DIM)
    sampler = hm.adaptive_mala(lambda x: jnp.sum(data) + skewed_logdensity(x), scheme, NUM_CHAINS)
    state, _ = run_inference_algorithm(jax.random.key(0), sampler, 5, initial_state=sampler.init(starts()))
    assert data.dtype == jnp.float64
    assert state.position.dtype == state.log_sigma.dtype == jnp.float32
    assert all(leaf.dtype != jnp.float64 for leaf in jax.tree.leaves(state.scheme))


def test_starts_at_one_point_with_full_gains_stay_finite():
    """A gain of 1 and chains that have not moved leave no variance at all; the density refuses every first move."""
    gains = hm.Gains(moments=hm.power_decay(0.7), oja=hm.power_decay(0.7))
    for tail, period in (("free", 1), ("isotropic", 2), ("unit", 1)):
        scheme = hm.eigen(2, tail, gains, period)
        sampler = hm.adaptive_mala(lambda x: jnp.where(jnp.all(x == 0), 0.0, -jnp.inf), scheme, NUM_CHAINS)
        state = sampler.init(jnp.zeros((NUM_CHAINS, DIM)))
        state, _ = run_inference_algorithm(jax.random.key(0), sampler, 4, initial_state=state)
        chex.assert_tree_all_finite(state)


def test_the_size_check_sees_the_dense_scheme():
    dim = 64
    sampler = hm.adaptive_mala(lambda x: -0.5 * jnp.sum(x**2), hm.dense(), NUM_CHAINS)
    program = jax.make_jaxpr(sampler.step)(jax.random.key(0), sampler.init(jnp.ones((NUM_CHAINS, dim))))
    assert largest_array(program.jaxpr) >= dim * dim


@pytest.mark.parametrize(
    "positions, error, message",
    [
        (jnp.zeros((2, DIM)), ValueError, r"positions must have a leading axis of num_chains = 3, got shape \(2, 5\)"),
        ({"a": jnp.zeros((3, 2)), "b": jnp.zeros(())}, ValueError, r"positions\['b'\] must have a leading axis"),
        ({"a": jnp.zeros((3, 2), jnp.int32)}, TypeError, r"position\['a'\] must be floating point, got int32"),
    ],
)
def test_bad_positions(positions, error, message):
    with pytest.raises(error, match=message):
        hm.adaptive_mala(lambda x: 0.0, hm.none(), NUM_CHAINS).init(positions)


def test_bad_arguments():
    with pytest.raises(TypeError, match="scheme must be a Scheme"):
        hm.adaptive_mala(skewed_logdensity, hm.eigen, NUM_CHAINS).init(starts())
    with pytest.raises(ValueError, match="num_chains must be at least 1, got 0"):
        hm.adaptive_mala(skewed_logdensity, hm.none(), 0).init(starts()[:0])
    with pytest.raises(TypeError, match="at least 32 bits where they are learnt from, got bfloat16"):
        hm.adaptive_mala(skewed_logdensity, hm.none(), NUM_CHAINS).init(starts().astype(jnp.bfloat16))
    with pytest.raises(ValueError, match=r"must be finite at the start of chains \[1\]: the position is not"):
        hm.adaptive_mala(lambda x: -(x[0] ** 2), hm.none(), NUM_CHAINS).init(starts().at[1, 1].set(jnp.nan))
    for num_chains in (float(NUM_CHAINS), None):
        with pytest.raises(TypeError, match=f"num_chains must be an integer, got {num_chains}"):
            hm.adaptive_mala(skewed_logdensity, hm.none(), num_chains).init(starts())
        with pytest.raises(TypeError, match=f"num_chains must be an integer, got {num_chains}"):
            hm.warmup(skewed_logdensity, hm.none(), num_chains).run(jax.random.key(0), starts(), 2)


def test_is_made_where_its_data_is_traced():
    @jax.jit
    def init(data):
        sampler = hm.adaptive_mala(lambda x: -jnp.sum((x - data) ** 2), hm.eigen(2), NUM_CHAINS)
        return sampler.init(starts()).chains.logdensity

    np.testing.assert_allclose(init(jnp.ones(DIM)), -np.sum((starts() - 1) ** 2, axis=1), rtol=1e-5)


def test_nonfinite_start_names_the_chain():
    sampler = hm.adaptive_mala(lambda x: jnp.sum(jnp.log(x)), hm.none(), NUM_CHAINS)
    with pytest.raises(ValueError, match=r"chains \[1\]"):
        sampler.init(jnp.ones((NUM_CHAINS, DIM)).at[1, 2].set(-1.0))


def test_has_blackjaxs_shape():
    assert isinstance(hm.adaptive_mala, type(blackjax.mala))
    assert isinstance(hm.adaptive_mala(skewed_logdensity, hm.none()), blackjax.SamplingAlgorithm)
