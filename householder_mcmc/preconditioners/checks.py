"""Checks of what is given, before anything is traced."""

import operator
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax import Array

__all__ = ["is_concrete", "require_vector", "require_integer", "require_numbers"]


def is_concrete(x) -> bool:
    """Whether the values of an array can be read here. Not if it is traced, or partly held by other processes."""
    return not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True)


def require_vector(x: Array, dim: int) -> Array:
    """x, if it is a vector of length `dim`; else ValueError."""
    if jnp.shape(x) != (dim,):
        raise ValueError(f"expected a vector of shape ({dim},), got shape {jnp.shape(x)}: vmap over chains or draws.")
    return jnp.asarray(x)


def require_integer(name: str, value: Any, least: int = 1) -> int:
    """The value, if it is an integer of at least `least`; else TypeError or ValueError, which call it `name`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}.") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}.")
    return number


def require_numbers(position: Any) -> None:
    """Raise ValueError if a position, or positions of chains, have d = 0."""
    if not any(jnp.size(leaf) for leaf in jax.tree.leaves(position)):
        raise ValueError("a position must have at least one number, got d = 0.")
