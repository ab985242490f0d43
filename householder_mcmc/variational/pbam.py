"""Patched batch and match (pBaM): score matching for Gaussians with covariance diagonal plus low-rank.

Sources: Cai, Modi, Pillaud-Vivien, Margossian, Gower, Blei & Saul (2024), "Batch and match: black-box variational
inference with a score-based divergence", the update of mean and covariance; Modi, Cai & Saul (2025), "Batch, match, and
patch: low-rank approximations for score-based variational inference", the patch. Two points differ.

The patch starts from the best factor for the current diagonal, which has a closed form here, and not from the current
factor. So it needs only a step or two of EM.

lambda, unless given, is raised while the mean is far away. An update takes the square of the mean score for curvature.
If lambda times the variance of the scores is not larger than that square, the Gaussian shrinks before it has moved.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.scipy.linalg import cho_solve

from householder_mcmc.linalg import dot
from householder_mcmc.preconditioners.checks import is_concrete, require_integer
from householder_mcmc.preconditioners.maps import LowRank
from householder_mcmc.sharing import shared
from householder_mcmc.variational.batches import Batch, clean, keep_if_usable
from householder_mcmc.variational.gaussian import LowRankGaussian, check, ravel_mean

__all__ = ["PBaMState", "pbam", "batch_and_match", "patch"]

# The first lambda, which then decays like 1 / t. At 100 an update keeps a hundredth of the current Gaussian.
_FIRST_LAMBDA = 100.0

# lambda is at least this many times (mean score)^2 / variance of the scores. At 1 the square of the mean score counts
# as much for curvature as the variance (see above), at 10 a tenth of it.
_SAFETY = 10.0

# A mean score may be noise up to this value of twice the log-likelihood ratio. The largest of a million chi-squared
# variables with one degree of freedom, one for each coordinate, is near 2 log 10^6 = 28.
_NOISE = 30.0

# Over-relaxation of the patch's EM: a step of EM times 1.2. Below 2 it converges (Salakhutdinov & Roweis 2003).
_RELAXATION = 1.2

# EM hardly moves a diagonal that is far below the variance of its coordinate given the others. If it is smaller by more
# than the first factor, it starts at the second factor times that variance.
_FAR_BELOW, _NEARER = 100, 0.1

# Diagonals stay above this many units of rounding of the variance, so that they have two digits.
_ROUNDING = 100


class PBaMState(NamedTuple):
    """count (): updates made."""

    count: Array


@shared
def pbam(
    regularisation: optax.ScalarOrSchedule | None = None, max_patch_steps: int = 100, patch_tolerance: float = 1e-5
) -> optax.GradientTransformationExtraArgs:
    """Patched batch and match, for parameters `LowRankGaussian`.

    `update(updates, state, params, samples=..., scores=...)` takes samples (batch, ...) of the Gaussian and the
    gradients of the target's log-density there, both positions with a leading axis, batch >= 2, and ignores `updates`.
    It returns additive updates for (mean, diagonal, factor). Samples with a score that is not finite are dropped; if
    none is left, or the result is not finite, the updates are zero. Cost O((rank + batch)^2 d).

    Parameters
    ----------
    regularisation
        lambda, the inverse of the weight of the current Gaussian: a float or a schedule (count of updates made ->
        float). By default 100 / (1 + count), and more while the mean is far from that of the target. If it does not
        decay, the fit to a target that is not Gaussian keeps fluctuating.
    max_patch_steps
        Most EM steps in an update.
    patch_tolerance
        Stop the EM when a step lowers its bound on the Kullback-Leibler divergence by less than this times d.

    Raises
    ------
    ValueError
        On options out of range; at `init` as `check`; at `update` on other shapes, or a batch below 2.
    """
    if not (regularisation is None or callable(regularisation) or _is_positive(regularisation)):
        raise ValueError(f"regularisation must be positive, got {regularisation}.")
    if is_concrete(max_patch_steps):
        require_integer("max_patch_steps", max_patch_steps)
    if not _is_positive(patch_tolerance):
        raise ValueError(f"patch_tolerance must be positive, got {patch_tolerance}.")

    def init_fn(params):
        _check_family(params)
        return PBaMState(jnp.zeros((), jnp.int32))

    def update_fn(updates, state, params=None, *, samples, scores, **extra_args):
        del updates, extra_args
        _check_family(params)
        flat, unravel = ravel_mean(params)
        batch = clean(samples, scores, flat.mean)
        if regularisation is None:
            strength = jnp.maximum(_FIRST_LAMBDA / (1 + state.count.astype(flat.mean.dtype)), _least(batch))
        else:
            strength = regularisation(state.count) if callable(regularisation) else regularisation
        mean, covariance = batch_and_match(flat, batch, jnp.asarray(strength, flat.mean.dtype))
        diagonal, factor, _ = patch(covariance, flat.factor.shape[0], max_patch_steps, patch_tolerance)
        new = LowRankGaussian(mean, diagonal, _align(factor, flat.factor))
        updates = jax.tree.map(jnp.subtract, new, flat)
        new_state = PBaMState(jnp.asarray(optax.safe_increment(state.count)))
        updates, state = keep_if_usable(batch, updates, new_state, state)
        return updates._replace(mean=unravel(updates.mean)), state

    return optax.GradientTransformationExtraArgs(init_fn, cast(Any, update_fn))


def _is_positive(option):
    """Whether an option is positive. A traced one, whose value is not known, passes."""
    return not is_concrete(option) or bool(np.asarray(option) > 0)


def batch_and_match(params: Any, batch: Batch, regularisation: Array) -> tuple[Array, LowRank]:
    """Mean (d,) of the batch-and-match update, and a root L of its covariance L L^T. O((rank + batch)^2 d).

    Source: Cai et al. (2024), Algorithm 1: the new covariance C solves C U C + C = V with U and V of low rank beyond
    the current diagonal. Here both are taken to the coordinates, whitened by that diagonal, in which they differ from
    the identity; with V = A A^T the solution is A (I / 2 + (A^T U A + I / 4)^(1/2))^{-1} A^T, which does not cancel.
    The root has min(rank + 2 batch + 2, d) eigenvectors, and the scales of the current diagonal.
    """
    mean, diagonal, factor = params
    samples, scores, weights = batch
    scales = jnp.sqrt(diagonal)
    shrinkage = jnp.sqrt(regularisation / (1 + regularisation))
    roots = jnp.sqrt(regularisation * weights)[:, None]
    mean_sample, mean_score = dot(weights, samples), dot(weights, scores)

    apart, slopes = roots * (samples - mean_sample[None]), roots * (scores - mean_score[None])
    spread = jnp.concatenate([factor, apart, shrinkage * (mean - mean_sample)[None]]) / scales[None]
    slopes = jnp.concatenate([slopes, shrinkage * mean_score[None]]) * scales[None]

    basis = jnp.linalg.qr(jnp.concatenate([spread, slopes]).T)[0].T
    identity = jnp.eye(basis.shape[0], dtype=basis.dtype)
    root = jnp.linalg.qr(jnp.concatenate([dot(spread, basis.T), identity]), mode="r").T  # A
    _, singular_values, directions = jnp.linalg.svd(dot(dot(slopes, basis.T), root), full_matrices=False)
    stretch = 1 / jnp.sqrt(0.5 + jnp.sqrt(singular_values**2 + 0.25)) - 1
    directions, singular_values, _ = jnp.linalg.svd(root + dot(dot(root, directions.T) * stretch[None], directions))

    covariance = LowRank(scales, dot(directions.T, basis), singular_values**2)
    ahead = mean_sample + scales * _whitened_product(covariance, (scales * mean_score)[None])[0]
    return (mean + regularisation * ahead) / (1 + regularisation), covariance


def patch(covariance: LowRank, rank: int, max_steps: int, tolerance: float) -> tuple[Array, Array, Array]:
    """The (diagonal, factor) nearest to a covariance L L^T, and the number of EM steps; O(k rank d) a step.

    Minimises KL(N(0, covariance) || N(0, diag(diagonal) + factor^T factor)), the likelihood of a factor analysis, by EM
    (Rubin & Thayer 1982), over-relaxed, the diagonal in logarithms. It starts at the diagonal scales^2 and the best
    factor for it. A coordinate in which scales^2 is far below its variance given the others starts at a tenth of that
    variance. Diagonals are kept above 100 eps of the variance, and above eps^(1/2) of scales^2, to which `pbam` adds
    its update.

    covariance: k eigenvectors, k >= rank, their eigenvalues in descending order.
    """
    _, eigenvectors, eigenvalues = covariance
    dtype = eigenvectors.dtype
    eps = jnp.finfo(dtype).eps
    squares = eigenvectors**2
    outside = jnp.maximum(1 - jnp.sum(squares, axis=0), 0)
    variances = outside + dot(eigenvalues, squares)
    conditional = 1 / (outside + dot(1 / eigenvalues, squares))
    floor = jnp.maximum(_ROUNDING * eps * variances, jnp.sqrt(eps))
    identity = jnp.eye(rank, dtype=dtype)

    def step(carry):
        diagonal, factor, _, num_steps = carry
        loadings = factor / diagonal[None]
        cholesky = jnp.linalg.cholesky(identity + dot(loadings, factor.T))
        posterior = cho_solve((cholesky, True), loadings)
        cross = _whitened_product(covariance, posterior)
        second = cho_solve((cholesky, True), identity) + dot(cross, posterior.T)
        change = cho_solve((jnp.linalg.cholesky(second), True), cross) - factor
        ratio = jnp.maximum(variances - jnp.sum((factor + change) * cross, axis=0), floor) / diagonal
        # by how much EM's bound on the divergence falls, as a sum of non-negative terms
        gain = 0.5 * (jnp.sum(ratio - 1 - jnp.log(ratio)) + jnp.sum(dot(second, change) * change / diagonal[None]))
        diagonal = jnp.maximum(diagonal * ratio**_RELAXATION, floor)
        return diagonal, factor + _RELAXATION * change, gain, num_steps + 1

    def goes_on(carry):
        *_, gain, num_steps = carry
        return (gain > tolerance * variances.shape[0]) & (num_steps < max_steps)

    diagonal = jnp.where(conditional > _FAR_BELOW, _NEARER * conditional, 1)
    factor = jnp.sqrt(jnp.maximum(eigenvalues[:rank] - 1, 0))[:, None] * eigenvectors[:rank]
    start = diagonal, factor, jnp.asarray(jnp.inf, dtype), jnp.zeros((), jnp.int32)
    diagonal, factor, _, num_steps = lax.while_loop(goes_on, step, start)
    return diagonal * covariance.scales**2, factor * covariance.scales[None], num_steps


def _least(batch: Batch) -> Array:
    """The least lambda, (), at which no mean score is taken for curvature; 0 if all mean scores may be noise."""
    _, scores, weights = batch
    size = jnp.max(jnp.abs(scores), axis=0)
    scores = scores / jnp.where(size > 0, size, 1)[None]  # squares of raw scores may overflow
    mean = dot(weights, scores)
    variances = dot(weights, (scores - mean[None]) ** 2)
    ratio = jnp.max(jnp.where(variances > 0, mean**2 / jnp.where(variances > 0, variances, 1), 0))
    noise = jnp.exp(_NOISE * jnp.sum(weights**2))  # most 1 + ratio can be by noise; the sum is 1 / number of samples
    return _SAFETY * jnp.maximum((1 + ratio) / noise - 1, 0)


def _whitened_product(covariance, rows):
    """rows (n, d) times L L^T, with the rows and columns of L L^T divided by the scales."""
    _, eigenvectors, eigenvalues = covariance
    return rows + dot(dot(rows, eigenvectors.T) * (eigenvalues - 1)[None], eigenvectors)


def _align(factor, target):
    """The factor (rank, d) times the rotation that brings it nearest to another: it leaves factor^T factor as it is.

    Then the updates vanish where the covariance no longer moves.
    """
    left, _, right = jnp.linalg.svd(dot(target, factor.T))
    return dot(dot(left, right), factor)


def _check_family(params):
    if not isinstance(params, LowRankGaussian):
        raise ValueError(f"pbam fits a LowRankGaussian: pass one as params, got {type(params).__name__}.")
    check(params)
