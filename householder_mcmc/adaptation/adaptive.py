"""Many chains of a sampler learn one preconditioner and one step size, at every step.

Source: Hird & Livingstone (2026). The adaptive step is their Algorithm 1. They use it with MALA, their Algorithm 2.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from blackjax.types import Array, ArrayLikeTree, PRNGKey
from jax.flatten_util import ravel_pytree

from householder_mcmc.adaptation.climbing import (
    Climb,
    Lag,
    are_negligible,
    find_ahead,
    find_behind,
    follow_levels,
    gaps,
    outweigh,
)
from householder_mcmc.adaptation.samplers import Sampler
from householder_mcmc.adaptation.step_size import StepSize, search_move, start_search, weigh
from householder_mcmc.learners.scheme import Scheme, only_if
from householder_mcmc.mcmc import mala
from householder_mcmc.mcmc.chains import ravel_chains, share_time
from householder_mcmc.mcmc.integrator import is_known
from householder_mcmc.mcmc.metropolis import is_finite, require_finite
from householder_mcmc.preconditioners.checks import require_chains, require_integer
from householder_mcmc.sharing import brief_program

__all__ = [
    "AdaptiveState",
    "AdaptiveInfo",
    "init",
    "build_kernel",
    "parameters",
    "dimension",
    "good_draws",
    "resume",
]

# A chain that is behind searches for a step size of its own. Its log sigma moves by this part of `search_move`, because
# the acceptance rate of one chain varies more than the mean of all.
_ALONE = 0.5

# Its sigma differs from the shared one by no more than this factor, so that on a plateau it neither overflows nor
# underflows.
_MOST_ALONE = 1e10

# No chain is moved before the learner has learnt for this many steps: only then does the map tell how wide a mode is.
# These are four blocks of `two_ended`. Chosen.
_KNOWN = 40

# Steps that the running means of the chains' acceptance rates remember. Rates have a standard deviation of 0.35 or
# less, so such a mean has a standard error of 0.035. Five of these fit between MALA's target and 0.7 of it, below which
# `step_size.weigh` raises the weight of a chain.
_ACCEPTANCE_MEMORY = 50


class AdaptiveState(NamedTuple):
    """State of the chains and of all that is learnt.

    chains: states of the sampler with a leading chain axis.
    scheme: state of the learner.
    step_size: the `StepSize` that the chains share.
    log_factors (num_chains,): what chains that are behind add to log sigma; 0 for the others.
    acceptance_rate (num_chains,): running means of the acceptance rates.
    levels (num_chains,): running means of the log-densities.
    lag: a `Lag`, how long chains have been behind. lead: one of all chains, how long there has been one ahead.
    climb: a `Climb`, whether the other chains are still climbing.
    num_moves (num_chains,): how often a chain took the state of another.
    num_steps (): steps made.
    """

    chains: Any
    scheme: Any
    step_size: StepSize
    log_factors: Array
    acceptance_rate: Array
    levels: Array
    lag: Lag
    lead: Lag
    climb: Climb
    num_moves: Array
    num_steps: Array

    @property
    def position(self) -> Any:
        """The chains' positions, with a leading chain axis."""
        return self.chains.position

    @property
    def are_awaited(self) -> Array:
        """Which chains are behind and may still arrive or be moved, (num_chains,)."""
        return self.lag.are_awaited(self.climb.steps_learnt - _KNOWN)

    @property
    def log_sigma(self) -> Array:
        """log of the scale of a move in whitened coordinates, ()."""
        return self.step_size.log_sigma


class AdaptiveInfo(NamedTuple):
    """What happened in a step.

    acceptance_rate, is_accepted, is_nonfinite (num_chains,): as in `MALAInfo`.
    num_gradients (num_chains,): gradients of the log-density in this step.
    step_size (): the shared step size of this step.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_nonfinite: Array
    num_gradients: Array
    step_size: Array


def init(
    positions: ArrayLikeTree, logdensity_fn: Callable, scheme: Scheme, sampler: Sampler, num_chains: int
) -> AdaptiveState:
    """The state at positions whose leaves have a leading axis of length num_chains.

    sigma, the scale of a move in whitened coordinates, starts at d^(-1/4) / 2.

    Raises
    ------
    ValueError
        If `num_chains` is below 1, a leaf lacks the chain axis, a start is not finite, or d = 0; if the log-density is
        no single number or has no reverse-mode gradient; and what `scheme.init` raises.
    TypeError
        If a leaf or the log-density is not floating point, all leaves have fewer than 32 bits, `scheme` is not a
        `Scheme`, or `num_chains` no integer.
    """
    num_chains = require_integer("num_chains", num_chains)
    if not isinstance(scheme, Scheme):
        raise TypeError(f"scheme must be a Scheme, such as hm.eigen(rank=3), got {scheme!r}.")
    positions = require_chains(positions, "learnt from", num_chains)
    state = _start(logdensity_fn, scheme, sampler)(positions)
    require_finite(state.chains)
    return state


def resume(state: AdaptiveState, scheme: Scheme, sampler: Sampler, num_chains: int) -> AdaptiveState:
    """The state, its chains as states of `sampler`, so that a run can go on from it.

    Raises ValueError if the state is of another scheme, as its shapes show, or has another number of chains.
    """
    x = jax.eval_shape(ravel_chains, state.position)
    expected, found = (jax.tree.map(jnp.shape, tree) for tree in (jax.eval_shape(scheme.init, x), state.scheme))
    if len(state.levels) != num_chains:
        raise ValueError(
            f"the state to go on from must have num_chains = {num_chains} chains, got {len(state.levels)}."
        )
    if expected != found:
        raise ValueError("the state to go on from must be of the same scheme, with equal arguments.")
    return state._replace(chains=sampler.state(*state.chains))


@brief_program
def _start(logdensity_fn, scheme, sampler):
    def start(positions):
        chains = jax.vmap(lambda position: mala.init(position, logdensity_fn))(positions)
        x, _ = good_draws(chains)
        logdensity, zero = jnp.asarray(chains.logdensity, x.dtype), jnp.zeros((), jnp.int32)
        levels = jnp.where(jnp.isfinite(logdensity), logdensity, -jnp.inf)
        return AdaptiveState(
            chains=sampler.state(*chains),
            scheme=scheme.init(good_draws(chains, find_behind(levels, x.shape[1]))[0]),
            step_size=start_search(jnp.asarray(jnp.log(0.5) - jnp.log(x.shape[1]) / 4, x.dtype)),
            log_factors=jnp.zeros(len(x), x.dtype),
            acceptance_rate=jnp.full(len(x), 0.5, x.dtype),
            levels=levels,
            lag=Lag.start(x, levels),
            lead=Lag.start(x, levels),
            climb=Climb(levels, resets_left=zero, steps_learnt=zero),
            num_moves=jnp.zeros(len(x), jnp.int32),
            num_steps=zero,
        )

    return start


def build_kernel(
    scheme: Scheme,
    sampler: Sampler,
    target_acceptance_rate: float | Array,
    step_size_gain: optax.Schedule,
    *,
    is_learning: bool | Array = True,
    is_early: bool | Array = False,
    may_move: bool | Array = False,
) -> Callable:
    """Return kernel(rng_key, state, logdensity_fn) -> (state, info): a step of all chains, then one of learning.

    is_learning: whether the learner learns, and a search for the step size may go on or begin. (Otherwise the step size
    still follows the acceptance.)
    is_early: whether starting the learner anew costs little, so that a smaller rise is a climb, see `Climb.watch`.
    may_move: whether a chain that is behind, in a place of negligible mass, takes the state of another.
    """

    def kernel(rng_key: PRNGKey, state: AdaptiveState, logdensity_fn: Callable) -> tuple[AdaptiveState, AdaptiveInfo]:
        # 1. All chains move. Those that are behind have their own step sizes, and no center.
        learnt = parameters(scheme, sampler, state)
        preconditioner = learnt["inverse_mass_matrix"]
        longest: Any = math.inf
        if "center" in learnt:
            longest = jnp.where(is_known(learnt["center"]), cast(float, sampler.longest_sigma), math.inf)

        shared_kernel, keys = share_time(sampler.kernel, rng_key, len(state.levels))

        def transition(rng_key, chain, log_factor, is_behind):
            step_size = sampler.step_size(jnp.exp(state.log_sigma + log_factor))
            given = _without_center(learnt, is_behind)
            return shared_kernel(rng_key, chain, logdensity_fn, step_size, *given.values())

        chains, info = jax.vmap(transition)(keys, state.chains, state.log_factors, state.lag.num_steps > 0)

        # 2. Which chains are behind, and which take the state of another because theirs has negligible mass: some that
        # are behind, or all but those ahead, because more than half of the chains may have ended in a lower mode.
        x = ravel_chains(chains.position)
        dim = x.shape[1]
        levels = follow_levels(state.levels, chains.logdensity, dim)
        is_behind, is_ahead = find_behind(levels, dim), find_ahead(levels, dim)
        lag, lags = state.lag.follow(x, levels, is_behind)
        lead, leads = state.lead.follow(x, levels, jnp.broadcast_to(jnp.any(is_ahead), is_ahead.shape))
        leads &= is_ahead & find_ahead(state.lead.levels, dim)
        are_due = jnp.stack([lags, leads]) & may_move & (state.climb.steps_learnt >= _KNOWN)

        def judge(are_due):
            gap, (lags, leads) = gaps(levels, dim), are_due
            lags &= are_negligible(gap, x - state.lag.positions, preconditioner)
            risen, moved = levels - state.lead.levels, x - state.lead.positions
            leads &= outweigh(-gap, risen, moved, preconditioner, ~is_ahead & ~is_behind)
            return jnp.stack([lags, leads])

        lags, leads = only_if(jnp.any(are_due), judge, are_due)
        is_moved = lags | jnp.any(leads) & ~is_ahead
        chains, levels = _moved((chains, levels), is_moved, to=jnp.where(jnp.any(leads), leads, ~is_behind))
        were_behind, is_behind = is_behind, is_behind & ~is_moved

        # 3. The shared step size follows the acceptance of the other chains.
        errors = info.acceptance_rate.astype(levels.dtype) - target_acceptance_rate
        weights = weigh(state.acceptance_rate, jax.vmap(is_finite)(chains) & ~is_behind, target_acceptance_rate)
        step_size = state.step_size.follow(
            errors, weights, target_acceptance_rate, step_size_gain, is_learning, longest
        )
        log_factors = state.log_factors + _ALONE * search_move(errors, target_acceptance_rate)
        log_factors = jnp.clip(log_factors, -math.log(_MOST_ALONE), math.log(_MOST_ALONE))

        # 4. The learner learns from the other chains, and starts anew while they climb.
        draws = good_draws(chains, is_behind)
        were_behind |= state.lag.num_steps > 0  # a rise from there to the others is no climb
        climb, has_begun = state.climb.watch(chains.logdensity, were_behind, dim, state.num_steps, is_early)
        climb, has_begun = jax.tree.map(partial(jnp.where, is_learning), (climb, has_begun), (state.climb, False))

        def learn(learner):
            learner = scheme.update(learner, *draws)
            return only_if(climb.resets_left > 0, lambda learner: scheme.start_anew(learner, draws[0]), learner)

        # A learner that always learns needs no loop, so what devices send at every step is in the main program.
        always = is_learning is True
        learner = learn(state.scheme) if always else only_if(jnp.asarray(is_learning), learn, state.scheme)

        rates = errors + target_acceptance_rate
        new_state = AdaptiveState(
            chains=chains,
            scheme=learner,
            step_size=step_size.seek(has_begun),
            log_factors=jnp.where(is_behind, log_factors, 0),
            acceptance_rate=state.acceptance_rate + (rates - state.acceptance_rate) / _ACCEPTANCE_MEMORY,
            levels=levels,
            lag=lag,
            lead=lead,
            climb=climb,
            num_moves=state.num_moves + is_moved.astype(jnp.int32),
            num_steps=jnp.asarray(optax.safe_increment(state.num_steps)),
        )
        used, num_gradients = sampler.step_size(jnp.exp(state.log_sigma)), sampler.num_gradients(info)
        return new_state, AdaptiveInfo(info.acceptance_rate, info.is_accepted, info.is_nonfinite, num_gradients, used)

    return kernel


def _moved(chains, is_moved, to):
    """A tree of chains in which those of `is_moved` have the state of the first one of `to`.

    is_moved, to (num_chains,): masks.
    """
    first = jnp.argmax(to, keepdims=True)

    def move(leaf):
        there = leaf.at[first].get(mode="promise_in_bounds")  # a slice would gather sharded chains
        return jnp.where(is_moved.reshape(-1, *[1] * (leaf.ndim - 1)), there, leaf)

    return jax.tree.map(move, chains)


def parameters(scheme: Scheme, sampler: Sampler, state: AdaptiveState) -> dict[str, Any]:
    """What the sampler is given of what is learnt: a dict of inverse_mass_matrix and, where there is one, center.

    There is a center if the sampler takes one, the scheme learns one, and the map has an inverse. It is NaN while a
    chain has been behind for 50 steps or more, because one Gaussian does not fit all chains then.
    """
    preconditioner = scheme.preconditioner(state.scheme)
    learnt: dict[str, Any] = {"inverse_mass_matrix": preconditioner}
    if sampler.longest_sigma is None or scheme.center is None or not hasattr(preconditioner, "solve"):
        return learnt
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], state.position))
    learnt["center"] = unravel(scheme.center(state.scheme))
    return _without_center(learnt, jnp.any(state.lag.have_stayed))


def _without_center(learnt, is_due):
    """The parameters; where `is_due`, with a center of NaN."""
    if "center" not in learnt:
        return learnt
    return learnt | {"center": jax.tree.map(lambda leaf: jnp.where(is_due, jnp.nan, leaf), learnt["center"])}


def dimension(chains) -> int:
    """d of states with a leading chain axis."""
    return jax.eval_shape(ravel_chains, chains.position).shape[1]


def good_draws(chains, is_behind: bool | Array = False) -> tuple[Array, Array]:
    """The chains' positions and scores (gradients of the log-density), both (num_chains, d).

    Chains that are behind or not finite are replaced by the first one that is neither, if there is one.
    """
    x, scores = ravel_chains(chains.position), ravel_chains(chains.logdensity_grad)
    is_good = jax.vmap(is_finite)(chains) & ~jnp.asarray(is_behind)
    x, scores = _moved((x, scores), ~is_good & jnp.any(is_good), to=is_good)
    return x, scores.astype(x.dtype)
