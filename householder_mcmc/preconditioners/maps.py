"""Linear preconditioners L, as arrays: the proposal covariance is sigma^2 L L^T.

L L^T is what BlackJAX calls the inverse mass matrix. Each class is a NamedTuple of arrays (it passes through jit, vmap,
scan and disk) with `apply` (L z), `apply_transpose` (L^T g), their inverses `solve` (L^{-1} x) and `solve_transpose`
(L^{-T} z), `to_dense`, and `to_inverse_mass_matrix` for BlackJAX. Another map is another such class: `Preconditioner`,
what `mala` needs, is a protocol and not a base class.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.metrics import LowRankInverseMassMatrix
from jax import Array
from jax.scipy.linalg import solve_triangular

from householder_mcmc.linalg import dot, project
from householder_mcmc.preconditioners.checks import is_concrete, require_integer, require_vector
from householder_mcmc.preconditioners.reflections import (
    CompactReflections,
    SequentialReflections,
    as_matrix,
    compact,
    require_orthonormal,
    sequential,
)
from householder_mcmc.preconditioners.spectrum import count_directions

__all__ = ["Preconditioner", "Diagonal", "Dense", "LowRank", "Householder", "as_preconditioner", "cast_floats"]


# Dimensions up to which `effective_rank` chooses the scales: 10 seconds at rank 32.
_MOST_COUNTED = 20_000


@runtime_checkable
class Preconditioner(Protocol):
    """A linear map L on vectors of length d."""

    def apply(self, z: Array) -> Array:
        """L @ z for z (d,)."""
        ...

    def apply_transpose(self, g: Array) -> Array:
        """L.T @ g for g (d,)."""
        ...

    def to_dense(self) -> Array:
        """L as a (d, d) array: for tests."""
        ...


class Diagonal(NamedTuple):
    """L = diag(scales). scales (d,): positive standard deviations. O(d)."""

    scales: Array

    def apply(self, z: Array) -> Array:
        return _scale(self.scales, z)

    def apply_transpose(self, g: Array) -> Array:
        return _scale(self.scales, g)

    def solve(self, x: Array) -> Array:
        return _scale(1 / self.scales, x)

    def solve_transpose(self, z: Array) -> Array:
        return _scale(1 / self.scales, z)

    def to_dense(self) -> Array:
        return jnp.diag(self.scales)

    def to_inverse_mass_matrix(self) -> Array:
        """The variances, (d,)."""
        return self.scales**2


class Dense(NamedTuple):
    """L = cholesky. cholesky (d, d): the lower triangular square root of the covariance. O(d^2)."""

    cholesky: Array

    def apply(self, z: Array) -> Array:
        return dot(self.cholesky, require_vector(z, self.cholesky.shape[1]))

    def apply_transpose(self, g: Array) -> Array:
        return dot(require_vector(g, self.cholesky.shape[0]), self.cholesky)

    def solve(self, x: Array) -> Array:
        return solve_triangular(self.cholesky, require_vector(x, self.cholesky.shape[0]), lower=True)

    def solve_transpose(self, z: Array) -> Array:
        return solve_triangular(self.cholesky, require_vector(z, self.cholesky.shape[1]), lower=True, trans=1)

    def to_dense(self) -> Array:
        return self.cholesky

    def to_inverse_mass_matrix(self) -> Array:
        """L L^T, (d, d)."""
        return dot(self.cholesky, self.cholesky.T)


class LowRank(NamedTuple):
    """L = diag(scales) (I + V^T (diag(eigenvalues)^(1/2) - I) V): a diagonal times a symmetric low-rank update.

    L L^T is BlackJAX's `LowRankInverseMassMatrix(sigma=scales, U=V.T, lam=eigenvalues)`. O(rank d).

    scales (d,): positive. eigenvectors (rank, d): V, orthonormal rows. eigenvalues (rank,): positive variances along
    them after division by `scales`.
    """

    scales: Array
    eigenvectors: Array
    eigenvalues: Array

    @classmethod
    def from_covariance(cls, diagonal: Array, factor: Array) -> "LowRank":
        """The L with L L^T = diag(diagonal) + factor^T factor. O(rank^2 d).

        diagonal (d,): positive variances. factor (rank, d), rank <= d. Raises ValueError on other shapes.
        """
        diagonal, factor = jnp.asarray(diagonal), jnp.asarray(factor)
        if diagonal.ndim != 1 or factor.ndim != 2 or not 1 <= factor.shape[0] <= factor.shape[1] == diagonal.shape[0]:
            raise ValueError(
                "diagonal must have shape (d,) and factor (rank, d) with 1 <= rank <= d, "
                f"got {diagonal.shape} and {factor.shape}."
            )
        scales = jnp.sqrt(diagonal)
        _, singular_values, eigenvectors = jnp.linalg.svd(factor / scales[None], full_matrices=False)
        return cls(scales, eigenvectors, 1 + singular_values**2)

    def apply(self, z: Array) -> Array:
        return self.scales * self._root(require_vector(z, self.scales.shape[0]))

    def apply_transpose(self, g: Array) -> Array:
        return self._root(_scale(self.scales, g))

    def solve(self, x: Array) -> Array:
        return self._root(_scale(1 / self.scales, x), power=-0.5)

    def solve_transpose(self, z: Array) -> Array:
        return self._root(require_vector(z, self.scales.shape[0]), power=-0.5) / self.scales

    def to_dense(self) -> Array:
        return as_matrix(self.apply, self.scales.shape[0], self.scales.dtype)

    def to_inverse_mass_matrix(self) -> LowRankInverseMassMatrix:
        """L L^T in BlackJAX's form."""
        return LowRankInverseMassMatrix(self.scales, self.eigenvectors.T, self.eigenvalues)

    def effective_rank(self, factor: float = 3.0) -> Array | int:
        """How many directions have a variance beyond `factor`, or below its inverse, once the scales are taken out.

        The scales are chosen anew for that, so that directions that only undo scales do not count (at d = 1000 it takes
        a fifth of a second). Under jit, where values are not known, and above d = 20,000 the scales are those of the
        map, and the number may be larger.
        """
        if all(map(is_concrete, self)) and len(self.scales) <= _MOST_COUNTED:
            scales, eigenvectors, eigenvalues = (np.asarray(leaf, np.float64) for leaf in self)
            return count_directions(scales, eigenvectors, eigenvalues, factor)
        return jnp.sum(jnp.maximum(self.eigenvalues, 1 / self.eigenvalues) > factor)

    def compress(self, multiple: int = 1) -> "LowRank":
        """The same map without the directions whose eigenvalue is 1, which do nothing: O(effective rank d).

        multiple: of which the new rank shall be one, so that maps of nearly equal ranks share compiled programs. Under
        jit, where values are not known, the map as it is. Raises TypeError or ValueError if `multiple` is no integer of
        at least 1.
        """
        multiple = require_integer("multiple", multiple)
        if not all(map(is_concrete, self)):
            return self
        rows = np.argsort(np.asarray(self.eigenvalues) == 1, kind="stable")  # those that are used first, in order
        num_used = int(np.sum(np.asarray(self.eigenvalues) != 1))
        rows = rows[: min(-(-max(num_used, 1) // multiple) * multiple, len(rows))]
        return self._replace(eigenvectors=self.eigenvectors[rows], eigenvalues=self.eigenvalues[rows])

    def _root(self, x, power=0.5):
        stretch = self.eigenvalues**power - 1
        return x + dot(stretch * project(self.eigenvectors, x), self.eigenvectors)


class Householder(NamedTuple):
    """L = Q diag(scales): the preconditioner of Hird & Livingstone (2026), Section 2. O(rank d).

    rotation: Q, from `reflections.compact` or `reflections.sequential`. scales (d,): positive standard deviations along
    the columns of Q, the learnt eigenvectors first.
    """

    rotation: CompactReflections | SequentialReflections
    scales: Array

    def apply(self, z: Array) -> Array:
        return self.rotation.apply(_scale(self.scales, z))

    def apply_transpose(self, g: Array) -> Array:
        return _scale(self.scales, self.rotation.apply_transpose(g))

    def solve(self, x: Array) -> Array:
        return _scale(1 / self.scales, self.rotation.apply_transpose(x))

    def solve_transpose(self, z: Array) -> Array:
        return self.rotation.apply(_scale(1 / self.scales, z))

    def to_inverse_mass_matrix(self):
        """Raises TypeError: BlackJAX has no type for L L^T with a scale for every column of Q."""
        raise TypeError("BlackJAX has no inverse mass matrix type for a Householder map: use hm.to_metric(p).")

    def to_dense(self) -> Array:
        return as_matrix(self.apply, self.scales.shape[0], self.scales.dtype)

    def effective_rank(self, factor: float = 3.0) -> Array | int:
        """How many eigenvectors have more than `factor` times the median variance of the other columns of Q."""
        num = jnp.sum(self._stands_out(factor))
        return int(num) if is_concrete(num) else num

    def compress(self, factor: float = 3.0) -> "Householder":
        """A map without the eigenvectors that do not stand out by `factor`: the paper's reduction of m.

        The variances of those that are dropped go to the columns of the new Q that take their places, so this is nearly
        the same map where they are alike. At least one eigenvector stays. Under jit the map as it is.
        """
        if not all(map(is_concrete, jax.tree.leaves(self))):
            return self
        stands_out = np.array(self._stands_out(factor))
        stands_out[np.argmax(self.scales[: len(stands_out)])] = True
        order = np.argsort(~stands_out, kind="stable")
        axes = jnp.eye(len(order), len(self.scales), dtype=self.scales.dtype)
        eigenvectors = jax.vmap(self.rotation.apply)(axes)[order[: np.sum(stands_out)]]
        build = compact if isinstance(self.rotation, CompactReflections) else sequential
        return Householder(build(eigenvectors), self.scales.at[: len(order)].set(self.scales[order]))

    def _stands_out(self, factor):
        rank = len(self.rotation.signs)
        level = jnp.median(self.scales[rank:]) if rank < len(self.scales) else jnp.min(self.scales)
        return self.scales[:rank] ** 2 > factor * level**2


def as_preconditioner(inverse_mass_matrix) -> Preconditioner:
    """The preconditioner L with L L^T equal to a BlackJAX inverse mass matrix.

    Parameters
    ----------
    inverse_mass_matrix
        (d,) variances, a (d, d) covariance, a BlackJAX `LowRankInverseMassMatrix`, or a preconditioner, which is
        returned as it is. A (d, d) array costs a Cholesky factorisation, O(d^3), at every call.

    Raises
    ------
    TypeError
        If it is none of these, or a preconditioner that is no pytree.
    ValueError
        If an array has another shape; unless traced, on variances or scales that are not positive and finite, a matrix
        that is not positive definite or has no inverse, and eigenvectors that are not orthonormal. Rows within 10% of
        that, as after rounding to half precision, are made orthonormal.
    """
    if isinstance(inverse_mass_matrix, LowRankInverseMassMatrix):
        sigma, u, lam = inverse_mass_matrix
        inverse_mass_matrix = LowRank(sigma, u.T, lam)
    if isinstance(inverse_mass_matrix, Preconditioner):
        if jax.tree_util.all_leaves([inverse_mass_matrix]):
            raise TypeError(
                f"a preconditioner must be a pytree of arrays, such as a NamedTuple, got {inverse_mass_matrix!r}."
            )
        if any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(inverse_mass_matrix)):  # from a file, say
            inverse_mass_matrix = jax.tree.map(jnp.asarray, inverse_mass_matrix)
        return _checked(inverse_mass_matrix)
    try:
        array = jnp.asarray(inverse_mass_matrix)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "inverse_mass_matrix must be a (d,) or (d, d) array, a LowRankInverseMassMatrix or a preconditioner, "
            f"got {type(inverse_mass_matrix).__name__}."
        ) from error
    if array.ndim == 1:
        _require_positive("variances", array)
        return Diagonal(jnp.sqrt(array))
    if array.ndim == 2 and array.shape[0] == array.shape[1]:
        _require_positive("variances", jnp.diagonal(array))
        cholesky = jnp.linalg.cholesky(array)
        if is_concrete(cholesky) and not np.all(np.isfinite(cholesky)):
            raise ValueError("inverse_mass_matrix must be positive definite: it has no Cholesky factor.")
        return Dense(cholesky)
    raise ValueError(f"inverse_mass_matrix must have shape (d,) or (d, d), got {array.shape}.")


def cast_floats(tree: Any, dtype) -> Any:
    """A preconditioner, or positions, with the floating point arrays in `dtype`."""

    def cast(leaf):
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    return jax.tree.map(cast, tree)


def _checked(preconditioner):
    """The map, if it is what it claims to be: its values are, where they are known."""
    if isinstance(preconditioner, Diagonal | LowRank | Householder):
        _require_positive("scales", preconditioner.scales)
    if isinstance(preconditioner, LowRank):
        _require_positive("eigenvalues", preconditioner.eigenvalues)
        if not (is_concrete(preconditioner.eigenvectors) and is_concrete(preconditioner.eigenvalues)):
            return preconditioner
        # rows of zeros do nothing, and rows with eigenvalue 1, to rounding, neither
        has_entries = np.any(np.asarray(preconditioner.eigenvectors) != 0, axis=1)
        is_used = (np.abs(np.asarray(preconditioner.eigenvalues) - 1) > 1e-4) & has_entries
        rows = require_orthonormal(preconditioner.eigenvectors, is_used)
        return preconditioner if rows is preconditioner.eigenvectors else preconditioner._replace(eigenvectors=rows)
    if isinstance(preconditioner, Householder) and isinstance(preconditioner.rotation, CompactReflections):
        require_orthonormal(preconditioner.rotation.eigenvectors, repair=False)
    if isinstance(preconditioner, Dense) and is_concrete(preconditioner.cholesky):
        root = np.asarray(preconditioner.cholesky, np.float64)
        if not np.all(np.isfinite(root)) or np.any(np.triu(root, 1)) or not np.all(np.diag(root)):
            raise ValueError("the root of a Dense preconditioner must be finite, lower triangular and have an inverse.")
    return preconditioner


def _require_positive(name, values):
    if is_concrete(values) and not np.all((np.asarray(values) > 0) & np.isfinite(values)):
        raise ValueError(f"inverse_mass_matrix must have positive and finite {name}, got {np.asarray(values)}.")


def _scale(scales, x):
    return scales * require_vector(x, scales.shape[0])
