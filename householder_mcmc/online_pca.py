r"""Oja's rule as an optax transformation: gradient ascent on tr(V C V^T) over orthonormal rows V.

The parameters are the eigenvectors V (rank, d), one per row; the updates are increments averaged over the chains, from
`oja_increment` (Hird & Livingstone 2026, Section 3.1; Oja 1982) or `relative_increment`. Both have the leading
eigenvectors of C as their fixed point.
"""

import jax.numpy as jnp
import optax
from jax import Array

from householder_mcmc.linalg import dot

__all__ = [
    "oja",
    "oja_increment",
    "relative_increment",
    "orthonormalize",
    "project_to_orthonormal_rows",
    "project_to_unit_rows",
]


def oja(learning_rate: optax.ScalarOrSchedule, orthonormalize_every: int = 1) -> optax.GradientTransformation:
    """Oja's rule: scale the increment, add it, and go back to orthonormal rows.

    Parameters
    ----------
    learning_rate
        A float or an optax schedule.
    orthonormalize_every
        Orthonormalise at every p-th update and only normalise the rows at the others.

    Raises
    ------
    ValueError
        If `orthonormalize_every` is not a positive integer.
    """
    if orthonormalize_every < 1:
        raise ValueError(f"orthonormalize_every must be a positive integer, got {orthonormalize_every}.")
    ascend = optax.scale_by_learning_rate(learning_rate, flip_sign=False)
    if orthonormalize_every == 1:
        return optax.chain(ascend, project_to_orthonormal_rows())
    project_sometimes = optax.conditionally_transform(
        project_to_orthonormal_rows(), lambda count: (count + 1) % orthonormalize_every == 0
    )
    return optax.chain(ascend, project_to_unit_rows(), project_sometimes)


def oja_increment(projections: Array, centred: Array) -> Array:
    """The mean over chains of (V dx) dx^T, (rank, d).

    projections (num_chains, rank): V dx. centred (num_chains, d): dx = x - mean.
    """
    return dot(projections.T, centred) / centred.shape[0]


def relative_increment(eigenvectors: Array, projections: Array, centred: Array, variances: Array) -> Array:
    """Row i is the mean over chains of (w_i dx) / lambda_i - v_i: Oja's increment free of the target's scale.

    lambda_i is `variances` (rank,), the learnt variance along row i, or the current mean of w_i^2 if that is larger.
    """
    variances = jnp.maximum(variances, jnp.mean(projections**2, axis=0))
    variances = jnp.maximum(variances, jnp.finfo(variances.dtype).tiny)
    return oja_increment(projections, centred) / variances[:, None] - eigenvectors


def project_to_orthonormal_rows() -> optax.GradientTransformation:
    """Last link of a chain: replace an update by the one that lands on orthonormal rows. Stateless."""
    return _project(orthonormalize)


def project_to_unit_rows() -> optax.GradientTransformation:
    """Replace an update by the one that lands on rows of unit length (or zero). Stateless."""

    def normalize(rows):
        lengths = jnp.linalg.norm(rows, axis=1, keepdims=True)
        return rows / jnp.where(lengths > 0, lengths, 1)

    return _project(normalize)


def orthonormalize(rows: Array) -> Array:
    """Gram-Schmidt on rows (rank, d), rank <= d, in order; O(rank^2 d).

    By Householder QR, whose result is orthonormal to rounding even where the rows are nearly dependent.
    """
    q, r = jnp.linalg.qr(rows.T)
    return q.T * jnp.where(jnp.diag(r) < 0, -1, 1).astype(rows.dtype)[:, None]


def _project(onto):
    def update_fn(updates, state, params=None):
        if params is None:
            raise ValueError("this transformation needs the eigenvectors: pass them as `params` to update.")
        return onto(params + _shorten(updates)) - params, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update_fn)


def _shorten(updates):
    """Updates cut to length eps^(-1/2), which is a step with a smaller gain.

    Beyond that length their sum with unit rows loses the rows to rounding.
    """
    size = jnp.maximum(jnp.max(jnp.abs(updates)), 1)  # squares of raw updates may overflow
    limit = jnp.finfo(updates.dtype).eps ** -0.5 / size
    return updates * (limit / jnp.maximum(jnp.linalg.norm(updates / size), limit))
