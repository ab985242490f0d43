"""What is learnt: schemes that turn the draws of many chains into one preconditioner.

A `Scheme` is three pure functions and knows nothing of the kernel that makes the draws. Draws come as (num_chains, d)
arrays; all increments are averaged over the chains. Source: Hird & Livingstone (2026), Algorithm 2 and Section 4.1.
"""

import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from householder_mcmc import online_pca, reflections
from householder_mcmc.gains import DEFAULT_GAINS, Gains
from householder_mcmc.linalg import dot, leading, mean_of_rows, only_if, project
from householder_mcmc.preconditioners import (
    Dense,
    Diagonal,
    Householder,
    LowRank,
    Preconditioner,
    as_preconditioner,
    cast_floats,
)

__all__ = ["Scheme", "none", "fixed", "diagonal", "dense", "eigen", "eigen_identity"]


class Scheme(NamedTuple):
    """A learner of preconditioners.

    init: (num_chains, d) starting positions -> state. update: (state, positions, scores) -> state, both
    (num_chains, d); scores are gradients of the log-density, which some schemes do without. preconditioner:
    state -> `Preconditioner`. States are NamedTuples of arrays. gains: those of the learner, if it has any. forget:
    (state, positions) -> a state that keeps the map in use and none of the draws; None is for `init`.
    """

    init: Callable[[Array], NamedTuple]
    update: Callable[..., NamedTuple]
    preconditioner: Callable[[NamedTuple], Preconditioner]
    gains: Gains | None = None
    forget: Callable[[NamedTuple, Array], NamedTuple] | None = None

    def start_anew(self, state: NamedTuple, positions: Array) -> NamedTuple:
        """The state to go on with where all draws so far came from elsewhere."""
        return self.init(positions) if self.forget is None else self.forget(state, positions)


def none() -> Scheme:
    """Learn nothing: L = I."""
    return Scheme(lambda positions: Diagonal(jnp.ones_like(positions[0])), _keep, _itself)


def fixed(preconditioner) -> Scheme:
    """Learn nothing: use a given preconditioner or BlackJAX inverse mass matrix.

    Raises
    ------
    TypeError, ValueError
        As `as_preconditioner`; also ValueError at `init` if it does not act on vectors of the positions' length.
    """
    preconditioner = as_preconditioner(preconditioner)

    def init_fn(positions):
        try:
            image = jax.eval_shape(preconditioner.apply, positions[0])
        except (TypeError, ValueError):
            image = None
        if image is None or image.shape != positions[0].shape:
            raise ValueError(f"the fixed preconditioner does not act on positions with d = {positions.shape[1]}.")
        return cast_floats(preconditioner, positions.dtype)

    return Scheme(init_fn, _keep, _itself)


class MomentsState(NamedTuple):
    """count (): updates made. mean (d,). second (d,) or (d, d): variances or covariance. weight (): of its start."""

    count: Array
    mean: Array
    second: Array
    weight: Array


def diagonal(gains: Gains = DEFAULT_GAINS) -> Scheme:
    """Learn the marginal variances. O(d). Source: Andrieu & Thoms (2008), Algorithm 5 in its use by the paper."""
    return _moments(
        start=jnp.ones_like,
        increment=lambda centred: mean_of_rows(centred**2),
        preconditioner=lambda variances, weight: Diagonal(jnp.sqrt(_without_start(variances, weight))),
        gains=gains,
    )


def dense(gains: Gains = DEFAULT_GAINS) -> Scheme:
    """Learn the covariance, (d, d); its Cholesky factor costs O(d^3) a step.

    Source: Andrieu & Thoms (2008), Algorithm 4. The factor is that of the covariance plus a multiple of the identity
    near rounding size, relative to the trace.
    """

    def preconditioner(covariance, weight):
        diagonal = jnp.diagonal(covariance)
        without_start = _without_start(diagonal, weight)
        jitter = 4 * jnp.finfo(covariance.dtype).eps * jnp.sum(without_start)
        return Dense(jnp.linalg.cholesky(covariance + jnp.diag(without_start - diagonal + jitter)))

    return _moments(
        start=lambda mean: jnp.eye(mean.shape[0], dtype=mean.dtype),
        increment=lambda centred: dot(centred.T, centred) / centred.shape[0],
        preconditioner=preconditioner,
        gains=gains,
    )


class Ahead(NamedTuple):
    """The latest eigenvectors (rank, d) of Oja's rule, the variances (rank,) along them, and their running average.

    The average (rank, d) is not orthonormal: rows that still turn are short in it, and give way to those that settled.
    It is None without averaging.
    """

    eigenvectors: Array
    variances: Array
    average: Array | None


class EigenState(NamedTuple):
    """State of `eigen`.

    count (): updates made. mean (d,). basis: what the map in use is built on, `CompactReflections` (free tail) or
    eigenvectors (rank, d). variances: along the columns of Q (d,) (free tail), or along the eigenvectors and then, with
    an isotropic tail, the mean residual variance. weight (): of their start. oja: optax state. ahead: what Oja's rule
    has learnt beyond the map, if the map averages it or is not refreshed at every step; else None.
    """

    count: Array
    mean: Array
    basis: reflections.CompactReflections | Array
    variances: Array
    weight: Array
    oja: optax.OptState
    ahead: Ahead | None


def eigen(
    rank: int,
    tail: str = "free",
    gains: Gains = DEFAULT_GAINS,
    orthonormalize_every: int = 256,
    refresh_every: int | None = None,
) -> Scheme:
    """Learn the `rank` leading eigenvectors of the covariance by Oja's rule, and the variances along them.

    Source: Hird & Livingstone (2026), Algorithm 2. Differs with the default gains, which make Oja's increment free of
    the target's scale (`online_pca.relative_increment`).

    Parameters
    ----------
    rank
        Number of eigenvectors, 1 <= rank <= d.
    tail
        The scales of the other directions. "free": one for each remaining column of Q (the paper's `eigen`).
        "isotropic": all equal to the root mean residual variance. "unit": all 1 (the paper's `eigen_identity`).
        The last two need no Q: their map is a `LowRank`.
    gains
        Schedules of the mean and variances, of Oja's rule and of the average of its eigenvectors.
    orthonormalize_every
        Orthonormalise the eigenvectors in full, O(rank^2 d), at every p-th update. The others keep them orthonormal but
        for rounding, which adds up.
    refresh_every
        Rebuild the map from the learnt eigenvectors at every I-th update. By default 1; with an average, whose
        eigenvectors must be orthonormalised for it, 10.

    Returns
    -------
    Scheme. The state holds O(rank d) numbers. An update reads the eigenvectors three times and writes them once; with
    `refresh_every` above 1 it also reads those of the map twice, and with an average it reads and writes that.

    Raises
    ------
    TypeError
        On a rank that is no integer.
    ValueError
        On a rank below 1 or, at `init`, above d; an unknown tail; a period that is not positive.
    """
    rank = operator.index(rank)
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got {rank}.")
    if tail not in _TAILS:
        raise ValueError(f"tail must be one of {sorted(_TAILS)}, got {tail!r}.")
    if refresh_every is None:
        refresh_every = 1 if gains.average is None else 10
    for name, period in (("orthonormalize_every", orthonormalize_every), ("refresh_every", refresh_every)):
        if period < 1:
            raise ValueError(f"{name} must be a positive integer, got {period}.")
    optimiser = online_pca.oja(gains.oja)
    build, eigenvectors_of, num_scales, measure, preconditioner = _TAILS[tail]
    map_is_latest = refresh_every == 1 and gains.average is None

    def init_fn(positions):
        dim = positions.shape[1]
        if rank > dim:
            raise ValueError(f"rank must be at most d = {dim}, got {rank}.")
        mean = mean_of_rows(positions)
        eigenvectors = jnp.eye(rank, dim, dtype=mean.dtype)  # (rank, d): the first axes
        average = None if gains.average is None else eigenvectors
        return EigenState(
            count=jnp.zeros((), jnp.int32),
            mean=mean,
            basis=build(eigenvectors),
            variances=jnp.ones(num_scales(rank, dim), mean.dtype),
            weight=jnp.ones((), mean.dtype),
            oja=optimiser.init(eigenvectors),
            ahead=None if map_is_latest else Ahead(eigenvectors, jnp.ones(rank, mean.dtype), average),
        )

    def update_fn(state, positions, scores=None):
        del scores
        count, mean, basis, variances, weight, oja, ahead = state
        gain = jnp.asarray(gains.moments(count), mean.dtype)
        mean = mean + gain * (mean_of_rows(positions) - mean)
        centred = _centred(positions, mean)

        if map_is_latest:
            ahead = Ahead(eigenvectors_of(basis), leading(variances, rank), None)
        eigenvectors, learnt, average = ahead
        projections = project(eigenvectors, centred)
        if gains.relative:
            increment = online_pca.relative_increment(projections, _without_start(learnt, weight))
        else:
            increment = online_pca.oja_increment(projections)
        is_due = (count + 1) % orthonormalize_every == 0
        eigenvectors, projections, oja = online_pca.step(
            optimiser, increment, oja, eigenvectors, projections, centred, is_due
        )

        if map_is_latest:
            ahead, basis = None, build(eigenvectors)
        else:
            learnt = learnt + gain * (jnp.mean(projections**2, axis=1) - learnt)
            if gains.average is not None:
                average = average + jnp.asarray(gains.average(count), mean.dtype) * (eigenvectors - average)
            ahead = Ahead(eigenvectors, learnt, average)
            is_due = (count + 1) % refresh_every == 0
            basis = only_if(is_due, lambda _: build(settled(ahead)), basis)
            projections = project(eigenvectors_of(basis), centred)
        variances = variances + gain * (measure(basis, projections, centred) - variances)
        return EigenState(optax.safe_increment(count), mean, basis, variances, weight * (1 - gain), oja, ahead)

    def settled(ahead):
        return ahead.eigenvectors if ahead.average is None else online_pca.orthonormalize(ahead.average)

    def preconditioner_fn(state):
        return preconditioner(state.basis, _without_start(state.variances, state.weight))

    return Scheme(init_fn, update_fn, preconditioner_fn, gains)


def eigen_identity(
    rank: int, gains: Gains = DEFAULT_GAINS, orthonormalize_every: int = 256, refresh_every: int | None = None
) -> Scheme:
    """`eigen` with all trailing scales 1: the paper's `eigen_identity`."""
    return eigen(rank, "unit", gains, orthonormalize_every, refresh_every)


class _Tail(NamedTuple):
    """How the directions beyond the eigenvectors are scaled.

    build: eigenvectors -> basis. eigenvectors: basis -> eigenvectors. num_scales: (rank, d) -> number of variances.
    measure: (basis, projections on the eigenvectors, centred) -> squared lengths along the basis, averaged over chains,
    the eigenvectors first. preconditioner: (basis, variances) -> map.
    """

    build: Callable
    eigenvectors: Callable
    num_scales: Callable
    measure: Callable
    preconditioner: Callable


def _along_columns(rotation, projections, centred):
    return mean_of_rows(jax.vmap(rotation.complete_transpose)(centred, projections.T) ** 2)


def _along_eigenvectors(eigenvectors, projections, centred):
    del eigenvectors, centred
    return jnp.mean(projections**2, axis=1)


def _along_eigenvectors_and_rest(eigenvectors, projections, centred):
    rank, dim = eigenvectors.shape
    residuals = centred - dot(projections.T, eigenvectors)
    rest = jnp.mean(jnp.sum(residuals**2, axis=1)) / (dim - rank) if rank < dim else jnp.ones((), centred.dtype)
    return jnp.append(jnp.mean(projections**2, axis=1), rest)


def _low_rank(eigenvectors, variances, rest):
    rest = jnp.maximum(rest, jnp.finfo(eigenvectors.dtype).tiny)
    scales = jnp.full(eigenvectors.shape[1], jnp.sqrt(rest), eigenvectors.dtype)
    return LowRank(scales, eigenvectors, variances / rest)


_TAILS = {
    "free": _Tail(
        build=reflections.compact,
        eigenvectors=lambda rotation: rotation.eigenvectors,
        num_scales=lambda rank, dim: dim,
        measure=_along_columns,
        preconditioner=lambda rotation, variances: Householder(rotation, jnp.sqrt(variances)),
    ),
    "isotropic": _Tail(
        build=lambda eigenvectors: eigenvectors,
        eigenvectors=lambda eigenvectors: eigenvectors,
        num_scales=lambda rank, dim: rank + 1,
        measure=_along_eigenvectors_and_rest,
        preconditioner=lambda eigenvectors, variances: _low_rank(eigenvectors, variances[:-1], variances[-1]),
    ),
    "unit": _Tail(
        build=lambda eigenvectors: eigenvectors,
        eigenvectors=lambda eigenvectors: eigenvectors,
        num_scales=lambda rank, dim: rank,
        measure=_along_eigenvectors,
        preconditioner=lambda eigenvectors, variances: _low_rank(eigenvectors, variances, 1.0),
    ),
}


def _moments(start, increment, preconditioner, gains):
    """A running mean and a running second moment about it."""

    def init_fn(positions):
        mean = mean_of_rows(positions)
        return MomentsState(jnp.zeros((), jnp.int32), mean, start(mean), jnp.ones((), mean.dtype))

    def update_fn(state, positions, scores=None):
        del scores
        gain = jnp.asarray(gains.moments(state.count), state.mean.dtype)
        mean = state.mean + gain * (mean_of_rows(positions) - state.mean)
        second = state.second + gain * (increment(_centred(positions, mean)) - state.second)
        return MomentsState(optax.safe_increment(state.count), mean, second, state.weight * (1 - gain))

    return Scheme(init_fn, update_fn, lambda state: preconditioner(state.second, state.weight), gains)


def _without_start(variances, weight):
    """Running variances that began at 1, without what that start, of this weight, has left in them.

    Above a weight of 1 / 100 it stands for what is not learnt yet and is kept, far below it goes but for its rounding.
    """
    left = weight * jnp.minimum(100 * weight, 1)
    return jnp.maximum(variances - (weight - left), 100 * jnp.finfo(variances.dtype).eps * weight)


def _centred(positions, mean):
    """Differences from the mean, cut where their fourth powers would overflow."""
    limit = jnp.finfo(mean.dtype).max ** 0.25
    return jnp.clip(positions - mean[None], -limit, limit)


def _keep(state, positions, scores=None):
    del positions, scores
    return state


def _itself(state):
    return state
