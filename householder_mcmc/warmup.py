"""Adapt, then freeze: a BlackJAX `AdaptationAlgorithm`."""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.adaptation.base import AdaptationResults
from blackjax.base import AdaptationAlgorithm
from blackjax.types import Array, ArrayLikeTree, ArrayTree, PRNGKey

from householder_mcmc import adaptive
from householder_mcmc.gains import STEP_SIZE_GAIN, growing_memory, power_decay
from householder_mcmc.linalg import only_if
from householder_mcmc.metropolis import require_rate
from householder_mcmc.samplers import SAMPLERS
from householder_mcmc.schemes import Scheme

__all__ = ["WarmupInfo", "warmup"]

# Steps after a climb that end before the learner starts anew: by then the step size fits the map that it starts from.
_PAUSE = 10

# After so many steps a climb is slow, and the learner learns for so many after each pause, whether it goes on or not.
_SLOW = 100
_SPELL = 20

# Of the last phase: steps on log sigma, and their average.
_TUNE_GAIN = power_decay(0.6, offset=9.0)
_AVERAGE_GAIN = growing_memory(3.0)

# How far sigma may fall in it: on smooth targets it ends near where it began, and at a wall shorter steps do not help.
_LARGEST_FALL = math.log(4)


# What the map is learnt by: long trajectories cross in one transition the wide directions along which MALA walks at
# random.
_LEARNER = SAMPLERS["hmc"]

# Transitions after which trajectories are a step longer, and how many of them one that ends outside the support of the
# target takes back: at the wall of a support no step is short enough for a trajectory that is too long.
_GROWTH = 8


def _learner(growth):
    return _LEARNER._replace(kernel=partial(_LEARNER.kernel, max_integration_steps=1 + growth // _GROWTH))


def _learning_gain(count):
    """Of the step on log sigma. A step size that lags behind the map costs as many gradients as it is too small."""
    return jnp.maximum(STEP_SIZE_GAIN(count), 0.1)


class WarmupInfo(NamedTuple):
    """What happened in a warm-up.

    acceptance_rate (num_chains,): mean over the last phase, in which the map was frozen; NaN if that has no step.
    num_nonfinite (num_chains,): non-finite proposals in the whole warm-up. num_gradients (num_chains,): of the
    log-density, beyond that of the start. num_learnt (): learning steps since the learner last started anew, of nine
    tenths of the warm-up: if few, chains were on their way from a far start until shortly before its end, and it should
    be longer. history: what `keep` returned at each learning step, stacked.
    """

    acceptance_rate: Array
    num_nonfinite: Array
    num_gradients: Array
    num_learnt: Array
    history: ArrayTree


def warmup(
    logdensity_fn: Callable,
    scheme: Scheme,
    num_chains: int = 4,
    *,
    sampler: str = "hmc",
    target_acceptance_rate: float | None = None,
    keep: Callable = lambda state, info: None,
) -> AdaptationAlgorithm:
    """Learn a preconditioner and a step size from running chains, and return both frozen.

    The chains run HMC: MALA at first, in other words trajectories of one leapfrog step, which grow by a step at every
    8th transition after the acceptance has crossed its target, up to a quarter period, as long as fewer than one in
    eight ends outside the support of the target. Long ones show the learner the wide directions, and are worth their
    gradients once the map is known in part.

    The last tenth of the steps runs the sampler that is asked for, keeps the map, and adapts and averages only the step
    size. Before that the learner starts anew whenever the log-density of a chain has risen as it does on the way from a
    far start, and hardly from one draw to another: by more than d + 10, or, in the first half, where starting anew
    costs little, min(d, 6 d^(1/2)) + 10. (Of two draws of a Gaussian the log-densities differ by d^(1/2), in standard
    deviation.) After 100 steps it does so at every 30th at most, and learns in between: a map of a long way up makes it
    short.

    Parameters
    ----------
    logdensity_fn, scheme, num_chains
        As for `adaptive_mala`.
    sampler
        "hmc" or "mala": which of them is to sample with the map, and has its step size tuned.
    target_acceptance_rate
        What its step size is tuned to; by default 0.8 for HMC and 0.574 for MALA. While the map is learnt 0.8, or this
        if it is higher.
    keep
        (AdaptiveState, AdaptiveInfo) -> what to keep of a learning step. Nothing by default: memory does not
        grow with `num_steps`.

    Returns
    -------
    AdaptationAlgorithm. `run(rng_key, positions, num_steps=2000)` returns ((state, parameters), info): states of the
    sampler with a leading chain axis, its parameters step_size and inverse_mass_matrix (a preconditioner) in a dict,
    and a `WarmupInfo`.

    Raises
    ------
    TypeError
        At `run`, if `num_steps` is no integer.
    ValueError
        On an unknown sampler or a target outside (0, 1); at `run`, on a negative `num_steps` and what `adaptive_mala`
        refuses.

    Examples
    --------
    .. code::

        (state, parameters), info = hm.warmup(logdensity_fn, hm.two_ended()).run(rng_key, positions)
        kernel = hm.hmc(logdensity_fn, **parameters)
        state, info = jax.vmap(kernel.step)(jax.random.split(rng_key, 4), state)
    """
    if not isinstance(sampler, str) or sampler not in SAMPLERS:
        raise ValueError(f"sampler must be one of {sorted(SAMPLERS)}, got {sampler!r}.")
    sampler = SAMPLERS[sampler]
    target = sampler.target_acceptance_rate if target_acceptance_rate is None else target_acceptance_rate
    require_rate(target)
    learning_target = max(target, _LEARNER.target_acceptance_rate)

    def learn(carry, key, num_steps):
        state, growth, level, pause, num_nonfinite, num_gradients, count = carry
        kernel = adaptive.build_kernel(scheme, _learner(growth), learning_target, _learning_gain)
        state, info = kernel(jax.random.fold_in(key, count), state, logdensity_fn)
        state, level, pause = start_anew_after_a_climb(state, level, pause, count, num_steps)
        growth = jnp.maximum(growth + 1 - _GROWTH * jnp.mean(info.is_nonfinite, dtype=growth.dtype), 0)
        growth = jnp.where(state.count == 0, 0, growth)
        num_nonfinite = num_nonfinite + info.is_nonfinite.astype(jnp.int32)
        num_gradients = num_gradients + info.num_gradients
        return (state, growth, level, pause, num_nonfinite, num_gradients, count + 1), keep(state, info)

    def start_anew_after_a_climb(state, level, pause, count, num_steps):
        """level (num_chains,): log-densities where the learner last started. pause (): steps until it may learn, or,
        negative, since it may."""
        x, _ = adaptive.good_draws(state.chains)
        logdensity = state.chains.logdensity
        rise, dim = logdensity - level, x.shape[1]
        climb = 10 + jnp.where(2 * count < num_steps, min(dim, 6 * math.sqrt(dim)), dim).astype(rise.dtype)
        has_climbed = jnp.any(jnp.isfinite(rise) & (rise > climb)) & ((count < _SLOW) | (pause <= -_SPELL))
        pause = jnp.where(has_climbed, _PAUSE, pause - 1)
        is_start = pause > 0
        state = state._replace(
            scheme=only_if(is_start, lambda learnt: scheme.start_anew(learnt, x), state.scheme),
            side=jnp.where(has_climbed, 0, state.side),
            count=jnp.where(has_climbed, 0, state.count),
        )
        return state, jnp.where(is_start | ~jnp.isfinite(level), logdensity, level), pause

    def tune(carry, key, preconditioner, lowest):
        """A step of the last phase: log sigma moves with gains that start anew, and its average forgets the start."""
        chains, log_sigma, average, running_rate, total_rate, num_nonfinite, num_gradients, count = carry
        step_size, key = sampler.step_size(jnp.exp(log_sigma)), jax.random.fold_in(key, count)
        chains, info = adaptive.step_chains(sampler.kernel, key, chains, logdensity_fn, step_size, preconditioner)
        error, running_rate = adaptive.acceptance_error(chains, info, running_rate, target)
        log_sigma = jnp.maximum(log_sigma + jnp.asarray(_TUNE_GAIN(count), log_sigma.dtype) * error, lowest)
        average = average + jnp.asarray(_AVERAGE_GAIN(count), log_sigma.dtype) * (log_sigma - average)
        total_rate = total_rate + info.acceptance_rate.astype(total_rate.dtype)
        num_nonfinite = num_nonfinite + info.is_nonfinite.astype(jnp.int32)
        num_gradients = num_gradients + sampler.num_gradients(info)
        return (chains, log_sigma, average, running_rate, total_rate, num_nonfinite, num_gradients, count + 1), None

    @partial(jax.jit, static_argnames="num_steps")
    def adapt(rng_key, state, num_steps):
        num_final = num_steps // 10
        key_learn, key_final = jax.random.split(rng_key)
        zero, none = jnp.zeros((), jnp.int32), jnp.zeros(num_chains, jnp.int32)
        carry = state, jnp.zeros_like(state.log_sigma), state.chains.logdensity, zero, none, none, zero
        num_learning = num_steps - num_final
        carry, history = jax.lax.scan(
            lambda carry, _: learn(carry, key_learn, num_learning), carry, length=num_learning
        )
        state, _, _, pause, num_nonfinite, num_gradients, _ = carry

        preconditioner = scheme.preconditioner(state.scheme)
        zeros = jnp.zeros_like(state.acceptance_rate)
        chains, log_sigma, running_rate = sampler.state(*state.chains), state.log_sigma, state.acceptance_rate
        carry = chains, log_sigma, log_sigma, running_rate, zeros, num_nonfinite, num_gradients, zero
        carry, _ = jax.lax.scan(
            lambda carry, _: tune(carry, key_final, preconditioner, state.log_sigma - _LARGEST_FALL),
            carry,
            length=num_final,
        )
        chains, _, log_sigma, _, total_rate, num_nonfinite, num_gradients, _ = carry

        parameters = {"step_size": sampler.step_size(jnp.exp(log_sigma)), "inverse_mass_matrix": preconditioner}
        acceptance_rate = total_rate / num_final if num_final else jnp.full_like(zeros, jnp.nan)
        num_learnt = jnp.maximum(-pause, 0)
        info = WarmupInfo(acceptance_rate, num_nonfinite, num_gradients, num_learnt, history)
        return AdaptationResults(chains, parameters), info

    def run(rng_key: PRNGKey, positions: ArrayLikeTree, num_steps: int = 2000):
        num_steps = operator.index(num_steps)
        if num_steps < 0:
            raise ValueError(f"num_steps must not be negative, got {num_steps}.")
        state = adaptive.init(positions, logdensity_fn, scheme, _LEARNER, num_chains)
        return adapt(rng_key, state, num_steps)

    return AdaptationAlgorithm(run)
