"""Reverse Kullback-Leibler divergence KL(q || target) by stochastic gradients, for both Gaussian families.

Source: Hird & Livingstone (2026), Section 4.1 and last appendix. Two errors of the appendix are corrected: it has x in
place of the noise in the gradient, which moves the fixed point, and it ascends in the mean. In addition, the gradient
of the entropy is estimated from the same samples (Roeder, Wu & Duvenaud 2017, "Sticking the landing"), so that the
noise of the gradient vanishes where q is the target.
"""

from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax import Array

from householder_mcmc.sharing import shared
from householder_mcmc.variational.batches import Batch, clean, keep_if_usable
from householder_mcmc.variational.gaussian import LowRankGaussian, LowRankScaleGaussian, check, ravel_mean

__all__ = ["reverse_kl", "reverse_kl_gradient"]


@shared
def reverse_kl(optimiser: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Descend on KL(q || target) with any optax optimiser, for `LowRankGaussian` or `LowRankScaleGaussian`.

    `update(updates, state, params, samples=..., scores=...)` takes samples (batch, ...) of the Gaussian and the
    gradients of the target's log-density there, both positions with a leading axis, batch >= 2, and ignores `updates`.
    The optimiser gets the gradient with respect to (mean, log(diagonal), factor), so that the diagonal stays positive.
    One step changes it by a factor between eps^(1/2) and eps^(-1/2). Samples with a score that is not finite are
    dropped. If none is left, or the result is not finite, the updates are zero and the optimiser's state stays. Cost
    O((rank^2 + rank batch) d).

    To clip gradients, do so inside: `reverse_kl(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)))`. Before
    `reverse_kl` clipping does nothing. Optimisers that need the value of the loss, such as `optax.lbfgs`, cannot be
    used, because only the gradient is estimated.

    Parameters
    ----------
    optimiser
        Any optax transformation that needs no more than gradients and parameters.

    Raises
    ------
    ValueError
        At `init` as `check`; at `update` on other shapes, or a batch below 2.

    Examples
    --------
    A rate for each part, as in the paper:

    .. code-block:: python

        rates = {"mean": optax.sgd(1e-2), "diagonal": optax.sgd(1e-3), "factor": optax.sgd(1e-3)}
        optimiser = hm.variational.reverse_kl(
            optax.partition(rates, hm.variational.LowRankGaussian("mean", "diagonal", "factor"))
        )
    """
    optimiser = optax.with_extra_args_support(optimiser)

    def in_logarithms(params):
        return params._replace(diagonal=jnp.log(params.diagonal))

    def init_fn(params):
        _check_family(params)
        return optimiser.init(in_logarithms(params))

    def update_fn(_, state, params: Any = None, *, samples, scores, **extra_args):
        _check_family(params)
        flat, unravel = ravel_mean(params)
        batch = clean(samples, scores, flat.mean)
        gradient = _gradient(flat, batch)
        gradient = gradient._replace(mean=unravel(gradient.mean), diagonal=gradient.diagonal * params.diagonal)
        updates: Any
        updates, new_state = optimiser.update(gradient, state, in_logarithms(params), **extra_args)
        limit = -0.5 * jnp.log(jnp.finfo(params.diagonal.dtype).eps)
        growth = jnp.expm1(jnp.clip(updates.diagonal, -limit, limit))
        return keep_if_usable(batch, updates._replace(diagonal=growth * params.diagonal), new_state, state)

    return optax.GradientTransformationExtraArgs(init_fn, cast(Any, update_fn))


def reverse_kl_gradient(params: LowRankGaussian | LowRankScaleGaussian, samples: Array, scores: Array):
    """Unbiased estimate of the gradient of KL(q || target) with respect to (mean, diagonal, factor), in their type.

    With samples x_b = mean + L xi_b of q, L L^T its covariance, scores s_b of the target and s^q_b of q at x_b, the
    gradient in L is -mean_b[(s_b - s^q_b) xi_b^T]. Its expectation is that of -L^{-T} - mean_b[s_b xi_b^T]. The chain
    rule takes it to diagonal and factor; the diagonal is not in logarithms here. Samples, scores and errors are those
    of `reverse_kl`.
    """
    _check_family(params)
    flat, unravel = ravel_mean(params)
    gradient = _gradient(flat, clean(samples, scores, flat.mean))
    return gradient._replace(mean=unravel(gradient.mean))


def _gradient(flat, batch: Batch):
    own_scores = jax.vmap(flat.score)(batch.samples)
    return flat.pullback(batch.samples, batch.weights[:, None] * (own_scores - batch.scores))


def _check_family(params):
    if not isinstance(params, LowRankGaussian | LowRankScaleGaussian):
        raise ValueError(
            f"reverse_kl fits a LowRankGaussian or a LowRankScaleGaussian: pass one as params, "
            f"got {type(params).__name__}."
        )
    check(params)
