"""Adaptive MALA: many chains learn one preconditioner and one step size, at every step.

Source: Hird & Livingstone (2026), Algorithms 1 and 2. The chain is not Markov while it adapts: with gains that go to
zero its averages converge, but to sample from a kernel that leaves the target invariant, use `warmup` and freeze.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from blackjax.base import SamplingAlgorithm
from blackjax.types import Array, ArrayLikeTree, ArrayTree, PRNGKey
from jax.flatten_util import ravel_pytree

from householder_mcmc import mala
from householder_mcmc.gains import STEP_SIZE_GAIN, diminishes
from householder_mcmc.schemes import Scheme

__all__ = ["AdaptiveMALAState", "AdaptiveMALAInfo", "init", "build_kernel", "as_top_level_api"]

# Of the running means of the chains' acceptance: their memory in steps, and what a stuck chain is taken to accept.
_ACCEPTANCE_MEMORY = 50
_SMALLEST_RATE = 0.01


class AdaptiveMALAState(NamedTuple):
    """State of the chains and of all that is learnt.

    chains: MALA states with a leading chain axis. scheme: state of the learner. log_sigma (): log of the proposal's
    standard deviation in whitened coordinates. acceptance_rate (num_chains,): running means. side (): +1 or -1, on
    which side of its target the acceptance was at first; 0 before. count (): steps since it has been on both.
    """

    chains: mala.MALAState
    scheme: NamedTuple
    log_sigma: Array
    acceptance_rate: Array
    side: Array
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
    x, _ = good_draws(chains)
    return AdaptiveMALAState(
        chains=chains,
        scheme=scheme.init(x),
        log_sigma=jnp.asarray(jnp.log(0.5) - jnp.log(x.shape[1]) / 4, x.dtype),
        acceptance_rate=jnp.full(num_chains, 0.5, x.dtype),
        side=jnp.zeros((), x.dtype),
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
        chains, info = step_chains(
            mala.build_kernel(), rng_key, state.chains, logdensity_fn, state.step_size, preconditioner
        )
        error, acceptance_rate = acceptance_error(chains, info, state.acceptance_rate, target_acceptance_rate)
        side = jnp.where(state.side == 0, jnp.sign(error), state.side)
        has_crossed = (state.count > 0) | (side * error < 0)
        gain = jnp.asarray(step_size_gain(state.count), state.log_sigma.dtype)
        new_state = AdaptiveMALAState(
            chains=chains,
            scheme=scheme.update(state.scheme, *good_draws(chains)),
            log_sigma=state.log_sigma + gain * error,
            acceptance_rate=acceptance_rate,
            side=side,
            count=jnp.where(has_crossed, optax.safe_increment(state.count), 0),
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
        What is learnt, for example `hm.eigen(rank=3)`. Gains that do not decay fast enough give a warning.
    num_chains
        Number of chains that share what is learnt. More chains learn better: the differences between chains carry the
        variances before any single chain has crossed the target.
    target_acceptance_rate
        What the step size is adapted to, averaged over the chains.
    step_size_gain
        Schedule of the step on log sigma, from the step on at which the acceptance crosses its target.

    Examples
    --------
    .. code::

        sampler = hm.adaptive_mala(logdensity_fn, hm.eigen(rank=3), num_chains=4)
        state = sampler.init(positions)  # leaves (4, ...)
        state, info = sampler.step(rng_key, state)
    """
    kernel = build_kernel(scheme, target_acceptance_rate, step_size_gain)
    _warn_of_lasting_gains(scheme, step_size_gain)

    def init_fn(position, rng_key=None):
        del rng_key
        return init(position, logdensity_fn, scheme, num_chains)

    @jax.jit
    def step_fn(rng_key, state):
        return kernel(rng_key, state, logdensity_fn)

    return SamplingAlgorithm(init_fn, step_fn)


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


def step_chains(kernel: Callable, rng_key, chains, *args) -> tuple[NamedTuple, NamedTuple]:
    """One transition of every chain. args: what the kernel takes after the state, shared."""
    keys = jax.random.split(rng_key, chains.logdensity.shape[0])
    return jax.vmap(lambda key, state: kernel(key, state, *args))(keys, chains)


def acceptance_error(chains, info, acceptance_rate, target_acceptance_rate) -> tuple[Array, Array]:
    """How far the chains' acceptance is above its target, and its new running means (num_chains,).

    All chains count alike, but for one whose running mean is below 0.7 of the target: the less it accepts, the more it
    counts, so that a chain that is stuck outweighs the others. One without a finite log-density counts for nothing.
    """
    rates = info.acceptance_rate.astype(acceptance_rate.dtype)
    shortfall = 0.7 * target_acceptance_rate / (acceptance_rate + _SMALLEST_RATE)
    weights = jnp.where(jax.vmap(mala.is_finite)(chains), jnp.maximum(1, shortfall) ** 2, 0)
    error = jnp.sum(weights * (rates - target_acceptance_rate)) / jnp.maximum(jnp.sum(weights), 1)
    return error, acceptance_rate + (rates - acceptance_rate) / _ACCEPTANCE_MEMORY


def good_draws(chains):
    """The chains' positions and scores, both (num_chains, d); the first good chain takes the place of bad ones."""
    x, scores = ravel_chains(chains.position), ravel_chains(chains.logdensity_grad)
    is_good = jax.vmap(mala.is_finite)(chains) & jnp.all(jnp.isfinite(x), axis=1)
    is_kept = (is_good | ~jnp.any(is_good))[:, None]
    first = jnp.argmax(is_good, keepdims=True)

    def good(rows):
        return jnp.where(is_kept, rows, rows.at[first].get(mode="promise_in_bounds"))  # a slice gathers sharded chains

    return good(x), good(scores).astype(x.dtype)


def ravel_chains(positions: ArrayTree) -> Array:
    """Positions with a leading chain axis as a (num_chains, d) array."""
    return jax.vmap(lambda position: ravel_pytree(position)[0])(positions)
