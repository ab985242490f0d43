"""Positions are pytrees: structure, names and dtypes of the user's leaves, whatever they are."""

import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import warm_up_and_sample

import householder_mcmc as hm

NUM_CHAINS = 3


def nested(dtype=jnp.float32):
    """A position with scalars, matrices and nesting; d = 8."""
    return {"b": {"w": jnp.ones((2, 3), dtype)}, "a": jnp.asarray(0.5, dtype), "c": (jnp.zeros(1, dtype),)}


def logdensity(position):
    """Independent normal numbers, of a different width in each leaf."""
    return -0.5 * (jnp.sum(position["b"]["w"] ** 2) + position["a"] ** 2 / 4 + jnp.sum((position["c"][0] - 1) ** 2) / 9)


def run(position, scheme=None, sampler="mala"):
    """Warm-up, then ten frozen draws of every chain: positions and infos."""
    positions = jax.tree.map(lambda leaf: jnp.stack([leaf] * NUM_CHAINS), position)
    states, infos = warm_up_and_sample(logdensity, scheme or hm.eigen(2), positions, 200, 10, sampler)
    return states.position, infos


@pytest.mark.parametrize("scheme", [hm.eigen(2), hm.eigen(2, "isotropic"), hm.diagonal(), hm.dense()])
def test_leaves_keep_shape_dtype_and_structure(scheme):
    xs, _ = run(nested(), scheme)
    expected = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((10, NUM_CHAINS, *leaf.shape), leaf.dtype), nested())
    chex.assert_trees_all_equal_shapes_and_dtypes(xs, expected)
    assert all(np.ptp(leaf, axis=0).min() > 0 for leaf in jax.tree.leaves(xs))  # every coordinate moves


def test_the_order_of_keys_does_not_matter():
    position = nested()
    reordered = {name: position[name] for name in ("c", "a", "b")}
    chex.assert_trees_all_equal(run(position), run(reordered))


def test_float32_stays_float32_with_x64(x64):
    xs, infos = run(nested(jnp.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves(xs)} == {jnp.dtype("float32")}
    assert infos.acceptance_rate.dtype == jnp.float32


@pytest.mark.parametrize("sampler", ["mala", "hmc"])
def test_mixed_dtypes_work(x64, sampler):
    """Each leaf keeps its dtype. The linear algebra is in the widest of them."""
    mixed = nested(jnp.float64) | {"a": jnp.asarray(0.5, jnp.float32)}
    with warnings.catch_warnings(action="error"):
        xs, infos = run(mixed, sampler=sampler)
    assert xs["a"].dtype == jnp.float32
    assert xs["b"]["w"].dtype == jnp.float64
    assert 0.2 < infos.acceptance_rate.mean() <= 1


def test_python_scalars_are_positions():
    kernel = hm.mala(lambda x: -0.5 * x["a"] ** 2, 0.5, jnp.ones(1))
    state = kernel.init({"a": 1.0})
    step = jax.jit(kernel.step)
    state, _ = step(jax.random.key(0), state)
    state, _ = step(jax.random.key(1), state)
    assert step._cache_size() == 1
    assert state.position["a"].dtype == jnp.float32


def test_other_dtypes_are_refused_by_name():
    position = nested() | {"a": jnp.ones((), jnp.int32)}
    with pytest.raises(TypeError, match=r"position\['a'\] must be floating point, got int32"):
        hm.mala(logdensity, 0.1, jnp.ones(8)).init(position)
    with pytest.raises(TypeError, match=r"position\['a'\] must be floating point, got int32"):
        run(position)
