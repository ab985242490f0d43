"""Products and means that all modules use, the check of what a map is given, and its dense form for tests."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

__all__ = ["dot", "project", "mean_of_rows", "check_vector", "columns"]


def dot(a: Array, b: Array) -> Array:
    """a @ b at full precision: the default of GPUs and TPUs loses half the digits."""
    return jnp.matmul(a, b, precision="highest")


def project(rows: Array, x: Array) -> Array:
    """rows @ x.T for rows (rank, d) and a vector (d,) or vectors (n, d), fast on a CPU.

    Without the barrier XLA turns a product of which the transpose is used around, x @ rows.T, which takes 7 times as
    long at d = 10^6.
    """
    return lax.optimization_barrier(dot(rows, x.T))


def mean_of_rows(x: Array) -> Array:
    """The mean of x (n, d) over its rows, as a product: `jnp.mean` takes 20-50 times as long on a CPU, for few rows."""
    return dot(jnp.full(x.shape[0], 1 / x.shape[0], x.dtype), x)


def check_vector(x: Array, dim: int) -> Array:
    """x, if it is a vector of length `dim`; else ValueError."""
    if jnp.shape(x) != (dim,):
        raise ValueError(f"expected a vector of shape ({dim},), got shape {jnp.shape(x)}.")
    return jnp.asarray(x)


def columns(apply: Callable[[Array], Array], dim: int, dtype) -> Array:
    """A linear map on vectors of length `dim` as a (dim, dim) array: for tests."""
    return jax.vmap(apply, out_axes=1)(jnp.eye(dim, dtype=dtype))
