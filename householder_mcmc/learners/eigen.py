r"""The leading eigenvectors of the covariance by Oja's rule, and the variances along them: the paper's learner.

With gains g_t (moments) and h_t (Oja's), E_c the mean over the chains, dx = x - mean_{t+1} and w = V_t dx:

    mean_{t+1} = mean_t + g_t (E_c x - mean_t)
    V_{t+1}    = orthonormalise(V_t + h_t E_c[w dx^T])
    D^2_{t+1}  = D^2_t + g_t (E_c[(Q(V_{t+1})^T dx)^2] - D^2_t)

Source: Hird & Livingstone (2026), Algorithm 1. With the default gains row i of the increment is divided by the variance
learnt along it, less V_t (`online_pca.relative_increment`), and the map is built on a running average of V_t, at every
`refresh_every`-th update.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from householder_mcmc.learners import online_pca
from householder_mcmc.learners.gains import DEFAULT_GAINS, Gains, require_gains
from householder_mcmc.learners.moments import centre, without_start
from householder_mcmc.learners.scheme import Scheme, only_if
from householder_mcmc.linalg import dot, leading, mean_of_rows, project
from householder_mcmc.preconditioners import reflections as forms
from householder_mcmc.preconditioners.checks import require_integer
from householder_mcmc.preconditioners.maps import Householder, LowRank
from householder_mcmc.sharing import shared

__all__ = ["EigenState", "OjaState", "SequentialBasis", "eigen", "eigen_identity"]


# Eigenvectors where no rank is given: as many as `two_ended` has in high dimension. Chosen.
_GENEROUS = 32


class OjaState(NamedTuple):
    """What Oja's rule has learnt that the map does not have yet.

    eigenvectors (rank, d): the latest. variances (rank,): along them. average (rank, d): their running average, or None
    without averaging. It is not orthonormal: rows that still turn are short in it, and give way to those that settled.
    """

    eigenvectors: Array
    variances: Array
    average: Array | None


class SequentialBasis(NamedTuple):
    """Q as a product of reflections, beside the eigenvectors (rank, d) that it was built from."""

    eigenvectors: Array
    rotation: forms.SequentialReflections


class EigenState(NamedTuple):
    """State of `eigen`.

    count (): updates made.
    mean (d,).
    basis: what the map in use is built on, `CompactReflections` or `SequentialBasis` (free tail), or eigenvectors
    (rank, d).
    variances: along the columns of Q (d,) (free tail), or along the eigenvectors and then, with an isotropic tail, the
    mean residual variance.
    weight (): of the start of the variances, which is 1.
    optimiser: state of the optax chain.
    latest: None if the map is built on the latest eigenvectors at every update.
    """

    count: Array
    mean: Array
    basis: forms.CompactReflections | SequentialBasis | Array
    variances: Array
    weight: Array
    optimiser: optax.OptState
    latest: OjaState | None


def eigen(
    rank: int | None = None,
    tail: str = "free",
    gains: Gains = DEFAULT_GAINS,
    orthonormalize_every: int = 256,
    refresh_every: int | None = None,
    reflections: str = "compact",
) -> Scheme:
    """Learn the `rank` leading eigenvectors of the covariance by Oja's rule, and the variances along them.

    Source: Hird & Livingstone (2026), Algorithm 1. Differs with the default gains, which make Oja's increment free of
    the target's scale (`online_pca.relative_increment`).

    Parameters
    ----------
    rank
        Number of eigenvectors, 1 <= rank <= d. None: 32, or d if that is less. That is generous, as the paper suggests
        for a start: the map's `effective_rank()` says how many stand out, and its `compress()` drops the others.
    tail
        The scales of the other directions. "free": one for each remaining column of Q (the paper's `eigen`).
        "isotropic": all equal to the root mean residual variance. "unit": all 1 (the paper's `eigen_identity`).
        The last two need no Q: their map is a `LowRank`.
    gains
        Schedules of the mean and variances, of Oja's rule and of the average of its eigenvectors.
    orthonormalize_every
        Orthonormalise the eigenvectors in full, O(rank^2 d), at every p-th update. The others keep them orthonormal but
        for rounding, which adds up. (At 256 it takes less than a hundredth of the time.)
    refresh_every
        Rebuild the map from the learnt eigenvectors at every I-th update. By default 1; with an average, whose
        eigenvectors must be orthonormalised for it, 10, which is as good as 1 (`benchmarks/results/ablations.md`).
    reflections
        The form of Q, with a free tail. "compact": a rank-m update of the identity. "sequential": the paper's, a scan
        over reflections; the same Q, which takes O(rank^2 d) to build.

    Returns
    -------
    Scheme. The state holds O(rank d) numbers. An update reads the eigenvectors three times and writes them once; with
    `refresh_every` above 1 it also reads those of the map twice, and with an average it reads and writes that.

    Raises
    ------
    TypeError
        On a rank or a period that is no integer, and gains that are no `Gains`.
    ValueError
        On a rank below 1 or, at `init`, above d; a period below 1; an unknown tail or form; the sequential form with
        another tail than the free one.
    """
    rank = None if rank is None else require_integer("rank", rank)
    require_gains(gains)
    _require_one_of("tail", tail, ["free", "isotropic", "unit"])
    _require_one_of("reflections", reflections, ["compact", "sequential"])
    if (tail, reflections) not in _TAILS:
        raise ValueError(f"reflections={reflections!r} needs the tail 'free', got {tail!r}: the others have no Q.")
    if refresh_every is None:
        refresh_every = 1 if gains.average is None else 10
    orthonormalize_every = require_integer("orthonormalize_every", orthonormalize_every)
    return _eigen(rank, tail, gains, orthonormalize_every, require_integer("refresh_every", refresh_every), reflections)


def eigen_identity(
    rank: int | None = None,
    gains: Gains = DEFAULT_GAINS,
    orthonormalize_every: int = 256,
    refresh_every: int | None = None,
) -> Scheme:
    """`eigen` with all trailing scales 1: the paper's `eigen_identity`."""
    return eigen(rank, "unit", gains, orthonormalize_every, refresh_every)


def _require_one_of(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}.")


@shared
def _eigen(rank, tail, gains, orthonormalize_every, refresh_every, reflections):
    optimiser, tail = online_pca.oja(gains.oja), _TAILS[tail, reflections]
    map_is_latest = refresh_every == 1 and gains.average is None

    def init_fn(positions):
        dim = positions.shape[1]
        num = min(_GENEROUS, dim) if rank is None else rank
        if num > dim:
            raise ValueError(f"rank must be at most d = {dim}, got {rank}.")
        mean = mean_of_rows(positions)
        eigenvectors = jnp.eye(num, dim, dtype=mean.dtype)  # (rank, d): the first axes
        average = None if gains.average is None else eigenvectors
        return EigenState(
            count=jnp.zeros((), jnp.int32),
            mean=mean,
            basis=tail.build(eigenvectors),
            variances=jnp.ones(tail.num_scales(num, dim), mean.dtype),
            weight=jnp.ones((), mean.dtype),
            optimiser=optimiser.init(eigenvectors),
            latest=None if map_is_latest else OjaState(eigenvectors, jnp.ones(num, mean.dtype), average),
        )

    def update_fn(state, positions, scores=None):
        """Mean, eigenvectors, then the variances along the columns of the new Q."""
        del scores
        gain = jnp.asarray(gains.moments(state.count), state.mean.dtype)
        mean = state.mean + gain * (mean_of_rows(positions) - state.mean)
        centred = centre(positions, mean)
        eigenvectors, projections, optimiser_state = turn(state, centred)
        if map_is_latest:
            latest, basis = None, tail.build(eigenvectors)
        else:
            latest = follow(state, eigenvectors, projections, gain)
            is_due = (state.count + 1) % refresh_every == 0
            basis = only_if(is_due, lambda _: tail.build(settled(latest)), state.basis)
            projections = project(tail.eigenvectors(basis), centred)
        variances = state.variances + gain * (tail.measure(basis, projections, centred) - state.variances)
        weight = state.weight * (1 - gain)
        count = jnp.asarray(optax.safe_increment(state.count))
        return EigenState(count, mean, basis, variances, weight, optimiser_state, latest)

    def turn(state, centred):
        """A step of Oja's rule: eigenvectors, the draws' projections on them, and the optimiser's state."""
        if map_is_latest:
            eigenvectors = tail.eigenvectors(state.basis)
            variances = leading(state.variances, len(eigenvectors))
        else:
            eigenvectors, variances, _ = state.latest
        projections = project(eigenvectors, centred)
        if gains.relative:
            increment = online_pca.relative_increment(projections, without_start(variances, state.weight))
        else:
            increment = online_pca.oja_increment(projections)
        is_due = (state.count + 1) % orthonormalize_every == 0
        return online_pca.step(optimiser, increment, state.optimiser, eigenvectors, projections, centred, is_due)

    def follow(state, eigenvectors, projections, gain):
        """What Oja's rule has learnt beyond the map: its variances, and the average of its eigenvectors."""
        _, variances, average = state.latest
        variances = variances + gain * (jnp.mean(projections**2, axis=1) - variances)
        if average is not None:
            average = average + jnp.asarray(gains.average(state.count), gain.dtype) * (eigenvectors - average)
        return OjaState(eigenvectors, variances, average)

    def settled(latest):
        return latest.eigenvectors if latest.average is None else online_pca.orthonormalize(latest.average)

    def preconditioner_fn(state):
        return tail.preconditioner(state.basis, without_start(state.variances, state.weight))

    return Scheme(init_fn, update_fn, preconditioner_fn, gains)


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


def _along_columns_of_reflections(basis, projections, centred):
    del projections
    return mean_of_rows(jax.vmap(basis.rotation.apply_transpose)(centred) ** 2)


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


# By tail and form of Q. A tail without Q has the default form's name.
_TAILS = {
    ("free", "compact"): _Tail(
        build=forms.compact,
        eigenvectors=lambda rotation: rotation.eigenvectors,
        num_scales=lambda rank, dim: dim,
        measure=_along_columns,
        preconditioner=lambda rotation, variances: Householder(rotation, jnp.sqrt(variances)),
    ),
    ("free", "sequential"): _Tail(
        build=lambda eigenvectors: SequentialBasis(eigenvectors, forms.sequential(eigenvectors)),
        eigenvectors=lambda basis: basis.eigenvectors,
        num_scales=lambda rank, dim: dim,
        measure=_along_columns_of_reflections,
        preconditioner=lambda basis, variances: Householder(basis.rotation, jnp.sqrt(variances)),
    ),
    ("isotropic", "compact"): _Tail(
        build=lambda eigenvectors: eigenvectors,
        eigenvectors=lambda eigenvectors: eigenvectors,
        num_scales=lambda rank, dim: rank + 1,
        measure=_along_eigenvectors_and_rest,
        preconditioner=lambda eigenvectors, variances: _low_rank(eigenvectors, variances[:-1], variances[-1]),
    ),
    ("unit", "compact"): _Tail(
        build=lambda eigenvectors: eigenvectors,
        eigenvectors=lambda eigenvectors: eigenvectors,
        num_scales=lambda rank, dim: rank,
        measure=_along_eigenvectors,
        preconditioner=lambda eigenvectors, variances: _low_rank(eigenvectors, variances, 1.0),
    ),
}
