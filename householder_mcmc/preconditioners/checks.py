"""Checks of what is given, before anything is traced."""

import operator
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax import Array

__all__ = [
    "is_concrete",
    "require_vector",
    "require_integer",
    "require_numbers",
    "require_floats",
    "require_chains",
]


def is_concrete(x) -> bool:
    """Whether the values of an array can be read here: it is not traced, and no part is only on other processes."""
    if isinstance(x, jax.core.Tracer):
        return False
    return getattr(x, "is_fully_addressable", True) or x.is_fully_replicated


def require_vector(x: Array, dim: int) -> Array:
    """Return x if it is a vector of length `dim`. Raises ValueError otherwise."""
    if jnp.shape(x) != (dim,):
        raise ValueError(f"expected a vector of shape ({dim},), got shape {jnp.shape(x)}: vmap over chains or draws.")
    return jnp.asarray(x)


def require_integer(name: str, value: Any, least: int = 1) -> int:
    """Return the value as an int. Raises TypeError if it is no integer, ValueError if it is below `least`.

    name: what the errors call it.
    """
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


def require_floats(position: Any) -> Any:
    """A position, or positions of chains, as arrays without weak types. Raises TypeError on leaves of other numbers."""
    position = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), position)
    for path, leaf in jax.tree_util.tree_leaves_with_path(position):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(f"position{jax.tree_util.keystr(path)} must be floating point, got {leaf.dtype}.")
    return position


def require_chains(positions: Any, use: str, num_chains: int | None = None) -> Any:
    """Positions of chains, leaves (num_chains, ...), as arrays without weak types.

    num_chains: by default any, the same for all leaves. use: what they are used for, as the error about fewer than 32
    bits says it.

    Raises
    ------
    ValueError
        If a leaf lacks the chain axis, or d = 0.
    TypeError
        If a leaf is not floating point, or all have fewer than 32 bits.
    """
    require_numbers(positions)
    positions = require_floats(positions)
    leaves = jax.tree_util.tree_leaves_with_path(positions)
    axis = jnp.shape(leaves[0][1])[:1] if num_chains is None else (num_chains,)
    for path, leaf in leaves:
        if not axis or leaf.shape[:1] != axis:
            expected = "all chains" if num_chains is None else f"num_chains = {num_chains}"
            raise ValueError(
                f"positions{jax.tree_util.keystr(path)} must have a leading axis of {expected}, got shape {leaf.shape}."
            )
    dtype = jnp.result_type(*(leaf for _, leaf in leaves))
    if jnp.finfo(dtype).bits < 32:
        raise TypeError(f"positions must be of at least 32 bits where they are {use}, got {dtype}.")
    return positions
