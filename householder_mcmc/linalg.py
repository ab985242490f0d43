"""Products, means and eliminations at full precision, in the forms that XLA runs fast."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

__all__ = [
    "dot",
    "project",
    "mean_of_rows",
    "leading",
    "at_leading",
    "eliminate",
    "inverse_cholesky",
]

# Passes of an elimination that are unrolled on a GPU. Compilation grows with them; 32 is the default rank.
_MOST_UNROLLED = 32

# A factor of a product with at most this many numbers, 4 MB in float32, is still in a CPU's cache at a second reading.
_FITS_A_CACHE = 10**6

# Lengths of the chunks in which a GPU sums over d. The first that divides d and makes more than `_FEWEST_CHUNKS` is
# used. Round sizes of d have a divisor near 2000, and sums of a few thousand float32 numbers lose no digit.
_CHUNKS = (4096, 2500, 2048, 2000, 1024, 1000)
_FEWEST_CHUNKS = 16


def dot(a: Array, b: Array) -> Array:
    """a @ b at full precision: the default of GPUs and TPUs loses half the digits."""
    return jnp.matmul(a, b, precision="highest")


def project(rows: Array, x: Array) -> Array:
    """rows @ x.T for rows (rank, d) and a vector (d,) or vectors (n, d), fast where d is long.

    CPU: the barrier stops XLA from computing the transposed product x @ rows.T where the result is transposed. That
    takes 7 times as long for few vectors at d = 10^6. For many long vectors, 64 of them and 10 rows, it takes a third
    of the time, so it is used there, under `vmap` too. GPU: the sum over d is cut into chunks that run side by side, in
    half the time.
    """
    return _project_vector(rows, x) if x.ndim == 1 else _project(rows, x)


def _project(rows, x):
    chunk = next((size for size in _CHUNKS if x.shape[-1] % size == 0 and x.shape[-1] > _FEWEST_CHUNKS * size), None)

    def chunked(rows, x):
        rows, x = (array.reshape(*array.shape[:-1], -1, chunk) for array in (rows, x))
        return jnp.sum(jnp.einsum("rcd,...cd->cr...", rows, x, precision="highest"), axis=0)

    def whole(rows, x):
        return dot(rows, x.T)

    def on_cpu(rows, x):
        if x.ndim == 2 and len(x) > 2 * len(rows) and x.size > _FITS_A_CACHE:
            return lax.optimization_barrier(dot(x, rows.T)).T
        return lax.optimization_barrier(whole(rows, x))

    return lax.platform_dependent(rows, x, cpu=on_cpu, default=chunked if chunk else whole)


_project_one_of_many = custom_vmap(_project)


@_project_one_of_many.def_vmap
def _project_many(axis_size, in_batched, rows, x):
    del axis_size
    if in_batched == [False, True]:
        return _project(rows, x).T, True
    return jax.vmap(_project, [0 if is_batched else None for is_batched in in_batched])(rows, x), True


@jax.custom_jvp  # because what has a rule for `vmap` has no gradient
def _project_vector(rows, x):
    return _project_one_of_many(rows, x)


@_project_vector.defjvp
def _project_vector_jvp(primals, tangents):
    (rows, x), (of_rows, of_x) = primals, tangents
    return _project_vector(rows, x), _project(of_rows, x) + _project(rows, of_x)


def mean_of_rows(x: Array) -> Array:
    """The mean (d,) of x (n, d) over its rows, as a product: `jnp.mean` takes 20-50 times as long on a CPU, n small."""
    return dot(jnp.full(x.shape[0], 1 / x.shape[0], x.dtype), x)


def leading(x: Array, num: int) -> Array:
    """The first `num` entries along the last axis."""
    return at_leading(x, num).get(mode="promise_in_bounds")


def at_leading(x: Array, num: int):
    """x.at[..., :num], by index, so that XLA sends `num` numbers a row, and not all of x, if the axis is sharded."""
    return jnp.asarray(x).at[..., jnp.arange(num)]


def eliminate(body: Callable, carry, rank: int):
    """fori_loop(0, rank, body, carry) for work on small matrices, unrolled on a GPU, where each pass is a few launches.

    Unrolled it takes a thirtieth of the time on a GPU at rank 10-32, and two to four times as long on a CPU.
    """
    return lax.platform_dependent(
        carry,
        cpu=lambda carry: lax.fori_loop(0, rank, body, carry),
        default=lambda carry: lax.fori_loop(0, rank, body, carry, unroll=min(rank, _MOST_UNROLLED)),
    )


def inverse_cholesky(gram: Array) -> Array:
    """The inverse of the Cholesky factor of gram (rank, rank); not finite if gram is not positive definite.

    One elimination in place: a column that is used up holds that column of the inverse. Not LAPACK, because two calls
    of it in one batched program can take all threads of a small CPU's pool, and wait for ever.
    """
    index = jnp.arange(gram.shape[0])

    def body(k, block):
        is_k, below = index == k, index > k
        scale = 1 / jnp.sqrt(block[k, k])  # lax.rsqrt loses a digit
        row = jnp.where(is_k, 1, block[k]) * scale
        column = jnp.where(below, block[:, k] * scale, 0)
        rest = jnp.where(is_k[None, :] & below[:, None], 0, block)
        return jnp.where(is_k[:, None], row[None, :], rest - jnp.outer(column, row))

    return jnp.tril(eliminate(body, gram, gram.shape[0]))
