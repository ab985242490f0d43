"""Adapt, then freeze: a BlackJAX `AdaptationAlgorithm`."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.adaptation.base import AdaptationResults
from blackjax.adaptation.step_size import dual_averaging_adaptation
from blackjax.base import AdaptationAlgorithm
from blackjax.types import Array, ArrayLikeTree, ArrayTree, PRNGKey

from householder_mcmc import adaptive_mala
from householder_mcmc.schemes import Scheme

__all__ = ["WarmupInfo", "warmup"]


class WarmupInfo(NamedTuple):
    """What happened in a warm-up.

    acceptance_rate (num_chains,): mean over the last phase, in which the map was frozen. num_nonfinite (num_chains,):
    non-finite proposals in the whole warm-up. history: what `keep` returned at each learning step, stacked.
    """

    acceptance_rate: Array
    num_nonfinite: Array
    history: ArrayTree


def warmup(
    logdensity_fn: Callable,
    scheme: Scheme,
    num_chains: int = 4,
    *,
    target_acceptance_rate: float = 0.574,
    keep: Callable = lambda state, info: None,
    **adaptive_mala_options,
) -> AdaptationAlgorithm:
    """Learn a preconditioner and a step size with `adaptive_mala`, and return them frozen.

    The last tenth of the steps keeps the map and adapts only the step size, by BlackJAX's dual averaging.

    Parameters
    ----------
    logdensity_fn, scheme, num_chains, target_acceptance_rate
        As for `adaptive_mala`.
    keep
        (AdaptiveMALAState, AdaptiveMALAInfo) -> what to keep of a learning step. Nothing by default: memory does not
        grow with `num_steps`.
    **adaptive_mala_options
        Passed on to `adaptive_mala.build_kernel`.

    Returns
    -------
    AdaptationAlgorithm. `run(rng_key, positions, num_steps=2000)` returns ((state, parameters), info): MALA states with
    a leading chain axis, a dict of step_size and inverse_mass_matrix (a preconditioner) for `mala`, and a `WarmupInfo`.

    Examples
    --------
    .. code::

        (state, parameters), info = hm.warmup(logdensity_fn, hm.eigen(rank=3)).run(rng_key, positions)
        kernel = hm.mala(logdensity_fn, **parameters)
        state, info = jax.vmap(kernel.step)(jax.random.split(rng_key, 4), state)
    """
    kernel = adaptive_mala.build_kernel(scheme, target_acceptance_rate, **adaptive_mala_options)

    def learn(carry, rng_key):
        state, num_nonfinite = carry
        state, info = kernel(rng_key, state, logdensity_fn)
        return (state, num_nonfinite + info.is_nonfinite), keep(state, info)

    @partial(jax.jit, static_argnames="num_steps")
    def adapt(rng_key, state, num_steps):
        num_final = num_steps // 10
        key_learn, key_final = jax.random.split(rng_key)
        num_nonfinite = jnp.zeros(num_chains, jnp.int32)
        keys = jax.random.split(key_learn, num_steps - num_final)
        (state, num_nonfinite), history = jax.lax.scan(learn, (state, num_nonfinite), keys)

        preconditioner = scheme.preconditioner(state.scheme)
        da_init, da_update, da_final = dual_averaging_adaptation(target_acceptance_rate)

        def tune(carry, rng_key):
            chains, averaging, num_nonfinite, acceptance_rate = carry
            step_size = jnp.exp(averaging.log_step_size).astype(state.log_sigma.dtype)
            chains, info = adaptive_mala.step_chains(rng_key, chains, logdensity_fn, step_size, preconditioner)
            averaging = da_update(averaging, jnp.mean(info.acceptance_rate))
            return (chains, averaging, num_nonfinite + info.is_nonfinite, acceptance_rate + info.acceptance_rate), None

        carry = state.chains, da_init(state.step_size), num_nonfinite, jnp.zeros_like(state.chains.logdensity)
        (chains, averaging, num_nonfinite, acceptance_rate), _ = jax.lax.scan(
            tune, carry, jax.random.split(key_final, num_final)
        )
        step_size = da_final(averaging).astype(state.log_sigma.dtype) if num_final else state.step_size
        parameters = {"step_size": step_size, "inverse_mass_matrix": preconditioner}
        info = WarmupInfo(acceptance_rate / max(num_final, 1), num_nonfinite, history)
        return AdaptationResults(chains, parameters), info

    def run(rng_key: PRNGKey, positions: ArrayLikeTree, num_steps: int = 2000):
        if num_steps < 0:
            raise ValueError(f"num_steps must not be negative, got {num_steps}.")
        state = adaptive_mala.init(positions, logdensity_fn, scheme, num_chains)
        return adapt(rng_key, state, num_steps)

    return AdaptationAlgorithm(run)
