r"""Orthogonal Q whose first `rank` columns are given eigenvectors; never a (d, d) array.

Q = H_m ... H_1 diag(signs, 1) with H_k = I - 2 u_k u_k^T and u_k along H_{k-1} ... H_1 e_k - s_k v_k.

Source: Hird & Livingstone (2026), Definition 3 and equation (1). The signs differ: s_k is chosen so that u_k is long.
(The paper's s_k = 1 is 0/0 where e_k is already v_k, and loses digits near there.) The signs are folded back, so that
column k of Q is exactly v_k.

Two forms give the same Q. `sequential` is the paper's: it stores the normals and reflects one by one. `compact` stores
nothing of size d beyond the eigenvectors. The product of the reflections is I + W K W^T with W = V^T diag(s) - E and
K = (B - I)^{-1}, where E is the first `rank` columns of I and B = diag(s) V E.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from householder_mcmc.linalg import at_leading, dot, eliminate, leading, project
from householder_mcmc.preconditioners.checks import is_concrete, require_vector

__all__ = ["SequentialReflections", "CompactReflections", "sequential", "compact", "as_matrix", "require_orthonormal"]


# Overlaps below this many units of rounding are zero. At rank 32 their rounding is a few units.
_ROUNDING = 64

# Inner products of eigenvectors may differ by this from those of orthonormal rows. Rows rounded to bfloat16 are well
# within, because each number is off by 0.4% at most.
_LARGEST_DISTANCE = 0.1


class SequentialReflections(NamedTuple):
    """Q as a product of reflections, applied one by one.

    normals (rank, d): row k is the unit normal of H_k. signs (rank,): +1 or -1.
    """

    normals: Array
    signs: Array

    def apply(self, x: Array) -> Array:
        """Q @ x for x (d,). O(rank d), `rank` dependent passes over x."""
        x = require_vector(x, self.normals.shape[1])
        return lax.scan(_reflect, _flip(x, self.signs), self.normals)[0]

    def apply_transpose(self, x: Array) -> Array:
        """Q.T @ x for x (d,). O(rank d), `rank` dependent passes over x."""
        x = require_vector(x, self.normals.shape[1])
        reflected, _ = lax.scan(_reflect, x, self.normals, reverse=True)
        return _flip(reflected, self.signs)

    def to_dense(self) -> Array:
        """Q as a (d, d) array: for tests."""
        return as_matrix(self.apply, self.normals.shape[1], self.normals.dtype)


class CompactReflections(NamedTuple):
    """Q as one update of the identity, of rank m.

    eigenvectors (rank, d): row k is column k of Q. signs (rank,): +1 or -1. core (rank, rank): the matrix K.
    """

    eigenvectors: Array
    signs: Array
    core: Array

    def apply(self, x: Array) -> Array:
        """Q @ x for x (d,). Two products with the eigenvectors, O(rank d)."""
        x = require_vector(x, self.eigenvectors.shape[1])
        head, block = self._leading(x)
        flipped = self.signs * head
        projections = project(self.eigenvectors, x) + dot(block, flipped - head)
        return self._update(x, flipped, projections, self.core)

    def apply_transpose(self, x: Array) -> Array:
        """Q.T @ x for x (d,). Two products with the eigenvectors, O(rank d)."""
        x = require_vector(x, self.eigenvectors.shape[1])
        return self.complete_transpose(x, project(self.eigenvectors, x))

    def complete_transpose(self, x: Array, projections: Array) -> Array:
        """Q.T @ x for x (d,) whose projections on the eigenvectors (rank,) are known: one product with them."""
        head, _ = self._leading(x)
        return self._update(x, head, projections, self.core.T, self.signs)

    def to_dense(self) -> Array:
        """Q as a (d, d) array: for tests."""
        return as_matrix(self.apply, self.eigenvectors.shape[1], self.eigenvectors.dtype)

    def _leading(self, x):
        """The first `rank` coordinates of x and of the eigenvectors: where W is not the eigenvectors."""
        return leading(x, len(self.signs)), leading(self.eigenvectors, len(self.signs))

    def _update(self, x, head, projections, core, signs: Array | int = 1):
        """y + W core W^T y. y is x with its leading coordinates replaced by `head`.

        projections (rank,): of y on the eigenvectors. signs: what the leading coordinates of the result are multiplied
        by.
        """
        weights = dot(core, self.signs * projections - head)
        combination = self.signs * weights
        _, block = self._leading(x)
        new_head = signs * (head + dot(combination, block) - weights)
        return at_leading(x + dot(combination, self.eigenvectors), len(head)).set(new_head, unique_indices=True)


def sequential(eigenvectors: Array) -> SequentialReflections:
    """Build Q by a scan over reflections.

    Parameters
    ----------
    eigenvectors
        (rank, d), orthonormal rows, rank <= d.

    Returns
    -------
    SequentialReflections. Building costs O(rank^2 d) in `rank^2` dependent passes.

    Raises
    ------
    ValueError
        If `eigenvectors` is not a matrix with 1 <= rank <= d. If it is not traced, also if its rows are not
        orthonormal within 10%. Rows within 10% are made orthonormal.
    """
    eigenvectors = _check(eigenvectors)
    rank, dim = eigenvectors.shape

    def add_reflection(normals, k_and_eigenvector):
        k, eigenvector = k_and_eigenvector
        axis = jnp.zeros(dim, eigenvectors.dtype).at[k].set(1)
        image, _ = lax.scan(_reflect, axis, normals)  # rows not yet built are zero: they reflect nothing
        sign = _long_sign(dot(image, eigenvector))
        normal = image - sign * eigenvector
        return normals.at[k].set(normal / jnp.linalg.norm(normal)), sign

    normals, signs = lax.scan(add_reflection, jnp.zeros_like(eigenvectors), (jnp.arange(rank), eigenvectors))
    return SequentialReflections(normals, signs)


def compact(eigenvectors: Array) -> CompactReflections:
    """Build Q in closed form.

    Parameters
    ----------
    eigenvectors
        (rank, d), orthonormal rows, rank <= d.

    Returns
    -------
    CompactReflections. Building costs O(rank^3) and reads only the leading (rank, rank) block.

    Raises
    ------
    ValueError
        If `eigenvectors` is not a matrix with 1 <= rank <= d. If it is not traced, also if its rows are not
        orthonormal within 10%. Rows within 10% are made orthonormal.
    """
    eigenvectors = _check(eigenvectors)
    signs, core = _signs_and_core(leading(eigenvectors, eigenvectors.shape[0]))
    return CompactReflections(eigenvectors, signs, core)


def as_matrix(apply: Callable[[Array], Array], dim: int, dtype) -> Array:
    """A linear map on vectors of length `dim` as a (dim, dim) array: for tests and figures."""
    return jax.vmap(apply, out_axes=1)(jnp.eye(dim, dtype=dtype))


def require_orthonormal(rows: Array, is_used: np.ndarray | None = None, repair: bool = True) -> Array:
    """Rows (rank, d) as orthonormal rows; traced rows as they are.

    Raises ValueError if inner products are further than 0.1 from those of orthonormal rows. If they are nearer, but by
    more than rounding, the rows are made orthonormal, unless `repair` is false. is_used (rank,): which rows matter.
    """
    if not is_concrete(rows):
        return rows
    # by NumPy: under jit, products of arrays whose values are known have none
    used = np.arange(rows.shape[0]) if is_used is None else np.flatnonzero(is_used)
    chosen = np.asarray(rows, np.float64)[used]
    distance = np.max(np.abs(chosen @ chosen.T - np.eye(len(used))), initial=0)
    if not distance < _LARGEST_DISTANCE:
        raise ValueError(
            f"eigenvectors must have orthonormal rows; inner products of these are up to {distance:.2g} away from that."
        )
    if not repair or distance < _rounding(rows):
        return rows
    orthonormal = np.linalg.qr(chosen.T)[0].T
    orthonormal *= np.sign(np.sum(orthonormal * chosen, axis=1, keepdims=True))
    return jnp.asarray(rows).at[used].set(jnp.asarray(orthonormal, rows.dtype))


def _rounding(rows):
    """Rounding of inner products of orthonormal rows: 100 eps, and beyond d = 100 in proportion to d^(1/2)."""
    return 100 * float(jnp.finfo(rows.dtype).eps) * max(1.0, rows.shape[1] ** 0.5 / 10)


@jax.jit  # compiled once where a map is built outside of jit, as for a learner's start
def _signs_and_core(block):
    """The signs s of the sequential form and K = (diag(s) V_1 - I)^{-1}, from V_1, the (rank, rank) leading block.

    Gauss-Jordan elimination in place. A row's sign is chosen when its turn comes: entry (k, k) is then
    <H_{k-1} ... H_1 e_k, v_k>, and the pivot s_k A_kk - 1 has size at least 1, to rounding. So no pivoting is needed.
    """
    index = jnp.arange(block.shape[0])

    def body(k, carry):
        block, signs = carry
        is_k = index == k
        sign = _long_sign(block[k, k])
        row = sign * block[k]
        row = jnp.where(is_k, 1, row) / (row[k] - 1)
        column = jnp.where(is_k, 0, block[:, k])
        rest = jnp.where(is_k[None, :] | is_k[:, None], 0, block)
        return jnp.where(is_k[:, None], row[None, :], rest) - jnp.outer(column, row), signs.at[k].set(sign)

    core, signs = eliminate(body, (block, jnp.ones_like(block[0])), block.shape[0])
    return signs, core


def _long_sign(overlap):
    """The sign s with |image - s v| >= sqrt(2), to rounding, given overlap = <image, v>.

    Where image and eigenvector are orthogonal, as for permuted axes, s = 1 whatever the rounding of their overlap, so
    that both forms of Q choose the same sign.
    """
    return jnp.where(overlap > _ROUNDING * jnp.finfo(overlap.dtype).eps, -1, 1).astype(overlap.dtype)


def _reflect(x, normal):
    return x - 2 * normal * dot(normal, x), None


def _flip(x, signs):
    return at_leading(x, len(signs)).multiply(signs, unique_indices=True)


def _check(eigenvectors):
    eigenvectors = jnp.asarray(eigenvectors)
    if eigenvectors.ndim != 2 or not 1 <= eigenvectors.shape[0] <= eigenvectors.shape[1]:
        raise ValueError(f"eigenvectors must have shape (rank, d) with 1 <= rank <= d, got {eigenvectors.shape}.")
    if not jnp.issubdtype(eigenvectors.dtype, jnp.floating):
        raise ValueError(f"eigenvectors must be floating point, got {eigenvectors.dtype}.")
    return require_orthonormal(eigenvectors)
