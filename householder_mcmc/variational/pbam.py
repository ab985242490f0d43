"""Patched batch and match (pBaM): score matching for Gaussians with covariance diagonal plus low-rank.

Sources: Cai, Modi, Pillaud-Vivien, Margossian, Gower, Blei & Saul (2024), "Batch and match: black-box variational
inference with a score-based divergence", the update of mean and covariance; Modi, Cai & Saul (2025), "Batch, match, and
patch: low-rank approximations for score-based variational inference", the patch. The patch starts from the best factor
for the current diagonal, which is known in closed form here, and adapts its over-relaxation (Salakhutdinov & Roweis
2003, "Adaptive overrelaxed bound optimization methods"); the published one starts from the current parameters with a
fixed one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.scipy.linalg import cho_solve

from householder_mcmc.linalg import dot
from householder_mcmc.variational.batches import Batch, clean, keep_if_usable
from householder_mcmc.variational.gaussian import LowRankGaussian, check, ravel_mean

__all__ = ["PBaMState", "pbam", "ImplicitCovariance", "batch_and_match", "patch"]


class PBaMState(NamedTuple):
    """count (): updates made."""

    count: Array


def pbam(
    regularisation: optax.ScalarOrSchedule = 10.0, max_patch_steps: int = 500, patch_tolerance: float = 1e-6
) -> optax.GradientTransformationExtraArgs:
    """Patched batch and match, for parameters `LowRankGaussian`.

    `update(updates, state, params, samples=..., scores=...)` takes samples (batch, ...) of the Gaussian and the
    gradients of the target's log-density there, both positions with a leading axis, batch >= 2, and ignores `updates`.
    It returns additive updates for (mean, diagonal, factor). Samples with a score that is not finite are dropped; if
    none is left, or the result is not finite, the updates are zero. Cost O((rank + batch)^2 d).

    Parameters
    ----------
    regularisation
        lambda, the inverse of the weight of the current Gaussian; a float or a schedule (count of updates made ->
        float). A constant fits Gaussian targets exactly; elsewhere the fit fluctuates unless it decays.
    max_patch_steps
        Most EM steps in an update.
    patch_tolerance
        Stop the EM when a step lowers the Kullback-Leibler divergence by less than this times d.

    Raises
    ------
    ValueError
        On options out of range; at `init` as `check`; at `update` on other shapes, or a batch below 2.
    """
    if not callable(regularisation) and not regularisation > 0:
        raise ValueError(f"regularisation must be positive, got {regularisation}.")
    if max_patch_steps < 1:
        raise ValueError(f"max_patch_steps must be at least 1, got {max_patch_steps}.")
    if not patch_tolerance > 0:
        raise ValueError(f"patch_tolerance must be positive, got {patch_tolerance}.")

    def init_fn(params):
        _check_family(params)
        return PBaMState(jnp.zeros((), jnp.int32))

    def update_fn(updates, state, params=None, *, samples, scores, **extra_args):
        del updates, extra_args
        _check_family(params)
        flat, unravel = ravel_mean(params)
        batch = clean(samples, scores, flat.mean)
        strength = regularisation(state.count) if callable(regularisation) else regularisation
        mean, covariance = batch_and_match(flat, batch, jnp.asarray(strength, flat.mean.dtype))
        diagonal, factor, _ = patch(covariance, flat.factor.shape[0], max_patch_steps, patch_tolerance)
        new = LowRankGaussian(mean, diagonal, _align(factor, flat.factor))
        updates = jax.tree.map(jnp.subtract, new, flat)
        updates, state = keep_if_usable(batch, updates, PBaMState(optax.safe_increment(state.count)), state)
        return updates._replace(mean=unravel(updates.mean)), state

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


class ImplicitCovariance(NamedTuple):
    """S (I + B^T (C C^T - I) B) S, with S = diag(scales), B = basis, C = core.

    scales (d,): positive. basis (k, d): orthonormal rows. core (k, k).
    """

    scales: Array
    basis: Array
    core: Array

    def whitened_diagonal(self) -> Array:
        """The diagonal divided by scales^2, (d,)."""
        outside = jnp.maximum(1 - jnp.sum(self.basis**2, axis=0), 0)
        return outside + jnp.sum(dot(self.core.T, self.basis) ** 2, axis=0)

    def whitened_product(self, rows: Array) -> Array:
        """rows (n, d) times S^{-1} covariance S^{-1}."""
        inside = dot(rows, self.basis.T)
        return rows + dot(dot(dot(inside, self.core), self.core.T) - inside, self.basis)

    def to_dense(self) -> Array:
        """As a (d, d) array: for tests."""
        identity = jnp.eye(self.scales.shape[0], dtype=self.scales.dtype)
        return self.scales[:, None] * self.whitened_product(identity) * self.scales


def batch_and_match(
    params: LowRankGaussian, batch: Batch, regularisation: Array
) -> tuple[Array, ImplicitCovariance]:
    """Mean (d,) and covariance of the batch-and-match update, O((rank + batch)^2 d).

    Source: Cai et al. (2024), Algorithm 1: the new covariance solves C U C + C = V with U and V of low rank beyond the
    current diagonal. Here both are taken to the coordinates, whitened by that diagonal, in which they differ from the
    identity, and with V = A A^T the solution is A (I / 2 + (A^T U A + I / 4)^(1/2))^{-1} A^T, which does not cancel.
    """
    mean, diagonal, factor = params
    samples, scores, weights = batch
    scales = jnp.sqrt(diagonal)
    shrinkage = jnp.sqrt(regularisation / (1 + regularisation))
    roots = jnp.sqrt(regularisation * weights)[:, None]
    mean_sample, mean_score = dot(weights, samples), dot(weights, scores)

    spread = jnp.concatenate([factor, roots * (samples - mean_sample), shrinkage * (mean - mean_sample)[None]]) / scales
    slopes = jnp.concatenate([roots * (scores - mean_score), shrinkage * mean_score[None]]) * scales

    basis = jnp.linalg.qr(jnp.concatenate([spread, slopes]).T)[0].T
    identity = jnp.eye(basis.shape[0], dtype=basis.dtype)
    root = jnp.linalg.qr(jnp.concatenate([dot(spread, basis.T), identity]), mode="r").T  # A
    _, singular_values, directions = jnp.linalg.svd(dot(dot(slopes, basis.T), root), full_matrices=False)
    stretch = 1 / jnp.sqrt(0.5 + jnp.sqrt(singular_values**2 + 0.25)) - 1
    core = root + dot(dot(root, directions.T) * stretch, directions)

    covariance = ImplicitCovariance(scales, basis, core)
    ahead = mean_sample + scales * covariance.whitened_product((scales * mean_score)[None])[0]
    return (mean + regularisation * ahead) / (1 + regularisation), covariance


class _PatchState(NamedTuple):
    """Of the EM, all whitened by the scales.

    diagonal (d,), factor (rank, d): where it is. safe: (diagonal, factor) of the last plain EM step. objective ():
    divergence at the last accepted point. relaxation (). gain (): what the last EM step lowered the divergence by, at
    least. num_steps ().
    """

    diagonal: Array
    factor: Array
    safe: tuple[Array, Array]
    objective: Array
    relaxation: Array
    gain: Array
    num_steps: Array


def patch(
    covariance: ImplicitCovariance, rank: int, max_steps: int, tolerance: float
) -> tuple[Array, Array, Array]:
    """The (diagonal, factor) nearest to a covariance, and the number of EM steps; O(k rank d) a step.

    Minimises KL(N(0, covariance) || N(0, diag(diagonal) + factor^T factor)), the likelihood of a factor analysis, by
    over-relaxed EM (Rubin & Thayer 1982). Diagonals are kept above 100 eps of the variance, and above eps^(1/2) of the
    diagonal that whitens, so that adding the update to that one keeps them.
    """
    dtype = covariance.scales.dtype
    eps = jnp.finfo(dtype).eps
    variances = covariance.whitened_diagonal()
    floor = jnp.maximum(100 * eps * variances, jnp.sqrt(eps))
    identity = jnp.eye(rank, dtype=dtype)

    def em(diagonal, factor):
        """The next point of EM, the objective here, and what the step gains."""
        loadings = factor / diagonal
        cholesky = jnp.linalg.cholesky(identity + dot(loadings, factor.T))
        posterior = cho_solve((cholesky, True), loadings)
        cross = covariance.whitened_product(posterior)
        second = cho_solve((cholesky, True), identity) + dot(cross, posterior.T)
        new_factor = jnp.linalg.solve(second, cross)
        new_diagonal = jnp.maximum(variances - jnp.sum(new_factor * cross, axis=0), floor)

        log_determinant = jnp.sum(jnp.log(diagonal)) + 2 * jnp.sum(jnp.log(jnp.diag(cholesky)))
        trace = jnp.sum(variances / diagonal) - jnp.sum(cross * loadings)
        ratio, change = new_diagonal / diagonal, new_factor - factor
        gain = jnp.sum(ratio - 1 - jnp.log(ratio)) + jnp.sum(dot(second, change) * change / diagonal)
        return (new_diagonal, new_factor), 0.5 * (trace + log_determinant), 0.5 * gain

    def step(state):
        following, objective, gain = em(state.diagonal, state.factor)
        is_lower = (objective <= state.objective) | (state.relaxation == 1)  # a plain step lowers it
        relaxation = jnp.where(is_lower, 1.1 * state.relaxation, 1.0).astype(dtype)
        diagonal = jnp.maximum(state.diagonal * (following[0] / state.diagonal) ** relaxation, floor)
        factor = state.factor + relaxation * (following[1] - state.factor)
        diagonal, factor = jax.tree.map(
            lambda relaxed, safe: jnp.where(is_lower, relaxed, safe), (diagonal, factor), state.safe
        )
        safe = jax.tree.map(lambda new, old: jnp.where(is_lower, new, old), following, state.safe)
        objective = jnp.where(is_lower, objective, state.objective)
        gain = jnp.where(is_lower, gain, state.gain)
        return _PatchState(diagonal, factor, safe, objective, relaxation, gain, state.num_steps + 1)

    def goes_on(state):
        return (state.gain > tolerance * variances.shape[0]) & (state.num_steps < max_steps)

    diagonal, factor = jnp.ones_like(variances), _best_factor(covariance, rank)
    infinite = jnp.asarray(jnp.inf, dtype)
    start = _PatchState(
        diagonal, factor, (diagonal, factor), infinite, jnp.ones((), dtype), infinite, jnp.zeros((), jnp.int32)
    )
    final = lax.while_loop(goes_on, step, start)
    diagonal, factor = final.safe
    return diagonal * covariance.scales**2, factor * covariance.scales, final.num_steps


def _best_factor(covariance, rank):
    """The best whitened factor (rank, d) for the diagonal that whitens: principal components."""
    directions, singular_values, _ = jnp.linalg.svd(covariance.core)
    excess = jnp.sqrt(jnp.maximum(singular_values[:rank] ** 2 - 1, 0))
    return excess[:, None] * dot(directions[:, :rank].T, covariance.basis)


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
