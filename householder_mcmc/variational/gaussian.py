"""Gaussians whose covariance, or its square root, is diagonal plus low-rank: the parameters of the optimisers.

Both families are NamedTuples of a mean, a diagonal and a factor, on which optax works as on any parameters. Solves and
determinants use the rank x rank matrix I + A A^T, A = factor diag(diagonal)^(-1/2), by the matrix inversion and
determinant lemmas. Mahalanobis distances are sums of squares of residuals, so that nothing cancels.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve

from householder_mcmc.linalg import dot
from householder_mcmc.preconditioners.checks import is_concrete, require_integer, require_numbers
from householder_mcmc.preconditioners.maps import LowRank

__all__ = ["LowRankGaussian", "LowRankScaleGaussian", "check", "ravel_mean"]


class LowRankGaussian(NamedTuple):
    """N(mean, diag(diagonal) + factor^T factor). O(rank^2 d) a call.

    mean: a position, any pytree of floating point arrays, (d,) when ravelled. diagonal (d,): positive, in the order of
    the ravelled mean. factor (rank, d), rank <= d.
    """

    mean: ArrayTree
    diagonal: Array
    factor: Array

    @classmethod
    def start(cls, position: ArrayLikeTree, rank: int) -> "LowRankGaussian":
        """Where to start a fit: mean at a position, diagonal 1, and a factor of 0.1 times orthonormal rows.

        The rows are those of a cosine transform. No two are equal and none is zero, because under gradient descent
        equal rows stay equal, and zero rows zero. Raises ValueError as `check`, or if d = 0, and TypeError on a rank
        that is no integer.
        """
        return _start(cls, position, rank)

    def sample(self, rng_key: PRNGKey, num_samples: int) -> ArrayTree:
        """Positions with a leading axis of length `num_samples`."""
        flat, unravel = ravel_mean(self)
        rank, dim = flat.factor.shape
        noise = jax.random.normal(rng_key, (num_samples, dim + rank), flat.mean.dtype)
        noise, latent = noise[:, :dim], noise[:, dim:]
        return jax.vmap(unravel)(flat.mean[None] + jnp.sqrt(flat.diagonal)[None] * noise + dot(latent, flat.factor))

    def log_density(self, position: ArrayLikeTree) -> Array:
        """Normalised log-density at one position. Raises ValueError unless it is shaped as the mean."""
        noise, latent = self._noise(position)
        return _log_density(jnp.sum(noise**2) + jnp.sum(latent**2), noise.shape[0], self._log_determinant())

    def score(self, position: ArrayLikeTree) -> ArrayTree:
        """Gradient of `log_density` at one position. Raises as `log_density`."""
        return ravel_mean(self)[1](-self._noise(position)[0] / jnp.sqrt(self.diagonal))

    def pullback(self, samples: Array, cotangents: Array) -> "LowRankGaussian":
        """The gradient of the sum over samples of cotangents . x with respect to mean, diagonal and factor.

        Here x = mean + diagonal^(1/2) noise + factor^T latent. Noise and latent are replaced by their expectations
        given x, which lowers the variance of the gradient. samples, cotangents (num_samples, d). The mean must be
        ravelled.
        """
        noise, latent = jax.vmap(self._noise)(samples)
        return LowRankGaussian(
            mean=jnp.sum(cotangents, axis=0),
            diagonal=jnp.sum(noise * cotangents, axis=0) / (2 * jnp.sqrt(self.diagonal)),
            factor=dot(latent.T, cotangents),
        )

    def kl_divergence(self, target: "LowRankGaussian") -> Array:
        """KL(self || target). Its rounding error is about d times that of the dtype."""
        root = _factorise(target.diagonal, target.factor)
        noise, latent = jax.vmap(lambda row: _split(root, row))(self.factor)
        trace = jnp.sum(self.diagonal * _inverse_diagonal(root)) + jnp.sum(noise**2) + jnp.sum(latent**2)
        return _kl_divergence(self, target, trace)

    def to_preconditioner(self) -> LowRank:
        """L with L L^T the covariance. Its `to_inverse_mass_matrix()` is BlackJAX's form. Raises as `check`."""
        check(self)
        return LowRank.from_covariance(self.diagonal, self.factor)

    def _noise(self, position):
        """(E noise (d,), E latent (rank,)) given a position: the squares of both sum to the Mahalanobis distance."""
        return _split(_factorise(self.diagonal, self.factor), _centre(self, position))

    def _log_determinant(self):
        return _log_determinant(self.diagonal, self.factor)


class LowRankScaleGaussian(NamedTuple):
    """N(mean, L L^T) with L = diag(diagonal) + factor^T factor: the paper's `diagonal + LR`. O(rank^2 d) a call.

    Fields, shapes and methods as for `LowRankGaussian`. Source: Hird & Livingstone (2026), Section 4.1.
    """

    mean: ArrayTree
    diagonal: Array
    factor: Array

    @classmethod
    def start(cls, position: ArrayLikeTree, rank: int) -> "LowRankScaleGaussian":
        """As `LowRankGaussian.start`."""
        return _start(cls, position, rank)

    def sample(self, rng_key: PRNGKey, num_samples: int) -> ArrayTree:
        """Positions with a leading axis of length `num_samples`."""
        flat, unravel = ravel_mean(self)
        noise = jax.random.normal(rng_key, (num_samples, *flat.mean.shape), flat.mean.dtype)
        return jax.vmap(unravel)(
            flat.mean[None] + noise * flat.diagonal[None] + dot(dot(noise, flat.factor.T), flat.factor)
        )

    def log_density(self, position: ArrayLikeTree) -> Array:
        """Normalised log-density at one position. Raises ValueError unless it is shaped as the mean."""
        noise = self._solve(_centre(self, position))
        return _log_density(jnp.sum(noise**2), noise.shape[0], self._log_determinant())

    def score(self, position: ArrayLikeTree) -> ArrayTree:
        """Gradient of `log_density` at one position. Raises as `log_density`."""
        return ravel_mean(self)[1](-self._solve(self._solve(_centre(self, position))))

    def pullback(self, samples: Array, cotangents: Array) -> "LowRankScaleGaussian":
        """The gradient of the sum over samples of cotangents . x, where x = mean + L noise.

        samples, cotangents (num_samples, d). The mean must be ravelled.
        """
        noise = jax.vmap(lambda sample: self._solve(sample - self.mean))(samples)
        return LowRankScaleGaussian(
            mean=jnp.sum(cotangents, axis=0),
            diagonal=jnp.sum(noise * cotangents, axis=0),
            factor=dot(dot(self.factor, noise.T), cotangents) + dot(dot(self.factor, cotangents.T), noise),
        )

    def kl_divergence(self, target: LowRankGaussian) -> Array:
        """KL(self || target). Its rounding error is about d times that of the dtype."""
        root = _factorise(target.diagonal, target.factor)
        solved = jax.vmap(lambda row: _split(root, row)[0] / root.scales)(self.factor)
        gram = dot(self.factor, self.factor.T)
        trace = jnp.sum(self.diagonal**2 * _inverse_diagonal(root))
        trace = trace + 2 * jnp.sum(solved * self.factor * self.diagonal[None])
        return _kl_divergence(self, target, trace + jnp.sum(gram * dot(solved, self.factor.T)))

    def to_preconditioner(self) -> LowRank:
        """A root of L L^T with min(2 rank, d) eigenvectors: L times a rotation, in the form that kernels take."""
        check(self)
        whitened = self.factor / self.diagonal[None]
        basis = jnp.linalg.qr(jnp.concatenate([self.factor, whitened]).T)[0]
        inner = jnp.eye(basis.shape[1], dtype=basis.dtype) + dot(dot(whitened, basis).T, dot(self.factor, basis))
        directions, singular_values, _ = jnp.linalg.svd(inner)
        return LowRank(self.diagonal, dot(basis, directions).T, singular_values**2)

    def _solve(self, x):
        """L^{-1} x for x (d,)."""
        root = _factorise(self.diagonal, self.factor)
        return _split(root, x)[0] / root.scales

    def _log_determinant(self):
        return 2 * _log_determinant(self.diagonal, self.factor)


def check(params: LowRankGaussian | LowRankScaleGaussian) -> None:
    """Raise ValueError if shapes or dtypes do not match.

    If nothing is traced, it also raises if a number is not finite, or the diagonal is not positive.
    """
    mean = ravel_pytree(params.mean)[0]
    shapes = jnp.shape(params.diagonal), jnp.shape(params.factor)
    if shapes[0] != mean.shape or len(shapes[1]) != 2 or shapes[1][1:] != mean.shape:
        raise ValueError(
            "diagonal must have shape (d,) and factor (rank, d) for a mean with d numbers, "
            f"got {shapes[0]} and {shapes[1]} for d = {mean.shape[0]}."
        )
    _check_rank(shapes[1][0], mean.shape[0])
    dtypes = [jnp.result_type(part) for part in (mean, params.diagonal, params.factor)]
    if len(set(dtypes)) > 1 or not jnp.issubdtype(dtypes[0], jnp.floating):
        raise ValueError(f"mean, diagonal and factor must have one floating point dtype, got {dtypes}.")
    if not all(map(is_concrete, jax.tree.leaves(params))):
        return
    if not np.all(np.asarray(params.diagonal) > 0):
        raise ValueError(f"diagonal must be positive, got {np.asarray(params.diagonal)}.")
    for name, part in params._replace(mean=mean)._asdict().items():
        if not np.isfinite(part).all():
            raise ValueError(f"{name} must be finite, got {np.asarray(part)}.")


def ravel_mean(params: Any) -> tuple[Any, Callable[[Array], Any]]:
    """The parameters with a mean (d,), and the function that takes a (d,) array back to a position."""
    mean, unravel = ravel_pytree(params.mean)
    return params._replace(mean=mean), unravel


class _Root(NamedTuple):
    """Factors of diag(scales^2) + factor^T factor.

    loadings (rank, d): factor / scales. cholesky (rank, rank): of I + loadings loadings^T.
    """

    scales: Array
    loadings: Array
    cholesky: Array


def _factorise(diagonal, factor):
    """The `_Root` of diag(diagonal) + factor^T factor."""
    scales = jnp.sqrt(diagonal)
    loadings = factor / scales[None]
    gram = jnp.eye(factor.shape[0], dtype=factor.dtype) + dot(loadings, loadings.T)
    return _Root(scales, loadings, jnp.linalg.cholesky(gram))


def _split(root, x):
    """The (noise (d,), latent (rank,)) of least norm with x = scales noise + factor^T latent, for x (d,)."""
    whitened = x / root.scales
    latent = cho_solve((root.cholesky, True), dot(root.loadings, whitened))
    return whitened - dot(latent, root.loadings), latent


def _inverse_diagonal(root):
    """Diagonal (d,) of the inverse of the covariance."""
    half = jax.scipy.linalg.solve_triangular(root.cholesky, root.loadings, lower=True)
    return (1 - jnp.sum(half**2, axis=0)) / root.scales**2


def _log_determinant(diagonal, factor):
    root = _factorise(diagonal, factor)
    return 2 * (jnp.sum(jnp.log(root.scales)) + jnp.sum(jnp.log(jnp.diag(root.cholesky))))


def _log_density(distance, dim, log_determinant):
    return -0.5 * (distance + log_determinant + dim * math.log(2 * math.pi))


def _kl_divergence(params, target, trace):
    mean = ravel_pytree(params.mean)[0]
    noise, latent = ravel_mean(target)[0]._noise(mean)
    distance = jnp.sum(noise**2) + jnp.sum(latent**2)
    return 0.5 * (trace - mean.shape[0] + distance + target._log_determinant() - params._log_determinant())


def _centre(params, position):
    """The position less the mean, (d,). Raises ValueError if the position is of another structure or shape."""
    expected, given = (jax.tree.map(jnp.shape, tree) for tree in (params.mean, position))
    if jax.tree.structure(params.mean) != jax.tree.structure(position) or expected != given:
        raise ValueError(f"a position must have the structure and shapes of the mean, {expected}, got {given}.")
    return ravel_pytree(position)[0] - ravel_pytree(params.mean)[0]


def _check_rank(rank, dim):
    if not 1 <= require_integer("rank", rank, least=0) <= dim:
        raise ValueError(f"rank must be at least 1 and at most d = {dim}, got {rank}.")


def _start(family, position, rank):
    require_numbers(position)
    position = jax.tree.map(jnp.asarray, position)
    mean = ravel_pytree(position)[0]
    dim = mean.shape[0]
    _check_rank(rank, dim)
    order, index = jnp.arange(rank, dtype=mean.dtype)[:, None], jnp.arange(dim, dtype=mean.dtype)[None]
    phases = (order + 0.5) * (index + 0.5)
    rows = math.sqrt(2 / dim) * jnp.cos(phases * (math.pi / dim))
    params = family(position, jnp.ones_like(mean), 0.1 * rows)  # the paper's size of a first factor (Algorithm 3)
    check(params)
    return params
