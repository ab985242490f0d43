r"""Second moments of the draws: `diagonal` learns the marginal variances, `dense` the whole covariance.

With gains g_t, and E_c the mean over the chains:

    mean_{t+1}   = mean_t + g_t (E_c x - mean_t)
    second_{t+1} = second_t + g_t (E_c (x - mean_{t+1})(x - mean_{t+1})^T - second_t)

Source: Andrieu & Thoms (2008), Algorithm 4, and for the diagonal Algorithm 5 in its use by Hird & Livingstone (2026),
Section 4.1.
"""

from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from householder_mcmc.learners.gains import DEFAULT_GAINS, Gains, require_gains
from householder_mcmc.learners.scheme import Scheme
from householder_mcmc.linalg import dot, mean_of_rows
from householder_mcmc.preconditioners.maps import Dense, Diagonal
from householder_mcmc.sharing import shared

__all__ = ["MomentsState", "diagonal", "dense", "without_start", "centre"]

# The unit start is a prior while its weight in the variances is above one over this, 1%. Below, it is removed. Chosen.
_INVERSE_PRIOR_WEIGHT = 100

# Variances from which the start was removed stay above this many units of its rounding.
_ROUNDING = 100

# Jitter on the diagonal of the covariance, in units of rounding of its trace. The Cholesky factor then exists, because
# the rounding of an eigenvalue is one or two units of the largest.
_JITTER = 4


class MomentsState(NamedTuple):
    """count (): updates made. mean (d,). second (d,) or (d, d): variances or covariance.

    weight (): what the unit start still weighs in `second`.
    """

    count: Array
    mean: Array
    second: Array
    weight: Array


@shared
def diagonal(gains: Gains = DEFAULT_GAINS) -> Scheme:
    """Learn the marginal variances, as a `Diagonal` map. O(d) memory and time a step."""
    return _moments(
        start=jnp.ones_like,
        increment=lambda centred: mean_of_rows(centred**2),
        preconditioner=lambda variances, weight: Diagonal(jnp.sqrt(without_start(variances, weight))),
        gains=gains,
    )


@shared
def dense(gains: Gains = DEFAULT_GAINS) -> Scheme:
    """Learn the covariance (d, d), as a `Dense` map. Its Cholesky factor costs O(d^3) a step.

    A multiple of the identity, near the rounding of the trace, is added so that the factor exists.
    """

    def preconditioner(covariance, weight):
        diagonal = jnp.diagonal(covariance)
        variances = without_start(diagonal, weight)
        jitter = _JITTER * jnp.finfo(covariance.dtype).eps * jnp.sum(variances)
        return Dense(jnp.linalg.cholesky(covariance + jnp.diag(variances - diagonal + jitter)))

    return _moments(
        start=lambda mean: jnp.eye(mean.shape[0], dtype=mean.dtype),
        increment=lambda centred: dot(centred.T, centred) / centred.shape[0],
        preconditioner=preconditioner,
        gains=gains,
    )


def without_start(variances: Array, weight: Array) -> Array:
    """Running variances (d,) without their start value 1, whose weight () is given.

    While the weight is above 1% the start is kept, as a prior.
    """
    kept = weight * jnp.minimum(_INVERSE_PRIOR_WEIGHT * weight, 1)
    return jnp.maximum(variances - (weight - kept), _ROUNDING * jnp.finfo(variances.dtype).eps * weight)


def centre(positions: Array, mean: Array) -> Array:
    """Differences (num_chains, d) from the mean (d,), clipped so that their fourth powers do not overflow."""
    limit = jnp.finfo(mean.dtype).max ** 0.25 / 2  # the root alone rounds to 2^32, whose fourth power overflows
    return jnp.clip(positions - mean[None], -limit, limit)


def _moments(start, increment, preconditioner, gains):
    """A running mean and a running second moment about it."""
    require_gains(gains)

    def init_fn(positions):
        mean = mean_of_rows(positions)
        return MomentsState(jnp.zeros((), jnp.int32), mean, start(mean), jnp.ones((), mean.dtype))

    def update_fn(state, positions, scores=None):
        del scores
        gain = jnp.asarray(gains.moments(state.count), state.mean.dtype)
        mean = state.mean + gain * (mean_of_rows(positions) - state.mean)
        second = state.second + gain * (increment(centre(positions, mean)) - state.second)
        return MomentsState(jnp.asarray(optax.safe_increment(state.count)), mean, second, state.weight * (1 - gain))

    def preconditioner_fn(state):
        return preconditioner(state.second, state.weight)

    return Scheme(init_fn, update_fn, preconditioner_fn, gains)
