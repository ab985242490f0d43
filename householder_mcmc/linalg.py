"""The one product all modules use, and the check of what it is given."""

import jax.numpy as jnp
from jax import Array

__all__ = ["dot", "check_vector"]


def dot(a: Array, b: Array) -> Array:
    """a @ b at full precision: the default of GPUs and TPUs loses half the digits."""
    return jnp.matmul(a, b, precision="highest")


def check_vector(x: Array, dim: int) -> Array:
    """x, if it is a vector of length `dim`; else ValueError."""
    if jnp.shape(x) != (dim,):
        raise ValueError(f"expected a vector of shape ({dim},), got shape {jnp.shape(x)}.")
    return jnp.asarray(x)
