r"""Both ends of the spectrum, free of scale: a learner from draws and scores.

In the target's own units a centred draw z and its centred score h cancel, z + h = 0, in every direction of unit
curvature. The gap z + h lies along the directions that are too wide or too narrow, with variance v + 1/v - 2 where z
has variance v. So its leading directions are those that a low-rank map has to scale, at both ends alike, and unlike
those of the draws they carry no noise from the others. For a Gaussian h = -P z holds draw by draw, far from equilibrium
too, and the geometric mean of the covariance of z and the inverse of that of h is P^-1 whatever the draws are. That
mean minimises the Fisher divergence; the learners of nutpie rest on the same fact.

Streaming, in O((rank + n) d) memory for blocks of n draws: `rank` pairs of combinations, the same of draws and of
scores, keep what matters of the past. Directions fitted to fewer draws than dimensions fit noise too, and eigenvalues
measured on the same draws do not show it. Each block is therefore measured along the directions before they learn from
it, and what it says of the eigenvalues corrects them.
"""

import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from householder_mcmc.linalg import dot, inverse_cholesky, mean_of_rows, only_if, project
from householder_mcmc.preconditioners import LowRank
from householder_mcmc.schemes import Scheme

__all__ = ["TwoEndedState", "two_ended"]

_MOST_ROWS = 64  # rows of a block in the sketch; more draws than that are summed in groups first
_NEGLIGIBLE = 1e-6  # of the largest energy of the gap: rounding in float32
_PRIOR = 1e-5  # variance added to draws and scores along each direction, relative to that of all


class TwoEndedState(NamedTuple):
    """Arrays with an axis of length 2 hold draws and scores.

    count (): updates made. block (2, block_size, num_chains, d): draws and scores of the current block. mean (2,
    num_chains, d): of each chain, for distances between chains that start apart say nothing of the target. variances
    (2, d): about it, whitened by the low-rank part of the map alone; since it last changed much.
    pairs (2, rank, d): combinations of past draws and scores about their means. preconditioner: fitted to those.
    corrections (rank,): of the logarithms of its eigenvalues, in their order.
    """

    count: Array
    block: Array
    mean: Array
    variances: Array
    pairs: Array
    preconditioner: LowRank
    corrections: Array


def two_ended(rank: int = 32, block_size: int = 10, forgetting: float = 3.0, negligible: float = 1.2) -> Scheme:
    """Learn a scale for each coordinate and the `rank` directions that are then still too wide or too narrow.

    Parameters
    ----------
    rank
        Number of directions; at most d are used. More than needed cost time, not efficiency.
    block_size
        Steps between changes of the map. The state holds the draws and scores of these steps.
    forgetting
        c in the weight c / (j + c) of block j = 0, 1, ...: the memory is about 1 / c of the run, so it outlasts the
        mixing time, and forgets the start.
    negligible
        A direction whose variance is within this factor of 1, in the learnt scales, is left as it is.

    Returns
    -------
    Scheme. Its map is a `LowRank`; `LowRank.effective_rank` counts the directions that are scaled.

    Raises
    ------
    TypeError
        If `rank` or `block_size` is no integer.
    ValueError
        If an argument is out of range, or at `update`, without scores.
    """
    rank, block_size = operator.index(rank), operator.index(block_size)
    if rank < 1 or block_size < 1:
        raise ValueError(f"rank and block_size must be at least 1, got {rank} and {block_size}.")
    if not forgetting > 0 or not negligible >= 1:
        raise ValueError(f"forgetting must be positive and negligible at least 1, got {forgetting} and {negligible}.")

    def init_fn(positions):
        num_chains, dim = positions.shape
        num, dtype = min(rank, dim), positions.dtype
        return TwoEndedState(
            count=jnp.zeros((), jnp.int32),
            block=jnp.zeros((2, block_size, num_chains, dim), dtype),
            mean=jnp.zeros((2, num_chains, dim), dtype),
            variances=jnp.zeros((2, dim), dtype),
            pairs=jnp.zeros((2, num, dim), dtype),
            preconditioner=LowRank(jnp.ones(dim, dtype), jnp.eye(num, dim, dtype=dtype), jnp.ones(num, dtype)),
            corrections=jnp.zeros(num, dtype),
        )

    def update_fn(state, positions, scores=None):
        if scores is None:
            raise ValueError("two_ended learns from draws and scores: update(state, positions, scores).")
        block = state.block.at[:, state.count % block_size].set(jnp.stack([positions, scores]))
        state = state._replace(count=optax.safe_increment(state.count), block=block)
        return only_if(state.count % block_size == 0, absorb, state)

    def absorb(state):
        number = state.count // block_size - 1
        weight = forgetting / (number.astype(state.mean.dtype) + forgetting)
        mean = state.mean + weight * (jnp.mean(state.block, axis=1) - state.mean)
        draws, scores = (part - of[None] for part, of in zip(state.block, mean, strict=True))
        new = [part.reshape(-1, mean.shape[2]) for part in (draws, _above_rounding(scores, mean[1]))]

        folded = [_fold(part) for part in new]
        # the first maps differ too much for what is measured along one to hold for the next
        corrections = jnp.where(number < 2, 0, state.corrections + weight * (_amiss(state, folded) - state.corrections))
        variances = only_if(number == 0, lambda _: _mean_squares(new), state.variances)
        scales = _scales(variances, state.preconditioner.scales)
        scaled = [
            jnp.concatenate([jnp.sqrt(1 - weight) * old, jnp.sqrt(weight) * part]) * units[None]
            for old, part, units in zip(state.pairs, folded, (1 / scales, scales), strict=True)
        ]
        combinations, directions = _lead(scaled, state.pairs.shape[1])
        pairs = jnp.stack([dot(combinations, part) for part in scaled]) * jnp.stack([scales, 1 / scales])[:, None]
        preconditioner = LowRank(scales, *_balance(scaled, directions))

        of_block = _mean_squares(_whiten(_corrected(preconditioner, corrections), new))
        variances = variances + jnp.maximum(weight, _moved(variances, of_block)) * (of_block - variances)
        learnt = mean, variances, pairs, preconditioner, corrections
        is_good = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(learnt)]))
        varies = jnp.any(new[1] != 0)  # scores that do not vary have a mean, and nothing else to learn from
        old = jnp.where(varies, state.mean, mean), *state[3:]
        return TwoEndedState(
            state.count, state.block, *jax.tree.map(lambda new, old: jnp.where(is_good & varies, new, old), learnt, old)
        )

    def preconditioner_fn(state):
        scales, eigenvectors, eigenvalues = _corrected(state.preconditioner, state.corrections)
        size = jnp.maximum(eigenvalues, 1 / eigenvalues)
        level = jnp.sqrt(jnp.maximum(jnp.mean(state.variances[0] / scales**2), 1))  # draws of unit variance on average
        return LowRank(level * scales, eigenvectors, jnp.where(size > negligible, eigenvalues, 1))

    def forget_fn(state, positions):
        del positions
        return state._replace(count=jnp.zeros_like(state.count))  # the first block has all the weight

    return Scheme(init_fn, update_fn, preconditioner_fn, forget=forget_fn)


# Draws and scores are two arrays (n, d) below: slices and stacks of one take as long as the products.


def _mean_squares(rows):
    """Of each coordinate, (2, d)."""
    return jnp.stack([mean_of_rows(part**2) for part in rows])


def _corrected(preconditioner, corrections):
    return preconditioner._replace(eigenvalues=preconditioner.eigenvalues * jnp.exp(corrections))


def _amiss(state, folded):
    """log(eigenvalue / that in the map), (rank,), by draws and scores that the map has not learnt from."""
    eigenvalues, rows = state.preconditioner.eigenvalues, zip(_both(state.preconditioner), folded, strict=True)
    draws, scores = (jnp.sum(project(eigenvectors, part) ** 2, axis=1) for eigenvectors, part in rows)
    is_known = (draws > 0) & (scores > 0)
    log_ratio = jnp.log(jnp.where(is_known, draws, 1)) - jnp.log(jnp.where(is_known, scores, 1))
    return jnp.where(is_known, log_ratio / 2 - jnp.log(eigenvalues), 0)


def _above_rounding(scores, mean):
    """Centred scores (n, num_chains, d) without the rounding of scores that do not vary."""
    noise = 8 * jnp.finfo(mean.dtype).eps * jnp.abs(mean)[None]
    return jnp.where(jnp.abs(scores) > noise, scores, 0)


def _scales(variances, old):
    """(variance of the draws / variance of the scores)^(1/4), by coordinate: right for a diagonal Gaussian."""
    draws, scores = variances
    is_known = (draws > 0) & (scores > 0)
    return jnp.where(is_known, (draws / jnp.where(is_known, scores, 1)) ** 0.25, old)


def _moved(old, new):
    """How much of the variances (2, d) of the past is to be forgotten because the maps that whitened them were others.

    Noise differs from one coordinate to another. What all have in common is a change of the map; squared, since a slow
    wide direction of chains is in common too, but small.
    """
    is_known = (old > 0) & (new > 0)
    log_ratio = jnp.log(jnp.where(is_known, new, 1) / jnp.where(is_known, old, 1))
    return 1 - jnp.exp(-jnp.max(jnp.mean(log_ratio, axis=1) ** 2))


def _fold(rows):
    """At most `_MOST_ROWS` rows whose Gram matrix estimates that of the given rows (n, d) over their number."""
    num = rows.shape[0]
    group = -(-num // _MOST_ROWS)
    padded = jnp.pad(rows, ((0, -num % group), (0, 0)))  # draws of a group are about independent
    return jnp.sum(padded.reshape(-1, group, rows.shape[1]), axis=1) * num**-0.5


def _lead(scaled, num):
    """The `num` combinations (num, n) of rows with the largest gap, and its orthonormal directions (num, d).

    A direction without energy is a row of zeros.
    """
    gap = sum(scaled)
    energies, combinations = jnp.linalg.eigh(dot(gap, gap.T))
    energies, combinations = energies[::-1][:num], combinations[:, ::-1][:, :num].T
    has_energy = energies > _NEGLIGIBLE * energies[0]
    lengths = jnp.sqrt(jnp.where(has_energy, energies, 1))
    directions = jnp.where(has_energy[:, None], dot(combinations, gap) / lengths[:, None], 0)
    gram = dot(directions, directions.T) + jnp.diag(1 - has_energy.astype(gap.dtype))
    return combinations, dot(inverse_cholesky(gram), directions)


def _balance(scaled, directions):
    """Eigenvectors in the span of the directions, and eigenvalues, of the geometric mean of both covariances."""
    draws, scores = (jnp.mean(jnp.sum(part**2, axis=0)) for part in scaled)
    prior = _PRIOR * jnp.sqrt(draws * scores) * jnp.eye(len(directions), dtype=directions.dtype)
    along = [project(directions, part) for part in scaled]
    of_draws, of_scores = (dot(part, part.T) + prior for part in along)
    root, inverse_root = _roots(of_scores)
    middle, _ = _roots(dot(dot(root, of_draws), root))
    eigenvalues, rotation = jnp.linalg.eigh(dot(dot(inverse_root, middle), inverse_root))
    return dot(rotation.T, directions), jnp.maximum(eigenvalues, _PRIOR)


def _roots(matrix):
    """The symmetric square root of a positive definite matrix, and its inverse."""
    eigenvalues, eigenvectors = jnp.linalg.eigh(matrix)
    roots = jnp.sqrt(jnp.maximum(eigenvalues, jnp.finfo(matrix.dtype).eps * eigenvalues[-1]))
    return dot(eigenvectors * roots[None], eigenvectors.T), dot(eigenvectors / roots[None], eigenvectors.T)


def _whiten(preconditioner, rows):
    """Draws and scores without the low-rank part of the map, in the target's own units."""
    for_draws, for_scores = _both(preconditioner)
    root = jnp.sqrt(preconditioner.eigenvalues)[:, None]

    def stretch(rows, factors, there, back):
        return rows + dot((factors * project(there, rows)).T, back)

    draws, scores = rows
    return stretch(draws, 1 / root - 1, for_draws, for_scores), stretch(scores, root - 1, for_scores, for_draws)


def _both(preconditioner):
    """The eigenvectors, (rank, d), for draws and for scores in the target's own units: both take the scales in."""
    scales, eigenvectors, _ = preconditioner
    return eigenvectors / scales[None], eigenvectors * scales[None]
