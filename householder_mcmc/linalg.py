"""The one product all modules use, the check of what it is given, and the dense form of a map for tests."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["dot", "check_vector", "columns"]


def dot(a: Array, b: Array) -> Array:
    """a @ b at full precision: the default of GPUs and TPUs loses half the digits."""
    return jnp.matmul(a, b, precision="highest")


def check_vector(x: Array, dim: int) -> Array:
    """x, if it is a vector of length `dim`; else ValueError."""
    if jnp.shape(x) != (dim,):
        raise ValueError(f"expected a vector of shape ({dim},), got shape {jnp.shape(x)}.")
    return jnp.asarray(x)


def columns(apply: Callable[[Array], Array], dim: int, dtype) -> Array:
    """A linear map on vectors of length `dim` as a (dim, dim) array: for tests."""
    return jax.vmap(apply, out_axes=1)(jnp.eye(dim, dtype=dtype))
