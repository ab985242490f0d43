"""Adaptive MALA: the loop, its input checks, its cost in memory and compilations."""

import blackjax
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.util import run_inference_algorithm
from jax.extend.core import ClosedJaxpr, Jaxpr
from targets import skewed_logdensity

import householder_mcmc as hm

DIM, NUM_CHAINS = 5, 3
SCHEMES = {
    "none": hm.none,
    "fixed": lambda: hm.fixed(jnp.ones(DIM)),
    "diagonal": hm.diagonal,
    "dense": hm.dense,
    "eigen": lambda: hm.eigen(2),
    "eigen_isotropic": lambda: hm.eigen(2, "isotropic"),
    "eigen_identity": lambda: hm.eigen_identity(2),
    "eigen_periods": lambda: hm.eigen(2, orthonormalize_every=2, refresh_every=4),
    "eigen_averaged": lambda: hm.eigen(2, gains=hm.AVERAGED_GAINS),
    "eigen_authors": lambda: hm.eigen(2, gains=hm.AUTHORS_GAINS),
}


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return SCHEMES[request.param]()


def starts(dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(0).normal(size=(NUM_CHAINS, DIM)), dtype)


def test_contract(scheme, dtype):
    """Runs in BlackJAX's loop; arrays only; keeps dtypes; compiles once; eager, jit and vmap agree."""
    sampler = hm.adaptive_mala(skewed_logdensity, scheme, NUM_CHAINS)
    state = sampler.init(starts(dtype))
    final, history = run_inference_algorithm(jax.random.key(1), sampler, 20, initial_state=state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, final)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(final) if not isinstance(leaf, float))
    assert final.position.dtype == final.log_sigma.dtype == dtype
    chex.assert_tree_all_finite(final)
    assert history[0].position.shape == (20, NUM_CHAINS, DIM)
    assert history[1].acceptance_rate.shape == (20, NUM_CHAINS)

    key, tol = jax.random.key(2), 1e3 * jnp.finfo(dtype).eps
    compiled, _ = sampler.step(key, state)
    with jax.disable_jit():
        eager, _ = sampler.step(key, state)
    batched, _ = jax.vmap(sampler.step)(key[None], jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], state))
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


def test_one_step_is_algorithm_1():
    """MALA with the map and step size of the state, then the learner sees the new positions, then log sigma moves."""
    scheme = hm.eigen(2)
    sampler = hm.adaptive_mala(skewed_logdensity, scheme, NUM_CHAINS, target_acceptance_rate=0.6)
    state = sampler.init(starts())
    np.testing.assert_allclose(state.step_size, (0.5 * DIM**-0.25) ** 2 / 2, rtol=1e-6)
    for seed in range(3):
        key = jax.random.key(seed)
        new, info = sampler.step(key, state)
        kernel = hm.mala(skewed_logdensity, state.step_size, scheme.preconditioner(state.scheme))
        chains, chain_info = jax.vmap(kernel.step)(jax.random.split(key, NUM_CHAINS), state.chains)
        chex.assert_trees_all_close(new.chains, chains, rtol=1e-5, atol=1e-6)
        chex.assert_trees_all_close(new.scheme, scheme.update(state.scheme, chains.position), rtol=1e-4, atol=1e-5)
        moved = (seed + 2) ** -0.7 * (chain_info.acceptance_rate.mean() - 0.6)
        np.testing.assert_allclose(new.log_sigma - state.log_sigma, moved, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(info.step_size, state.step_size)
        state = new


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


def largest_array(jaxpr):
    """Size of the largest array that a program computes, in nested programs too."""
    sizes = [variable.aval.size for equation in jaxpr.eqns for variable in equation.outvars]
    parameters = jax.tree.leaves([equation.params for equation in jaxpr.eqns], is_leaf=is_program)
    nested = [getattr(leaf, "jaxpr", leaf) for leaf in parameters if is_program(leaf)]
    return max(sizes + [largest_array(program) for program in nested], default=0)


def is_program(parameter):
    return isinstance(parameter, Jaxpr | ClosedJaxpr)


@pytest.mark.parametrize(
    "name, limit", [("eigen", 4), ("eigen_averaged", 4), ("eigen_isotropic", 4), ("eigen_identity", 4), ("diagonal", 4)]
)
def test_nothing_of_size_d_by_d(name, limit):
    """Every array in the program of a step at d = 4096, rank 2, 3 chains has at most `limit` * d numbers."""
    dim = 4096
    sampler = hm.adaptive_mala(lambda x: -0.5 * jnp.sum(x**2), SCHEMES[name](), NUM_CHAINS)
    state = sampler.init(jnp.ones((NUM_CHAINS, dim)))
    program = jax.make_jaxpr(sampler.step)(jax.random.key(0), state)
    assert dim * NUM_CHAINS <= largest_array(program.jaxpr) <= limit * dim


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
        ({"a": jnp.zeros((3, 2), jnp.int32)}, TypeError, r"positions\['a'\] must be floating point, got int32"),
    ],
)
def test_bad_positions(positions, error, message):
    with pytest.raises(error, match=message):
        hm.adaptive_mala(lambda x: 0.0, hm.none(), NUM_CHAINS).init(positions)


def test_nonfinite_start_names_the_chain():
    sampler = hm.adaptive_mala(lambda x: jnp.sum(jnp.log(x)), hm.none(), NUM_CHAINS)
    with pytest.raises(ValueError, match=r"chains \[1\]"):
        sampler.init(jnp.ones((NUM_CHAINS, DIM)).at[1, 2].set(-1.0))


def test_has_blackjaxs_shape():
    assert type(hm.adaptive_mala) is type(blackjax.mala)
    assert isinstance(hm.adaptive_mala(skewed_logdensity, hm.none()), blackjax.SamplingAlgorithm)
