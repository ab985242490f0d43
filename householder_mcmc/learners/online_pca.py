r"""Oja's rule as an optax transformation: gradient ascent on tr(V C V^T) over orthonormal rows V.

The eigenvectors V (rank, d) are rows, and so are the centred draws dx (num_chains, d). New rows are combinations of
both. So increments and updates are small matrices, and the work of size d is a few products:

1. An `Increment` says how draws and old rows enter. It is `oja_increment` (Hird & Livingstone 2026, Section 3.1, after
   Oja 1982) or `relative_increment`.
2. The transformation turns it into a `Recombination`, whose rows are orthonormal. It needs only the products V dx^T and
   dx dx^T.
3. `step` does both, and orthonormalises again where a step was too large for that.
"""

from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import optax
from jax import Array, lax

from householder_mcmc.learners.scheme import only_if
from householder_mcmc.linalg import dot, inverse_cholesky, project

__all__ = [
    "Increment",
    "Recombination",
    "oja",
    "oja_increment",
    "relative_increment",
    "orthonormalize",
    "to_orthonormal_rows",
    "step",
]


class Increment(NamedTuple):
    """What is added to V: weights @ dx - decay * V. weights (rank, num_chains). decay ()."""

    weights: Array
    decay: Array


class Recombination(NamedTuple):
    """New rows of V: of_rows @ V + of_draws @ dx.

    of_rows (rank, rank), of_draws (rank, num_chains). condition (): condition number of the Gram matrix of
    V + increment, 1 for orthonormal rows. If it reaches 0.01 / eps the new rows are NOT orthonormal, but V + increment,
    and the caller must orthonormalise them.
    """

    of_rows: Array
    of_draws: Array
    condition: Array


def oja(learning_rate: optax.ScalarOrSchedule) -> optax.GradientTransformationExtraArgs:
    """Oja's rule: `Increment` -> `Recombination`, with extra arguments as in `to_orthonormal_rows`.

    learning_rate: a float or an optax schedule.
    """
    return optax.chain(optax.scale_by_learning_rate(learning_rate, flip_sign=False), to_orthonormal_rows())


def oja_increment(projections: Array) -> Increment:
    """The mean over chains of (V dx) dx^T. projections (rank, num_chains): V dx."""
    return Increment(projections / projections.shape[1], jnp.zeros((), projections.dtype))


def relative_increment(projections: Array, variances: Array) -> Increment:
    """Row i is the mean over chains of (w_i dx) / lambda_i - v_i: Oja's increment free of the target's scale.

    lambda_i is `variances` (rank,), the learnt variance along row i, or the current mean of w_i^2 if that is larger.
    """
    variances = jnp.maximum(variances, jnp.mean(projections**2, axis=1))
    variances = jnp.maximum(variances, jnp.finfo(variances.dtype).tiny)
    weights, _ = oja_increment(projections / variances[:, None])
    return Increment(weights, jnp.ones((), projections.dtype))


def to_orthonormal_rows() -> optax.GradientTransformationExtraArgs:
    """Last link of a chain: `Increment` -> the `Recombination` that lands on orthonormal rows. Stateless.

    Gram-Schmidt in the order of the rows, by the Cholesky factor of the Gram matrix of V + increment. `update` takes
    two extra arguments: projections (rank, num_chains), which are V dx^T, and gram (num_chains, num_chains), dx dx^T.
    """

    def update_fn(increment, state, params=None, *, projections, gram, **extra_args):
        del params, extra_args
        weights, keep = _shorten(increment.weights, gram), 1 - increment.decay
        identity = jnp.eye(len(weights), dtype=weights.dtype)
        across = keep * dot(weights, projections.T)
        row_gram = keep**2 * identity + across + across.T + dot(dot(weights, gram), weights.T)
        inverse, condition = _inverse_and_condition(row_gram)
        return Recombination(keep * inverse, dot(inverse, weights), condition), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), cast(Any, update_fn))


def step(
    optimiser: optax.GradientTransformationExtraArgs,
    increment: Increment,
    state: optax.OptState,
    eigenvectors: Array,
    projections: Array,
    centred: Array,
    is_due: Array | bool = False,
) -> tuple[Array, Array, optax.OptState]:
    """New eigenvectors (rank, d), the draws' projections on them (rank, num_chains), and the optimiser's state.

    Reads the eigenvectors once and writes them once. After a step that is too large for that, the rows are
    orthonormalised by their Gram matrix, or, if they are nearly dependent, by a QR factorisation. is_due:
    orthonormalise by the Gram matrix in any case, against rounding that adds up.
    """
    draws, along, weights = centred, projections, increment.weights
    if weights.shape[1] > weights.shape[0]:  # more chains than rows act through their weighted sums alone
        size = jnp.maximum(jnp.max(jnp.abs(weights)), 1)
        draws, along = dot(weights / size, centred), dot(projections, weights.T / size)
        increment = increment._replace(weights=size * jnp.eye(len(weights), dtype=weights.dtype))
    gram = project(draws, draws)
    update: Any
    update, state = optimiser.update(increment, state, projections=along, gram=gram)
    rows = dot(update.of_rows, eigenvectors) + dot(update.of_draws, draws)
    projections = dot(update.of_rows, projections) + dot(update.of_draws, project(draws, centred))
    is_poor = update.condition > _WELL_CONDITIONED
    is_lost = update.condition >= _solvable(rows.dtype)

    def mend(rows_and_projections):
        rows = lax.cond(is_lost, _by_qr, lambda rows: _by_gram_matrix(rows)[0], rows_and_projections[0])
        return rows, project(rows, centred)

    return *only_if(is_due | is_poor, mend, (rows, projections)), state


def orthonormalize(rows: Array) -> Array:
    """Gram-Schmidt on rows (rank, d), rank <= d, in their order. O(rank^2 d).

    It uses the Cholesky factor of their Gram matrix, twice, because once loses digits (Yamamoto et al. 2015). Rows that
    are too nearly dependent for that go through Householder QR, whose result is always orthonormal to rounding.
    """

    once, condition = _by_gram_matrix(rows)
    is_lost = condition >= _solvable(rows.dtype)
    return lax.cond(is_lost, lambda: _by_qr(rows), lambda: _by_gram_matrix(once)[0])


def _by_gram_matrix(rows):
    """The rows orthonormalised, and their condition number. They are not if that is above `_solvable`."""
    inverse, condition = _inverse_and_condition(project(rows, rows))
    return dot(inverse, rows), condition


def _by_qr(rows):
    q, r = jnp.linalg.qr(rows.T)
    new = lax.optimization_barrier(q.T)  # keeps LAPACK's layout from spreading to all arrays of eigenvectors
    return new * jnp.where(jnp.diag(r) < 0, -1, 1).astype(rows.dtype)[:, None]


def _inverse_and_condition(gram):
    """The inverse Cholesky factor of a Gram matrix (rank, rank), and its condition number, 1 for orthonormal rows.

    The identity replaces an inverse that rounding has spoilt.
    """
    rank = gram.shape[0]
    inverse = inverse_cholesky(gram)
    condition = jnp.trace(gram) * jnp.sum(inverse**2) / rank**2
    condition = jnp.where(jnp.isfinite(condition), condition, jnp.inf)
    return jnp.where(condition < _solvable(gram.dtype), inverse, jnp.eye(rank, dtype=gram.dtype)), condition


# Up to this condition number of the Gram matrix its factor makes rows orthonormal to a few units of rounding, because
# errors are the condition number times rounding (Yamamoto et al. 2015).
_WELL_CONDITIONED = 4


def _solvable(dtype):
    """The condition number up to which the Gram matrix makes rows orthonormal to 1%.

    Errors are the condition number times rounding, so a second pass is then exact to rounding.
    """
    return 0.01 / jnp.finfo(dtype).eps


def _shorten(weights, gram):
    """Weights of an increment, shortened so that no row of it is longer than eps^(-1/2): a step with a smaller gain.

    A longer increment, added to unit rows, would lose the rows to rounding.
    """
    size = jnp.maximum(jnp.max(jnp.abs(weights)), 1)  # squares of raw weights may overflow
    limit = jnp.finfo(weights.dtype).eps ** -0.5 / size
    scaled = weights / size
    length = jnp.sqrt(jnp.maximum(jnp.sum(dot(scaled, gram) * scaled), 0))
    return weights * (limit / jnp.maximum(length, limit))
