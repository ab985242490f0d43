"""Many chains of a sampler learn one preconditioner and one step size, at every step.

Source: Hird & Livingstone (2026). The adaptive step is their Algorithm 1; the sampler of theirs is MALA, Algorithm 2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from blackjax.types import Array, ArrayLikeTree, PRNGKey

from householder_mcmc.adaptation.samplers import Sampler
from householder_mcmc.learners.scheme import Scheme
from householder_mcmc.mcmc import mala
from householder_mcmc.mcmc.chains import ravel_chains, step_chains
from householder_mcmc.mcmc.metropolis import is_finite, require_finite
from householder_mcmc.preconditioners.checks import require_integer, require_numbers
from householder_mcmc.sharing import program

__all__ = ["AdaptiveState", "AdaptiveInfo", "init", "build_kernel", "acceptance_error", "good_draws"]

# Steps that the running means of the chains' acceptance rates remember. Rates have a standard deviation of 0.35 or
# less, so such a mean has a standard error of 0.035, five of which fit between the target and the share below.
_ACCEPTANCE_MEMORY = 50

# A chain that accepts less than this share of the target counts as stuck.
_STUCK = 0.7

# What is added to a chain's rate where its weight divides by it. A chain that accepts nothing has the weight
# (0.7 target / 0.01)^2, about 3000 for HMC and 1600 for MALA: as many chains do not outvote it.
_SMALLEST_RATE = 0.01


class AdaptiveState(NamedTuple):
    """State of the chains and of all that is learnt.

    chains: states of the sampler with a leading chain axis.
    scheme: state of the learner.
    log_sigma (): log of the scale of a move in whitened coordinates.
    acceptance_rate (num_chains,): running means.
    first_error_sign (): +1 if the acceptance began above its target, -1 below, 0 if unknown.
    count (): steps since the acceptance was first on the other side of its target.
    """

    chains: Any
    scheme: Any
    log_sigma: Array
    acceptance_rate: Array
    first_error_sign: Array
    count: Array

    @property
    def position(self) -> Any:
        """The chains' positions, with a leading chain axis."""
        return self.chains.position


class AdaptiveInfo(NamedTuple):
    """What happened in a step.

    acceptance_rate, is_accepted, is_nonfinite (num_chains,): as in `MALAInfo`.
    num_gradients (num_chains,): of the log-density.
    step_size (): the one used.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_nonfinite: Array
    num_gradients: Array
    step_size: Array


def init(
    positions: ArrayLikeTree, logdensity_fn: Callable, scheme: Scheme, sampler: Sampler, num_chains: int
) -> AdaptiveState:
    """The state at positions whose leaves have a leading axis of length num_chains. sigma starts at d^(-1/4) / 2.

    Raises
    ------
    ValueError
        If a leaf lacks the chain axis, a start is not finite, or d = 0.
    TypeError
        If a leaf is not floating point, all have fewer than 32 bits, `scheme` is not a `Scheme`, or `num_chains` no
        integer.
    """
    num_chains = require_integer("num_chains", num_chains)
    if not isinstance(scheme, Scheme):
        raise TypeError(f"scheme must be a Scheme, such as hm.eigen(rank=3), got {scheme!r}.")
    positions = jax.tree.map(jnp.asarray, positions)
    require_numbers(positions)
    for path, leaf in jax.tree_util.tree_leaves_with_path(positions):
        if jnp.shape(leaf)[:1] != (num_chains,):
            raise ValueError(
                f"positions{jax.tree_util.keystr(path)} must have a leading axis of num_chains = {num_chains}, "
                f"got shape {jnp.shape(leaf)}."
            )
    state = _start(logdensity_fn, scheme, sampler)(positions)
    require_finite(state.chains)
    return state


@program
def _start(logdensity_fn, scheme, sampler):
    def start(positions):
        chains = jax.vmap(lambda position: mala.init(position, logdensity_fn))(positions)
        x, _ = good_draws(chains)
        if jnp.finfo(x.dtype).bits < 32:
            raise TypeError(f"positions must be of at least 32 bits where they are learnt from, got {x.dtype}.")
        return AdaptiveState(
            chains=sampler.state(*chains),
            scheme=scheme.init(x),
            log_sigma=jnp.asarray(jnp.log(0.5) - jnp.log(x.shape[1]) / 4, x.dtype),
            acceptance_rate=jnp.full(len(x), 0.5, x.dtype),
            first_error_sign=jnp.zeros((), x.dtype),
            count=jnp.zeros((), jnp.int32),
        )

    return start


def build_kernel(
    scheme: Scheme,
    sampler: Sampler,
    target_acceptance_rate: float | Array,
    step_size_gain: optax.Schedule,
) -> Callable:
    """Return kernel(rng_key, state, logdensity_fn) -> (state, info): a step of all chains, then one of learning."""

    def kernel(rng_key: PRNGKey, state: AdaptiveState, logdensity_fn: Callable) -> tuple[AdaptiveState, AdaptiveInfo]:
        preconditioner, step_size = scheme.preconditioner(state.scheme), sampler.step_size(jnp.exp(state.log_sigma))
        chains, info = step_chains(sampler.kernel, rng_key, state.chains, logdensity_fn, step_size, preconditioner)
        error, acceptance_rate = acceptance_error(chains, info, state.acceptance_rate, target_acceptance_rate)
        first_error_sign = jnp.where(state.first_error_sign == 0, jnp.sign(error), state.first_error_sign)
        has_crossed = (state.count > 0) | (first_error_sign * error < 0)
        gain = jnp.asarray(step_size_gain(state.count), state.log_sigma.dtype)
        new_state = AdaptiveState(
            chains=chains,
            scheme=scheme.update(state.scheme, *good_draws(chains)),
            log_sigma=state.log_sigma + gain * error,
            acceptance_rate=acceptance_rate,
            first_error_sign=first_error_sign,
            count=jnp.where(has_crossed, optax.safe_increment(state.count), 0),
        )
        num_gradients = sampler.num_gradients(info)
        new_info = AdaptiveInfo(info.acceptance_rate, info.is_accepted, info.is_nonfinite, num_gradients, step_size)
        return new_state, new_info

    return kernel


def acceptance_error(
    chains, info, acceptance_rate: Array, target_acceptance_rate: float | Array
) -> tuple[Array, Array]:
    """How far the chains' acceptance is above its target, and its new running means (num_chains,).

    Chains have weight 1. One that accepts less than 0.7 of the target has weight (0.7 target / rate)^2, so that it is
    not outvoted. One without a finite log-density has weight 0.
    """
    rates = info.acceptance_rate.astype(acceptance_rate.dtype)
    shortfall = _STUCK * target_acceptance_rate / (acceptance_rate + _SMALLEST_RATE)
    weights = jnp.where(jax.vmap(is_finite)(chains), jnp.maximum(1, shortfall) ** 2, 0)
    error = jnp.sum(weights * (rates - target_acceptance_rate)) / jnp.maximum(jnp.sum(weights), 1)
    return error, acceptance_rate + (rates - acceptance_rate) / _ACCEPTANCE_MEMORY


def good_draws(chains) -> tuple[Array, Array]:
    """The chains' positions and scores, both (num_chains, d); the first good chain takes the place of bad ones."""
    x, scores = ravel_chains(chains.position), ravel_chains(chains.logdensity_grad)
    is_good = jax.vmap(is_finite)(chains)
    is_kept = (is_good | ~jnp.any(is_good))[:, None]
    first = jnp.argmax(is_good, keepdims=True)

    def good(rows):
        return jnp.where(is_kept, rows, rows.at[first].get(mode="promise_in_bounds"))  # a slice gathers sharded chains

    return good(x), good(scores).astype(x.dtype)
