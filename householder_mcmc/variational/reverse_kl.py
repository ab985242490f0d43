"""Reverse Kullback-Leibler divergence KL(q || target) by stochastic gradients, for both Gaussian families.

Source: Hird & Livingstone (2026), Section 4.1 and last appendix. Differs: the appendix has x in place of the noise in
the gradient, which moves its fixed point, and ascends in the mean; and the entropy's part of the gradient is taken at
the same samples (Roeder, Wu & Duvenaud 2017, "Sticking the landing"), so that the noise vanishes where q is the target.
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
    The optimiser is given the gradient with respect to (mean, log(diagonal), factor), so that the diagonal stays
    positive; a step multiplies it by between eps^(1/2) and eps^(-1/2). Samples with a score that is not finite are
    dropped; if none is left, or the result is not finite, the updates are zero and the optimiser's state stays.
    Cost O((rank^2 + rank batch) d). A clipping of the gradient belongs into `optimiser`,
    `reverse_kl(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)))`; before `reverse_kl` it does nothing. An
    optimiser that asks for the value of the loss, such as `optax.lbfgs`, cannot be used, since only its gradient is
    estimated.

    Raises
    ------
    ValueError
        At `init` as `check`; at `update` on other shapes, or a batch below 2.

    Examples
    --------
    A rate for each part, as in the paper:

    .. code::

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

    With samples x_b of q and scores s_b of the target there it is, for L L^T the covariance and x = mean + L xi, the
    chain rule applied to -mean_b[(s_b - s^q_b) xi_b^T], s^q the score of q: its expectation is that of
    -L^{-T} - mean_b[s_b xi_b^T]. Samples, scores and raised errors as in `reverse_kl`; here the diagonal is not in
    logarithms.
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
