r"""Both ends of the spectrum, free of scale: a learner from draws and scores.

After scaling, the centred draw z and the centred score h (gradient of the log-density) sum to zero along directions of
unit variance. What remains of the gap z + h points along directions that are still too wide or too narrow: where z has
variance v, the gap has variance v + 1/v - 2. So the leading directions of the gap are those that a low-rank map has to
scale, at both ends of the spectrum. For a Gaussian with precision P, h = -P z holds draw by draw, far from equilibrium
too, and the geometric mean of the covariance of z and the inverse covariance of h is P^-1 whatever the draws are. That
mean minimises the Fisher divergence; the learners of nutpie (Seyboldt, Carlson & Carpenter 2026) rest on the same fact.

Block j = 0, 1, ... has draws Z and scores H (n, d), centred by chain, and the weight w = c / (j + c). With
S = diag(scales), variances by coordinate var_z and var_h, and the rows that stand for the past R_z and R_h (rank, d):

    b         = |V Z| / |V H| by direction, in the units of the old map
    log e    <- log e + w (log b - log eigenvalues - log e)
    var_z, var_h <- running means of the squares of Z and H, whitened by V and the eigenvalues b
    scales    = (var_z / var_h)^(1/4)
    Y_z, Y_h  = [(1 - w)^(1/2) R_z; w^(1/2) Z] S^-1,  [(1 - w)^(1/2) R_h; w^(1/2) H] S
    C         = the `rank` combinations of rows for which C (Y_z + Y_h) has the most energy, V their directions
    R_z, R_h <- C Y_z S,  C Y_h S^-1
    V, eigenvalues <- eigenvectors of the geometric mean (V Y_z^T Y_z V^T) # (V Y_h^T Y_h V^T)^-1, turned back by V

The map is S (I + V^T (diag(eigenvalues e)^(1/2) - I) V). The memory is O((rank + n) d).

Why the corrections e: directions fitted to fewer draws than dimensions fit noise too, and eigenvalues measured on the
draws that chose the directions are too extreme. So each new block is first measured along the old directions, for the
scales too.
"""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from householder_mcmc.learners import pairs
from householder_mcmc.learners.scheme import Scheme, only_if
from householder_mcmc.linalg import dot, inverse_cholesky, project
from householder_mcmc.preconditioners.checks import is_concrete, require_integer
from householder_mcmc.preconditioners.maps import Diagonal, LowRank, cast_floats
from householder_mcmc.sharing import shared

__all__ = ["TwoEndedState", "two_ended"]

# Without a rank all directions are learnt up to this d, where a new map takes 20-60 ms; above it as many as have so
# many numbers, 2-18 ms, but 32 at least. Chosen: see "The rank" in benchmarks/RESULTS.md.
_MOST_WHOLE = 256
_MOST_NUMBERS = 2**16
_FEWEST_DIRECTIONS = 32

# Directions whose energy is below this share of the largest are rounding: 8 units of it in float32.
_NEGLIGIBLE_ENERGY = 1e-6

# Variance added to draws and scores along each direction, in units of the mean of their total variances, so that the
# square roots exist. Eigenvalues beyond 1e5 of the scales take a few blocks.
_PRIOR = 1e-5

# A direction with a larger eigenvalue may be flat, as where the log-density does not depend on a sum of coordinates: it
# is 1e19 on `XY`. A Gaussian has no center along it. Chosen: standard deviations of 1000 in the units of the scales.
_WIDEST = 1e6

# The largest eigenvalue that is used, in float32 1 / eps: a walk along a flat direction must not use up the digits of
# the others. Chosen.
_MOST_USED = 1e10

# How far the chains' means may be from the center, by length, in units of the distance of draws. Chosen: with 1 there
# is no center on the log-Gaussian Cox process, whose chains mix slowly: ESS per 1000 gradients 21, with 2 it is 34.
_FARTHEST = 2.0

# Blocks that a map which is known from elsewhere counts for: about as many as a short warm-up has. Chosen.
_KNOWN_BLOCKS = 10


class TwoEndedState(NamedTuple):
    """State of `two_ended`. Arrays with an axis of length 2 hold draws and scores.

    count (): updates made.
    block (2, block_size, num_chains, d): draws and scores of the current block.
    mean (2, num_chains, d): means by chain, because distances between far starts must not count as variance.
    variances (2, d): after the low-rank part of the map is removed. Older ones count less when the map has changed.
    past (2, rank, d): rows that stand for past draws and scores about their means, each pair the same combination.
    preconditioner: fitted to those.
    corrections (rank,): of the logarithms of its eigenvalues, in their order.
    center (d,): the mean of the Gaussian; NaN if there is none.
    products (3,): means of |z|^2, |g|^2 and -z.g, of draws and scores in whitened units, before they were learnt from;
        ones until the third block.
    """

    count: Array
    block: Array
    mean: Array
    variances: Array
    past: Array
    preconditioner: LowRank
    corrections: Array
    center: Array
    products: Array


def two_ended(
    rank: int | None = None, block_size: int = 10, forgetting: float = 3.0, negligible: float = 1.2
) -> Scheme:
    """Learn a scale for each coordinate and the `rank` directions that are then still too wide or too narrow.

    Parameters
    ----------
    rank
        Number of directions; at most d are used. More than needed cost time. None: all of them up to d = 256, above it
        65,536 / d, but at least 32.
    block_size
        Steps between changes of the map. The state holds the draws and scores of these steps.
    forgetting
        c in the weight c / (j + c) of block j = 0, 1, ...: the memory is about 1 / c of the run, so it outlasts
        the mixing time, and forgets the start.
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
    rank = None if rank is None else require_integer("rank", rank)
    block_size = require_integer("block_size", block_size)
    are_known = is_concrete(forgetting), is_concrete(negligible)
    if are_known[0] and not np.asarray(forgetting) > 0 or are_known[1] and not np.asarray(negligible) >= 1:
        raise ValueError(f"forgetting must be positive and negligible at least 1, got {forgetting} and {negligible}.")

    return _two_ended(rank, block_size, forgetting, negligible)


@shared
def _two_ended(rank, block_size, forgetting, negligible):
    def init_fn(positions):
        num_chains, dim = positions.shape
        num = min(_num_directions(dim) if rank is None else rank, dim)
        dtype = positions.dtype
        state = TwoEndedState(
            count=jnp.zeros((), jnp.int32),
            block=jnp.zeros((2, block_size, num_chains, dim), dtype),
            mean=jnp.stack([positions, jnp.zeros_like(positions)]),
            variances=jnp.zeros((2, dim), dtype),
            past=jnp.zeros((2, num, dim), dtype),
            preconditioner=LowRank(jnp.ones(dim, dtype), jnp.eye(num, dim, dtype=dtype), jnp.ones(num, dtype)),
            corrections=jnp.zeros(num, dtype),
            center=jnp.zeros(dim, dtype),
            products=jnp.ones(3, dtype),
        )
        return with_center(state)

    def update_fn(state, positions, scores=None):
        if scores is None:
            raise ValueError("two_ended learns from draws and scores: update(state, positions, scores).")
        new = jnp.stack([positions, scores])
        block = jax.lax.dynamic_update_index_in_dim(state.block, new, state.count % block_size, axis=1)
        state = state._replace(count=optax.safe_increment(state.count), block=block)
        return only_if(state.count % block_size == 0, absorb, state)

    def absorb(state):
        """The state after a whole block, in the steps of the recursion above."""
        number = state.count // block_size - 1
        memory = jnp.asarray(forgetting, state.mean.dtype)
        weight = memory / (number.astype(state.mean.dtype) + memory)

        # 1. Centre the block by chain, and divide it so that its Gram matrices are means.
        mean = (1 - weight) * state.mean + weight * jnp.mean(state.block, axis=1)  # of the first block exactly
        block = tuple(part * len(part) ** -0.5 for part in pairs.centre(state.block, mean))

        # 2. Before the map learns from the block, measure on it its eigenvalues, and how well it fits. (The first two
        # maps differ too much for what is measured along one to hold for the next.)
        old_map = _corrected(state.preconditioner, state.corrections)
        rows = tuple(pairs.fold(part, state.block.shape[2]) for part in block)
        energies, totals = pairs.energies(state.preconditioner, rows)
        log_errors = pairs.log_errors(state.preconditioner, energies, totals)
        corrections = jnp.where(number < 2, 0, state.corrections + weight * (log_errors - state.corrections))
        new_products = pairs.products(old_map, rows, energies, totals)
        products = jnp.where(number < 2, 1, state.products + weight * (new_products - state.products))

        # 3. A scale for each coordinate, from variances of the block, whitened along the old directions. They are not
        # fitted to it: along directions that are, scores of a Gaussian are stretched by too much, and the scales of the
        # coordinates that these touch fall. The eigenvalues are its own: those of the map lag behind while wide
        # directions are found (second Gaussian, d = 400, 64 directions, far starts: a third more gradients).
        of_itself = _corrected(state.preconditioner, log_errors).eigenvalues
        whitening = state.preconditioner._replace(eigenvalues=jnp.where(number == 0, 1, of_itself))
        of_block = pairs.squares(pairs.whiten(whitening, block))
        is_known = jnp.all(of_block > pairs.rounding_of_whitened(whitening, block), axis=0)  # not of a flat coordinate
        forgotten = jnp.where(number == 0, 1, jnp.maximum(weight, _common_change(state.variances, of_block)))
        variances = state.variances + jnp.where(is_known, forgotten, 0)[None] * (of_block - state.variances)
        scales = _scales(variances, state.preconditioner.scales)

        # 4. In those units, the directions with the largest gap of past and block together, and their eigenvalues.
        past, units = jnp.sqrt(1 - weight), (1 / scales, scales)
        rows = [
            jnp.concatenate([past * old, jnp.sqrt(weight) * new]) * unit[None]
            for old, new, unit in zip(state.past, rows, units, strict=True)
        ]
        combinations, directions = _largest_gaps(rows, state.past.shape[1])
        preconditioner = LowRank(scales, *_geometric_mean(rows, directions))
        past = jnp.stack([dot(combinations, part) for part in rows]) * jnp.stack(units[::-1])[:, None]

        # What is not finite changes nothing. Scores that do not vary have a mean, and nothing else to learn from.
        varies = jnp.any(block[1] != 0)
        new = {
            "mean": mean,
            "variances": variances,
            "past": past,
            "preconditioner": preconditioner,
            "corrections": corrections,
            "products": products,
        }
        old = {name: getattr(state, name) for name in new} | {"mean": jnp.where(varies, state.mean, mean)}
        is_finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(new)]))
        kept = jax.tree.map(lambda new, old: jnp.where(is_finite & varies, new, old), new, old)
        return with_center(state._replace(**kept))

    def preconditioner_fn(state):
        scales, eigenvectors, eigenvalues = _corrected(state.preconditioner, state.corrections)
        size = jnp.maximum(eigenvalues, 1 / eigenvalues)
        level = jnp.sqrt(jnp.maximum(jnp.mean(state.variances[0] / scales**2), 1))  # draws of unit variance on average
        eigenvalues = jnp.where(size > jnp.asarray(negligible, size.dtype), eigenvalues, 1)
        most = min(_MOST_USED, 1 / jnp.finfo(eigenvalues.dtype).eps)
        return LowRank(level * scales, eigenvectors, jnp.minimum(eigenvalues, most))

    def forget_fn(state, positions):
        del positions
        return state._replace(count=jnp.zeros_like(state.count))  # the first block has all the weight

    def begin_fn(state, preconditioner):
        known = _as_low_rank(preconditioner, state.preconditioner)
        size = jnp.abs(jnp.log(known.eigenvalues))
        _, strongest = jax.lax.top_k(size, min(len(size), len(state.corrections)))
        eigenvectors, eigenvalues = known.eigenvectors[strongest], known.eigenvalues[strongest]
        scales, root = known.scales, jnp.sqrt(eigenvalues)[:, None]
        preconditioner, past = state.preconditioner, state.past
        return with_center(
            state._replace(
                count=state.count + _KNOWN_BLOCKS * block_size,
                variances=jnp.stack([scales**2, scales**-2]),
                past=_first_rows(past, jnp.stack([root * eigenvectors * scales, -eigenvectors / root / scales])),
                preconditioner=LowRank(
                    scales,
                    _first_rows(jnp.zeros_like(preconditioner.eigenvectors), eigenvectors),
                    _first_rows(preconditioner.eigenvalues[:, None], eigenvalues[:, None])[:, 0],
                ),
            )
        )

    def with_center(state):
        """The mean of the draws, and a step of Newton's from there: right for a Gaussian whatever the draws are.

        NaN where one Gaussian is not enough: with a direction that may be flat, or where the chains' own means are
        more than twice as far from the center, by length, as draws are.
        """
        preconditioner, (draws, scores) = preconditioner_fn(state), state.mean
        step = preconditioner.apply_transpose(jnp.mean(scores, axis=0))
        step = step / jnp.maximum(jnp.linalg.norm(step) / jnp.sqrt(len(step)), 1)  # draws from elsewhere may be far off
        center = jnp.mean(draws, axis=0) + preconditioner.apply(step)
        distances = jnp.sum(jax.vmap(preconditioner.solve)(draws - center[None]) ** 2, axis=1)
        is_center = jnp.all(distances < _FARTHEST**2 * len(center)) & ~jnp.any(_are_flat(state))
        return state._replace(center=jnp.where(is_center, center, jnp.nan))

    return Scheme(
        init_fn,
        update_fn,
        preconditioner_fn,
        forget=forget_fn,
        begin=begin_fn,
        center=lambda state: state.center,
        explained=_explained,
        determined=_determined,
    )


def _num_directions(dim):
    """Without a rank."""
    return dim if dim <= _MOST_WHOLE else max(_MOST_NUMBERS // dim, _FEWEST_DIRECTIONS)


def _explained(state):
    """The squared correlation of draws and scores in whitened units, (): 1 for a Gaussian whose map is known.

    By Stein's identity the mean of z.g is -d for any target, so that this is d^2 over the mean squares of z and g.
    """
    draws, scores, product = state.products
    return jnp.where(product > 0, product, 0) ** 2 / (draws * scores)


def _are_flat(state):
    """Whether the log-density may be constant along each eigenvector, (rank,)."""
    return state.preconditioner.eigenvalues * jnp.exp(state.corrections) > _WIDEST


def _determined(state, differences):
    """Differences of positions (n, d) without what is along flat directions."""
    are_flat = _are_flat(state)

    def without_flat(differences):
        for_draws, for_scores = pairs.eigenvectors_in_own_units(state.preconditioner)
        along = jnp.where(are_flat[:, None], project(for_draws, differences), 0)
        return differences - dot(along.T, for_scores)

    return only_if(jnp.any(are_flat), without_flat, differences)


def _as_low_rank(preconditioner, like):
    """The map with the shapes and the dtype of another one, but for its rank."""
    if isinstance(preconditioner, Diagonal):
        scales = preconditioner.scales
        preconditioner = LowRank(scales, jnp.eye(1, len(scales), dtype=scales.dtype), jnp.ones(1, scales.dtype))
    if not isinstance(preconditioner, LowRank):
        raise ValueError(f"two_ended begins with a LowRank or a Diagonal map, got a {type(preconditioner).__name__}.")
    if preconditioner.scales.shape != like.scales.shape:
        dim = len(like.scales)
        raise ValueError(f"the known map must be of d = {dim} coordinates, got {preconditioner.scales.shape}.")
    return cast(LowRank, cast_floats(preconditioner, like.scales.dtype))


def _first_rows(rows, new):
    """Rows (..., num, d) whose first ones are new."""
    return jax.lax.dynamic_update_slice(rows, new.astype(rows.dtype), (0,) * rows.ndim)


def _scales(variances, old):
    """(variance of the draws / variance of the scores)^(1/4), by coordinate: right for a diagonal Gaussian."""
    draws, scores, is_known = pairs.where_positive(*variances)
    return jnp.where(is_known, jnp.sqrt(jnp.sqrt(draws) / jnp.sqrt(scores)), old)  # draws / scores may underflow


def _common_change(old, new):
    """How much of the variances (2, d) of the past is to be forgotten, between 0 and 1.

    If all coordinates' variances shift together, the map has changed: forget more. If they shift apart, it is noise.
    The common shift of log variances is squared, because a slow wide direction shifts all a little too. Chosen: twice
    the shift. (Once: the second Gaussian in d = 100, 32 of its directions learnt from 400 draws of one chain, keeps
    condition numbers of 30-490, with twice 4-14. Three times: the scales of heavy tails become noise.)
    """
    new, old, _ = pairs.where_positive(new, old)
    return 1 - jnp.exp(-jnp.max((2 * jnp.mean(jnp.log(new / old), axis=1)) ** 2))


def _largest_gaps(rows, num):
    """The `num` combinations (num, n) of rows with the largest gap, and its orthonormal directions (num, d).

    A direction without energy is a row of zeros.
    """
    draws, scores = rows
    gap = draws + scores
    energies, combinations = jnp.linalg.eigh(dot(gap, gap.T))
    energies, combinations = energies[::-1][:num], combinations[:, ::-1][:, :num].T
    has_energy = energies > _NEGLIGIBLE_ENERGY * energies[0]
    lengths = jnp.sqrt(jnp.where(has_energy, energies, 1))
    directions = jnp.where(has_energy[:, None], dot(combinations, gap) / lengths[:, None], 0)
    gram = dot(directions, directions.T) + jnp.diag(1 - has_energy.astype(gap.dtype))
    return combinations, dot(inverse_cholesky(gram), directions)


def _geometric_mean(rows, directions):
    """Eigenvectors in the span of the directions, and eigenvalues: of the geometric mean of the draws' covariance and
    the inverse of the scores'."""
    draws, scores = (jnp.mean(jnp.sum(part**2, axis=0)) for part in rows)
    prior = _PRIOR * jnp.sqrt(draws * scores) * jnp.eye(len(directions), dtype=directions.dtype)
    along = [project(directions, part) for part in rows]
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


def _corrected(preconditioner, corrections):
    return preconditioner._replace(eigenvalues=preconditioner.eigenvalues * jnp.exp(corrections))
