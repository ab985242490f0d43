"""Adaptive MALA, as a BlackJAX sampling algorithm.

Source: Hird & Livingstone (2026), Algorithm 1, the adaptive step, and Algorithm 2, the MALA kernel. The chain is
not Markov while it adapts. Its averages converge if the gains go to zero. For a kernel that leaves the target invariant
use `warmup`, which freezes what it has learnt.
"""

import warnings
from collections.abc import Callable
from typing import Any

import optax
from blackjax.base import SamplingAlgorithm
from blackjax.types import ArrayLikeTree

from householder_mcmc.adaptation import adaptive
from householder_mcmc.adaptation.samplers import SAMPLERS
from householder_mcmc.learners.gains import STEP_SIZE_GAIN, diminishes
from householder_mcmc.learners.scheme import Scheme
from householder_mcmc.mcmc.api import Algorithm
from householder_mcmc.mcmc.metropolis import require_rate
from householder_mcmc.sharing import program

__all__ = ["init", "build_kernel", "as_top_level_api"]

_MALA = SAMPLERS["mala"]._replace(longest_sigma=None)  # without a center, as in the paper


def init(positions: ArrayLikeTree, logdensity_fn: Callable, scheme: Scheme, num_chains: int) -> adaptive.AdaptiveState:
    """The state at positions whose leaves have a leading axis of length num_chains. Raises as `adaptive.init`."""
    return adaptive.init(positions, logdensity_fn, scheme, _MALA, num_chains)


def build_kernel(
    scheme: Scheme,
    target_acceptance_rate: float = _MALA.target_acceptance_rate,
    step_size_gain: optax.Schedule = STEP_SIZE_GAIN,
) -> Callable:
    """Return kernel(rng_key, state, logdensity_fn) -> (state, info): MALA steps of all chains, then one of learning.

    Raises ValueError if the target is not between 0 and 1.
    """
    require_rate(target_acceptance_rate)
    return adaptive.build_kernel(scheme, _MALA, target_acceptance_rate, step_size_gain)


def as_top_level_api(
    logdensity_fn: Callable,
    scheme: Scheme,
    num_chains: int = 4,
    *,
    target_acceptance_rate: float = 0.574,
    step_size_gain: optax.Schedule = STEP_SIZE_GAIN,
) -> Algorithm[adaptive.AdaptiveState, adaptive.AdaptiveInfo]:
    """Adaptive MALA as a BlackJAX `SamplingAlgorithm`; `step` is jitted.

    Parameters
    ----------
    logdensity_fn
        Position of one chain -> log-density up to a constant.
    scheme
        What is learnt, for example `hm.eigen(rank=3)`. There is a warning if its gains, or `step_size_gain`, do not
        decay like t^-0.5 or faster.
    num_chains
        Number of chains that share what is learnt. More chains learn better: the differences between chains carry the
        variances before any single chain has crossed the target.
    target_acceptance_rate
        Acceptance rate, averaged over the chains, that the step size is adapted to.
    step_size_gain
        Schedule: count -> the gain of log sigma. The count is 0 until the acceptance crosses its target.

    Returns
    -------
    `SamplingAlgorithm`: `init(positions)` -> `AdaptiveState`, leaves of positions (num_chains, ...), and
    `step(rng_key, state)` -> (`AdaptiveState`, `AdaptiveInfo`).

    Raises
    ------
    ValueError
        If the target is not between 0 and 1. At `init`, if `num_chains` is below 1, a leaf lacks the chain axis, a
        start is not finite, or d = 0; and what the scheme refuses.
    TypeError
        At `init`, if a leaf or the log-density is not floating point, all leaves have fewer than 32 bits, `scheme` is
        not a `Scheme`, or `num_chains` no integer.

    Examples
    --------
    .. code-block:: python

        sampler = hm.adaptive_mala(logdensity_fn, hm.eigen(rank=3), num_chains=4)
        state = sampler.init(positions)  # leaves (4, ...)
        state, info = sampler.step(rng_key, state)
    """
    require_rate(target_acceptance_rate)
    _warn_of_lasting_gains(scheme, step_size_gain)

    def init_fn(position, rng_key=None):
        del rng_key
        return init(position, logdensity_fn, scheme, num_chains)

    algorithm: Any = SamplingAlgorithm(init_fn, _step(logdensity_fn, scheme, target_acceptance_rate, step_size_gain))
    return algorithm


@program
def _step(logdensity_fn, scheme, target_acceptance_rate, step_size_gain):
    kernel = build_kernel(scheme, target_acceptance_rate, step_size_gain)
    return lambda rng_key, state: kernel(rng_key, state, logdensity_fn)


def _warn_of_lasting_gains(scheme, step_size_gain):
    gains = getattr(scheme, "gains", None)  # what is no `Scheme` is refused by `init`
    schedules = {"step_size_gain": step_size_gain} | ({} if gains is None else gains.schedules())
    lasting = [name for name, schedule in schedules.items() if not diminishes(schedule)]
    if lasting:
        warnings.warn(
            f"the gains {', '.join(lasting)} do not decay like t^-0.5 or faster: the kernel then follows the chains "
            "for ever, and their draws do not converge to the target. Use gains that decay, or `warmup`.",
            stacklevel=4,
        )
