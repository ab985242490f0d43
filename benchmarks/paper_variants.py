"""The paper's pre-chain baselines with the faults that its figures have: for comparison with the figures only.

Source: the authors' program (Hird & Livingstone 2026) for the Gaussian experiments. `householder_mcmc.variational` has
the corrected ones.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax
from blackjax.types import ArrayLikeTree
from jax import Array
from jax.flatten_util import ravel_pytree

from householder_mcmc.linalg import dot
from householder_mcmc.preconditioners.maps import LowRank
from householder_mcmc.variational import LowRankGaussian, LowRankScaleGaussian

__all__ = ["covariance_as_root", "equal_columns_start", "reverse_kl_with_position_for_noise"]


def covariance_as_root(gaussian: LowRankGaussian) -> LowRank:
    """pBaM's fitted covariance used as L: the proposal covariance is its square."""
    return LowRankScaleGaussian(*gaussian).to_preconditioner()


def equal_columns_start(position: ArrayLikeTree, rank: int) -> LowRankScaleGaussian:
    """L = I + V V^T with 0.1 in every entry of V: its columns stay equal, so V stays of rank one."""
    mean = ravel_pytree(position)[0]
    return LowRankScaleGaussian(position, jnp.ones_like(mean), jnp.full((rank, mean.shape[0]), 0.1, mean.dtype))


def reverse_kl_with_position_for_noise(
    mean_rate: float, diagonal_rate: float, factor_rate: float
) -> optax.GradientTransformationExtraArgs:
    """Descent along -L^{-1} - sum_b score(x_b) x_b^T, for `LowRankScaleGaussian` with a (d,) mean.

    The gradient of KL(q || target) has the noise xi_b in place of x_b and the mean over the batch in place of the sum;
    a factor 2 of the diagonal's gradient, taken with respect to its square root, is also missing.
    """

    def update_fn(updates, state, params=None, *, samples, scores, **extra_args):
        del updates, extra_args
        mean, diagonal, factor = params
        inverse = _inverse(diagonal, factor)
        gradient_diagonal = -inverse.diagonal - jnp.sum(scores * samples, axis=0)
        # (G + G^T) V as rows, for G = -L^{-1} - sum_b score_b x_b^T
        turned = -2 * inverse.times(factor)
        turned = turned - dot(dot(factor, samples.T), scores) - dot(dot(factor, scores.T), samples)
        shrunk = diagonal * (1 - diagonal_rate * gradient_diagonal) ** 2
        updates = params._replace(
            mean=mean_rate * jnp.mean(scores, axis=0), diagonal=shrunk - diagonal, factor=-factor_rate * turned
        )
        return updates, state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update_fn)


class _Inverse(NamedTuple):
    """L^{-1}: its `diagonal` (d,), and what `times` needs."""

    diagonal: Array
    inner: Array
    half: Array
    reciprocal: Array

    def times(self, rows):
        """rows (rank, d) times L^{-1}."""
        return rows * self.reciprocal - dot(dot(dot(rows, self.half.T), self.inner), self.half)


def _inverse(diagonal, factor):
    """The inverse of L = diag(diagonal) + factor^T factor, by the matrix inversion lemma."""
    half = factor / diagonal
    inner = jnp.linalg.inv(jnp.eye(factor.shape[0], dtype=factor.dtype) + dot(half, factor.T))
    return _Inverse(1 / diagonal - jnp.sum(half * dot(inner, half), axis=0), inner, half, 1 / diagonal)
