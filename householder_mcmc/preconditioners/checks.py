"""Checks of what is given, before anything is traced."""

import jax.core
import jax.numpy as jnp
from jax import Array

__all__ = ["is_concrete", "require_vector"]


def is_concrete(x) -> bool:
    """Whether the values of an array can be read here. Not if it is traced, or partly held by other processes."""
    return not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True)


def require_vector(x: Array, dim: int) -> Array:
    """x, if it is a vector of length `dim`; else ValueError."""
    if jnp.shape(x) != (dim,):
        raise ValueError(f"expected a vector of shape ({dim},), got shape {jnp.shape(x)}: vmap over chains or draws.")
    return jnp.asarray(x)
