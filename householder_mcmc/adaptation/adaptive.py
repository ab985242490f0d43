"""Many chains of a sampler learn one preconditioner and one step size, at every step.

Source: Hird & Livingstone (2026). The adaptive step is their Algorithm 1; the sampler of theirs is MALA, Algorithm 2.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from blackjax.types import Array, ArrayLikeTree, PRNGKey

from householder_mcmc.adaptation.climbing import Climb, find_behind, follow_levels
from householder_mcmc.adaptation.samplers import Sampler
from householder_mcmc.learners.scheme import Scheme, only_if
from householder_mcmc.mcmc import mala
from householder_mcmc.mcmc.chains import ravel_chains
from householder_mcmc.mcmc.metropolis import is_finite, require_finite
from householder_mcmc.preconditioners.checks import require_integer, require_numbers
from householder_mcmc.sharing import program

__all__ = [
    "AdaptiveState",
    "AdaptiveInfo",
    "init",
    "build_kernel",
    "dimension",
    "follow_acceptance",
    "good_draws",
    "weigh",
]

# While the step size is sought it changes by up to this factor in a step, at an acceptance of 0 or of 1.
_SEARCH = 4.0

# The search begins again where the acceptance has been far from its target for a while: by more than this part of what
# it can be, above or below. 32 draws of the acceptance of a Gaussian have a mean within 0.045, in standard deviation,
# of a target of 0.8; where it is 0.95 the step size is half of the right one.
_FAR_ABOVE, _FAR_BELOW = 0.75, 0.6
_FEWEST_RATES = 32

# The share of the search that a chain which is behind makes alone: its own rate varies more than the mean of all.
_ALONE = 0.5

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
    recent_error (): running mean of acceptance minus target since the step size was last sought.
    levels (num_chains,): running means of the log-densities.
    log_factors (num_chains,): of the scales of chains that are behind; 0 of the others.
    climb: whether the chains in front are still climbing.
    num_steps (): made.
    """

    chains: Any
    scheme: Any
    log_sigma: Array
    acceptance_rate: Array
    first_error_sign: Array
    count: Array
    recent_error: Array
    levels: Array
    log_factors: Array
    climb: Climb
    num_steps: Array
    num_moves: Array

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
        logdensity, zero = chains.logdensity.astype(x.dtype), jnp.zeros((), jnp.int32)
        levels = jnp.where(jnp.isfinite(logdensity), logdensity, -jnp.inf)
        return AdaptiveState(
            chains=sampler.state(*chains),
            scheme=scheme.init(x),
            log_sigma=jnp.asarray(jnp.log(0.5) - jnp.log(x.shape[1]) / 4, x.dtype),
            acceptance_rate=jnp.full(len(x), 0.5, x.dtype),
            first_error_sign=jnp.zeros((), x.dtype),
            count=zero,
            recent_error=jnp.zeros((), x.dtype),
            levels=levels,
            log_factors=jnp.zeros(len(x), x.dtype),
            climb=Climb(levels=levels, resets_left=zero, steps_learnt=zero),
            num_steps=zero,
            num_moves=jnp.zeros(len(x), jnp.int32),
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

    is_learning: whether the learner learns and the step size may be sought; the step size follows in any case.
    is_early: whether it costs little to start the learner anew.
    """

    def kernel(rng_key: PRNGKey, state: AdaptiveState, logdensity_fn: Callable) -> tuple[AdaptiveState, AdaptiveInfo]:
        # 1. All chains move.
        preconditioner = scheme.preconditioner(state.scheme)
        sigmas = jnp.exp(state.log_sigma + state.log_factors)
        keys = jax.random.split(rng_key, len(sigmas))
        chains, info = jax.vmap(
            lambda key, chain, sigma: sampler.kernel(
                key, chain, logdensity_fn, sampler.step_size(sigma), preconditioner
            )
        )(keys, state.chains, sigmas)

        # 2. Who is behind, and has a step size of its own.
        dim = dimension(chains)
        levels = follow_levels(state.levels, chains.logdensity, dim)
        is_behind = find_behind(levels, dim)

        is_lost = may_move & is_behind & (state.climb.steps_learnt > 50)
        is_lost &= is_negligible(chains, levels, is_behind, preconditioner)
        chains, levels = move(chains, levels, is_lost, is_behind)
        is_behind &= ~is_lost

        # 3. The step size follows the acceptance of the others.
        errors = info.acceptance_rate.astype(levels.dtype) - target_acceptance_rate
        acceptance_rate = (
            state.acceptance_rate + (errors + target_acceptance_rate - state.acceptance_rate) / _ACCEPTANCE_MEMORY
        )
        is_counted = jax.vmap(is_finite)(chains) & ~is_behind
        weights = weigh(state.acceptance_rate, is_counted, target_acceptance_rate)
        state = follow_acceptance(
            state,
            _mean(errors, weights),
            _mean(errors, is_counted),
            target_acceptance_rate,
            step_size_gain,
            is_learning,
        )
        alone = _search_step(errors, target_acceptance_rate)
        log_factors = jnp.where(is_behind, state.log_factors + _ALONE * alone, 0)

        # 4. The learner learns from them, and starts anew while they climb.
        draws = good_draws(chains, is_behind)
        climb, has_begun = state.climb.watch(chains.logdensity, is_behind, dim, state.num_steps, is_early)
        climb, has_begun = jax.tree.map(partial(jnp.where, is_learning), (climb, has_begun), (state.climb, False))

        def learn(learner):
            learner = scheme.update(learner, *draws)
            return only_if(climb.resets_left > 0, lambda learner: scheme.start_anew(learner, draws[0]), learner)

        new_state = state._replace(
            chains=chains,
            scheme=only_if(is_learning, learn, state.scheme),
            acceptance_rate=acceptance_rate,
            first_error_sign=jnp.where(has_begun, 0, state.first_error_sign),
            count=jnp.where(has_begun, 0, state.count),
            levels=levels,
            log_factors=log_factors,
            climb=climb,
            num_moves=state.num_moves + is_lost,
            num_steps=optax.safe_increment(state.num_steps),
        )
        num_gradients, step_size = sampler.num_gradients(info), sampler.step_size(jnp.exp(state.log_sigma))
        new_info = AdaptiveInfo(info.acceptance_rate, info.is_accepted, info.is_nonfinite, num_gradients, step_size)
        return new_state, new_info

    return kernel


def weigh(acceptance_rate: Array, is_counted: Array, target_acceptance_rate: float | Array) -> Array:
    """The weights of the chains, (num_chains,), where the step size follows their acceptance.

    Chains have weight 1. One that accepts less than 0.7 of the target has weight (0.7 target / rate)^2, so that it is
    not outvoted. One that is not counted has weight 0.
    """
    shortfall = _STUCK * target_acceptance_rate / (acceptance_rate + _SMALLEST_RATE)
    return jnp.where(is_counted, jnp.maximum(1, shortfall) ** 2, 0)


def _mean(values, weights):
    return jnp.sum(weights * values) / jnp.maximum(jnp.sum(weights), 1)


def _search_step(error, target):
    """Of log sigma, log 4 or less, where the acceptance is off by an error."""
    return math.log(_SEARCH) * error / jnp.where(error > 0, 1 - target, target)


def follow_acceptance(
    state: AdaptiveState,
    weighted_error: Array,
    error: Array,
    target_acceptance_rate: float | Array,
    step_size_gain: optax.Schedule,
    may_search: bool | Array,
) -> AdaptiveState:
    """The step size after a step whose acceptance was above its target by an error, weighted or not.

    It is sought by factors of up to 4 until the acceptance has crossed its target. Then log sigma moves by the gain
    times the weighted error. If the acceptance has been far from its target for a while, it is sought again.
    """
    target, dtype = target_acceptance_rate, state.log_sigma.dtype
    first_error_sign = jnp.where(state.first_error_sign == 0, jnp.sign(error), state.first_error_sign)
    has_crossed = (state.count > 0) | (first_error_sign * error < 0) | ~jnp.asarray(may_search)
    gain = jnp.asarray(step_size_gain(state.count), dtype)
    move = jnp.where(has_crossed, gain * weighted_error, _search_step(error, target))
    lowest = 2 * math.log(jnp.finfo(dtype).eps)  # shorter steps do not move what is of size eps or more

    memory = jnp.maximum(_FEWEST_RATES / len(state.acceptance_rate), 1 / gain)
    recent_error = state.recent_error + (error - state.recent_error) / memory
    is_far = may_search & ((recent_error > _FAR_ABOVE * (1 - target)) | (recent_error < -_FAR_BELOW * target))
    return state._replace(
        log_sigma=jnp.maximum(state.log_sigma + move.astype(dtype), lowest),
        first_error_sign=jnp.where(is_far, 0, first_error_sign),
        count=jnp.where(has_crossed & ~is_far, optax.safe_increment(state.count), 0),
        recent_error=jnp.where(is_far, 0, recent_error).astype(dtype),
    )


def is_negligible(chains, levels, is_behind, preconditioner):
    x = ravel_chains(chains.position)
    dim = x.shape[1]
    front = ~is_behind
    center = jnp.sum(jnp.where(front[:, None], x, 0), axis=0) / jnp.maximum(jnp.sum(front), 1)
    z = jax.vmap(preconditioner.solve)(x - center)
    log_width = (dim + 1) / 2 * jnp.log((1 + jnp.sum(z**2, axis=1)) / (1 + dim))
    return jnp.max(levels) - levels > log_width


def move(chains, levels, is_lost, is_behind):
    first = jnp.argmax(~is_behind, keepdims=True)

    def moved(leaf):
        is_it = is_lost.reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.where(is_it, leaf.at[first].get(mode="promise_in_bounds"), leaf)

    return jax.tree.map(moved, (chains, levels))


def dimension(chains) -> int:
    """d, of chains with a leading axis."""
    return jax.eval_shape(ravel_chains, chains.position).shape[1]


def good_draws(chains, is_behind: bool | Array = False) -> tuple[Array, Array]:
    """The chains' positions and scores, both (num_chains, d).

    The first good chain takes the place of those that are behind or not finite.
    """
    x, scores = ravel_chains(chains.position), ravel_chains(chains.logdensity_grad)
    is_good = jax.vmap(is_finite)(chains) & ~jnp.asarray(is_behind)
    is_kept = (is_good | ~jnp.any(is_good))[:, None]
    first = jnp.argmax(is_good, keepdims=True)

    def good(rows):
        return jnp.where(is_kept, rows, rows.at[first].get(mode="promise_in_bounds"))  # a slice gathers sharded chains

    return good(x), good(scores).astype(x.dtype)
