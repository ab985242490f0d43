"""Adaptive MALA: many chains learn one preconditioner and one step size, at every step.

Source: Hird & Livingstone (2026), Algorithms 1 and 2. The chain is not Markov while it adapts: with gains that go to
zero its averages converge, but to sample from a kernel that leaves the target invariant, use `warmup` and freeze.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from blackjax.base import SamplingAlgorithm
from blackjax.types import Array, ArrayLikeTree, ArrayTree, PRNGKey
from jax.flatten_util import ravel_pytree

from householder_mcmc import mala
from householder_mcmc.gains import STEP_SIZE_GAIN
from householder_mcmc.schemes import Scheme

__all__ = ["AdaptiveMALAState", "AdaptiveMALAInfo", "init", "build_kernel", "as_top_level_api"]


class AdaptiveMALAState(NamedTuple):
    """chains: MALA states with a leading chain axis. scheme: state of the learner. log_sigma (): log of the proposal's
    standard deviation in whitened coordinates. count (): steps made."""

    chains: mala.MALAState
    scheme: NamedTuple
    log_sigma: Array
    count: Array

    @property
    def position(self) -> ArrayTree:
        """The chains' positions, with a leading chain axis."""
        return self.chains.position

    @property
    def step_size(self) -> Array:
        """sigma^2 / 2, what `mala` calls the step size."""
        return jnp.exp(2 * self.log_sigma) / 2


class AdaptiveMALAInfo(NamedTuple):
    """acceptance_rate, is_accepted, is_nonfinite (num_chains,): as in `MALAInfo`. step_size (): the one used."""

    acceptance_rate: Array
    is_accepted: Array
    is_nonfinite: Array
    step_size: Array


def init(positions: ArrayLikeTree, logdensity_fn: Callable, scheme: Scheme, num_chains: int) -> AdaptiveMALAState:
    """The state at positions whose leaves have a leading axis of length num_chains. sigma starts at d^(-1/4) / 2.

    Raises
    ------
    ValueError
        If a leaf lacks the chain axis, or a start is not finite.
    TypeError
        If a leaf is not floating point, or `scheme` is not a `Scheme`.
    """
    if num_chains < 1:
        raise ValueError(f"num_chains must be at least 1, got {num_chains}.")
    if not isinstance(scheme, Scheme):
        raise TypeError(f"scheme must be a Scheme, such as hm.eigen(rank=3), got {scheme!r}.")
    if not jax.tree.leaves(positions):
        raise ValueError("positions has no arrays.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(positions):
        if jnp.shape(leaf)[:1] != (num_chains,):
            raise ValueError(
                f"positions{jax.tree_util.keystr(path)} must have a leading axis of num_chains = {num_chains}, "
                f"got shape {jnp.shape(leaf)}."
            )
    chains = jax.vmap(lambda position: mala.init(position, logdensity_fn))(positions)
    mala.require_finite(chains)
    x = ravel_chains(chains.position)
    return AdaptiveMALAState(
        chains=chains,
        scheme=scheme.init(x),
        log_sigma=jnp.asarray(jnp.log(0.5) - jnp.log(x.shape[1]) / 4, x.dtype),
        count=jnp.zeros((), jnp.int32),
    )


def build_kernel(
    scheme: Scheme,
    target_acceptance_rate: float = 0.574,
    step_size_gain: optax.Schedule = STEP_SIZE_GAIN,
) -> Callable:
    """Return kernel(rng_key, state, logdensity_fn) -> (state, info): MALA steps of all chains, then one of learning."""

    def kernel(rng_key: PRNGKey, state: AdaptiveMALAState, logdensity_fn: Callable):
        preconditioner = scheme.preconditioner(state.scheme)
        chains, info = step_chains(rng_key, state.chains, logdensity_fn, state.step_size, preconditioner)
        gain = jnp.asarray(step_size_gain(state.count), state.log_sigma.dtype)
        acceptance_rate = jnp.mean(info.acceptance_rate).astype(gain.dtype)
        new_state = AdaptiveMALAState(
            chains=chains,
            scheme=scheme.update(state.scheme, ravel_chains(chains.position)),
            log_sigma=state.log_sigma + gain * (acceptance_rate - target_acceptance_rate),
            count=optax.safe_increment(state.count),
        )
        return new_state, AdaptiveMALAInfo(*info, state.step_size)

    return kernel


def as_top_level_api(
    logdensity_fn: Callable,
    scheme: Scheme,
    num_chains: int = 4,
    *,
    target_acceptance_rate: float = 0.574,
    step_size_gain: optax.Schedule = STEP_SIZE_GAIN,
) -> SamplingAlgorithm:
    """Adaptive MALA as a BlackJAX `SamplingAlgorithm`; `step` is compiled once.

    Parameters
    ----------
    logdensity_fn
        Position of one chain -> log-density up to a constant.
    scheme
        What is learnt, for example `hm.eigen(rank=3)`.
    num_chains
        Number of chains that share what is learnt. More chains learn better: the differences between chains carry the
        variances before any single chain has crossed the target.
    target_acceptance_rate
        What the step size is adapted to, averaged over the chains.
    step_size_gain
        Schedule of the step on log sigma.

    Examples
    --------
    .. code::

        sampler = hm.adaptive_mala(logdensity_fn, hm.eigen(rank=3), num_chains=4)
        state = sampler.init(positions)  # leaves (4, ...)
        state, info = sampler.step(rng_key, state)
    """
    kernel = build_kernel(scheme, target_acceptance_rate, step_size_gain)

    def init_fn(position, rng_key=None):
        del rng_key
        return init(position, logdensity_fn, scheme, num_chains)

    @jax.jit
    def step_fn(rng_key, state):
        return kernel(rng_key, state, logdensity_fn)

    return SamplingAlgorithm(init_fn, step_fn)


def step_chains(rng_key, chains, logdensity_fn, step_size, preconditioner) -> tuple[mala.MALAState, mala.MALAInfo]:
    """One MALA step of every chain with shared parameters."""
    kernel = mala.build_kernel()
    keys = jax.random.split(rng_key, chains.logdensity.shape[0])
    return jax.vmap(lambda key, state: kernel(key, state, logdensity_fn, step_size, preconditioner))(keys, chains)


def ravel_chains(positions: ArrayTree) -> Array:
    """Positions with a leading chain axis as a (num_chains, d) array."""
    return jax.vmap(lambda position: ravel_pytree(position)[0])(positions)
