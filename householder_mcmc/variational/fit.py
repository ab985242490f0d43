"""Fit a Gaussian with one of the optimisers: `fit`, a jitted loop, and `low_rank_vi`, a BlackJAX `VIAlgorithm`."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import optax
from blackjax.base import VIAlgorithm
from blackjax.types import ArrayLikeTree, ArrayTree, PRNGKey
from jax import Array
from jax.flatten_util import ravel_pytree

from householder_mcmc.mcmc.logdensity import value_and_grad
from householder_mcmc.preconditioners.checks import require_integer
from householder_mcmc.sharing import program
from householder_mcmc.variational.batches import check_size
from householder_mcmc.variational.gaussian import LowRankGaussian, LowRankScaleGaussian, check, ravel_mean

__all__ = ["VIInfo", "VIState", "fit", "low_rank_vi"]


class VIState(NamedTuple):
    """State of a fit. params: a `LowRankGaussian` or `LowRankScaleGaussian`. opt_state: the optimiser's state."""

    params: LowRankGaussian | LowRankScaleGaussian
    opt_state: optax.OptState


class VIInfo(NamedTuple):
    """What happened in a step, at the parameters that it started from.

    elbo (): mean of log target - log q over the samples that were not dropped; NaN if none is left. If the target is
    normalised, -elbo estimates KL(q || target).
    num_dropped (): samples whose log-density or score was not finite.
    """

    elbo: Array
    num_dropped: Array


def fit(
    optimiser: optax.GradientTransformationExtraArgs,
    logdensity_fn: Callable,
    initial: LowRankGaussian | LowRankScaleGaussian,
    rng_key: PRNGKey,
    num_steps: int,
    *,
    batch_size: int = 32,
    progress: bool = False,
) -> tuple[LowRankGaussian | LowRankScaleGaussian, VIInfo]:
    """Fit a Gaussian to a target.

    Calls with equal optimisers, the same log-density and equal shapes share one compiled program. The arrays that the
    log-density reads are compiled into it, so other data compile another; arrays changed in place are not seen.

    Parameters
    ----------
    optimiser
        `pbam`, `reverse_kl`, or an optax chain that begins with one of them. Links after it may scale, clip or average
        its updates. If one extrapolates, as `optax.trace` does, a step that would make a variance negative is left out.
        Links before it do nothing, because both ignore the updates that they are given. So give
        `optax.clip_by_global_norm` and the like to `reverse_kl` as a part of its optimiser.
    logdensity_fn
        Position -> log-density up to a constant.
    initial
        Where to start: `LowRankGaussian.start(position, rank)`, say. Its mean is a position.
    num_steps
        Number of steps, each of `batch_size` gradients of the log-density.
    batch_size
        Samples of the Gaussian in a step, at least 2.
    progress
        Whether to show BlackJAX's progress bar, which needs `pip install 'blackjax[progress]'`.

    Returns
    -------
    (gaussian, info)
        The fitted Gaussian, in the type of `initial`, and a `VIInfo` with a leading axis of length `num_steps`.

    Raises
    ------
    TypeError
        If `batch_size` or `num_steps` is no integer, or the log-density is not a floating point number.
    ValueError
        If `batch_size` is below 2 or `num_steps` is negative. If shapes or dtypes of `initial` do not match, it is not
        finite, or its diagonal is not positive. If the log-density is an array or has no reverse-mode gradient.

    Examples
    --------
    .. code-block:: python

        initial = hm.variational.LowRankGaussian.start(position, rank=3)
        gaussian, trace = hm.variational.fit(hm.variational.pbam(), logdensity_fn, initial, rng_key, num_steps=100)
        kernel = hm.mala(logdensity_fn, step_size, inverse_mass_matrix=gaussian.to_preconditioner())
    """
    check(initial)
    check_size(batch_size)
    num_steps = require_integer("num_steps", num_steps, least=0)
    run = _fit(logdensity_fn, optimiser, num_steps, batch_size, progress)
    with blackjax.progress_bar(label="fit") if progress else contextlib.nullcontext():
        return jax.block_until_ready(run(rng_key, initial))


@program
def _fit(logdensity_fn, optimiser, num_steps, batch_size, progress):
    del progress  # the bar is compiled into the program, so runs with and without it are two programs

    def run(rng_key, initial):
        flat, unravel = ravel_mean(initial)

        def one_step(state, key):
            return _step(key, state, lambda x: logdensity_fn(unravel(x)), optimiser, batch_size)

        state: Any = VIState(flat, optimiser.init(flat))
        state, trace = jax.lax.scan(one_step, state, jax.random.split(rng_key, num_steps))
        return state.params._replace(mean=unravel(state.params.mean)), trace

    return run


def low_rank_vi(
    logdensity_fn: Callable,
    optimizer: optax.GradientTransformationExtraArgs,
    rank: int,
    num_samples: int = 32,
    family: type = LowRankGaussian,
) -> VIAlgorithm:
    """Variational inference by diagonal plus low-rank Gaussians as a BlackJAX `VIAlgorithm`.

    Parameters
    ----------
    logdensity_fn, optimizer
        As for `fit`.
    rank
        Number of rows of the factor.
    num_samples
        Samples of the Gaussian in a step, at least 2.
    family
        `LowRankGaussian` or `LowRankScaleGaussian`.

    Returns
    -------
    VIAlgorithm
        `init(position)` -> VIState, at `family.start(position, rank)`; `step(rng_key, state)` -> (VIState, VIInfo);
        `sample(rng_key, state, num_samples)` -> positions with a leading axis.

    Raises
    ------
    TypeError
        If `num_samples` or, at `init`, `rank` is no integer.
    ValueError
        If `num_samples` is below 2; at `init`, if the rank is not between 1 and d.
    """
    check_size(num_samples)

    def init_fn(position: ArrayLikeTree) -> VIState:
        params = family.start(position, rank)
        return VIState(params, optimizer.init(params))

    def step_fn(rng_key: PRNGKey, state: VIState) -> tuple[VIState, VIInfo]:
        return _step(rng_key, state, logdensity_fn, optimizer, num_samples)

    def sample_fn(rng_key: PRNGKey, state: VIState, num_samples: int = 1) -> ArrayTree:
        return state.params.sample(rng_key, num_samples)

    return VIAlgorithm(init_fn, step_fn, sample_fn)


def _step(rng_key, state, logdensity_fn, optimiser, num_samples):
    """A step of the optimiser on `num_samples` samples: (VIState, VIInfo)."""
    params: Any
    params, opt_state = state
    samples = params.sample(rng_key, num_samples)
    logdensities, scores = jax.vmap(value_and_grad(logdensity_fn))(samples)
    is_finite = jnp.isfinite(logdensities) & jax.vmap(lambda score: jnp.all(jnp.isfinite(ravel_pytree(score)[0])))(
        scores
    )
    num_finite = jnp.sum(is_finite)

    log_ratios = jnp.where(is_finite, logdensities - jax.vmap(params.log_density)(samples), 0)
    info = VIInfo(jnp.sum(log_ratios) / num_finite.astype(log_ratios.dtype), num_samples - num_finite)

    scores = jax.tree.map(lambda leaf: jnp.where(is_finite.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.nan), scores)
    updates = jax.tree.map(jnp.zeros_like, params)
    updates, opt_state = optimiser.update(updates, opt_state, params, samples=samples, scores=scores)
    # Links after `pbam` or `reverse_kl` that extrapolate, such as `optax.trace`, may make a variance negative. Such a
    # step is left out.
    new_params: Any = optax.apply_updates(params, updates)
    is_usable = jnp.all(new_params.diagonal > 0)
    params = jax.tree.map(lambda new, old: jnp.where(is_usable, new, old), new_params, params)
    return VIState(params, opt_state), info
