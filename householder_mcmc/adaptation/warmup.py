"""Adapt, then freeze: a BlackJAX `AdaptationAlgorithm`.

There are two phases. In the first the map and the step size are learnt. In the last tenth of the steps the map is
frozen, and the step size is tuned for the sampler that will use it.

Far starts climb first, each alone (`arrival`). Then all chains learn together (`adaptive`), except those that are
behind (`climbing`), until map and step size have settled (`settling`). Both phases make their steps by `_one_step`. So
where the sampler is the learner's own, one loop makes both phases, and its program has one copy of the kernel and of
the log-density.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from blackjax.types import Array, ArrayLikeTree, PRNGKey

from householder_mcmc.adaptation import adaptive
from householder_mcmc.adaptation.arrival import are_far, arrive
from householder_mcmc.adaptation.climbing import find_behind
from householder_mcmc.adaptation.samplers import SAMPLERS, Sampler, find_sampler
from householder_mcmc.adaptation.settling import MOST_STEPS, Settling
from householder_mcmc.adaptation.warmup_types import Warmup, WarmupInfo, WarmupResults
from householder_mcmc.learners.gains import STEP_SIZE_GAIN, growing_memory, power_decay
from householder_mcmc.learners.scheme import Scheme, only_if
from householder_mcmc.mcmc.chains import ravel_chains
from householder_mcmc.mcmc.hmc import MOST_INTEGRATION_STEPS
from householder_mcmc.mcmc.integrator import is_known
from householder_mcmc.mcmc.metropolis import require_rate
from householder_mcmc.preconditioners.checks import is_concrete, require_integer
from householder_mcmc.sharing import brief_program

__all__ = ["Warmup", "WarmupInfo", "WarmupResults", "warmup"]

# The last phase has one in this many steps.
_TUNING_PART = 10

# The smallest gain of log sigma while the map is learnt. A change of the map by a factor of 2 is then followed within
# about 30 steps, because at a target of 0.8 the acceptance is above it by at most 0.2.
_SMALLEST_LEARNING_GAIN = 0.1

# The last phase: gains of log sigma, and of its average. The exponent 0.6 is between 1/2 and 1, for which the average
# converges at the best rate (Polyak & Juditsky 1992). With the offset 9 log sigma moves by 0.25 of the error at first.
# With a forgetting of 3 the average is over about the last third of the phase.
_TUNING_GAIN = power_decay(0.6, offset=9.0)
_AVERAGE_GAIN = growing_memory(3.0)

# How far log sigma may fall in the last phase. On eight smooth targets sigma ended at 0.85-1.4 of where it began. At a
# wall shorter steps do not help, and sigma would fall without end.
_LARGEST_FALL = math.log(4)

# On a whitened Gaussian leapfrog steps of this times d^(-1/4) have an acceptance of about 0.8, both at d = 10 and 1000.
_LEAPFROG = 1.5

# The sampler by which the map is learnt. In one transition its long trajectories cross the wide directions, along which
# MALA would walk at random.
_LEARNER = SAMPLERS["hmc"]

# Trajectories grow by one leapfrog step in this many transitions. A transition whose proposals all end outside the
# support takes as many back, and one with some of them outside takes that part, because at a wall no step size is short
# enough for a trajectory that is too long. (2 is too soon: `diamonds` and the Cox process lose up to nine tenths of
# their ESS. 32 does about as well as 8.)
_GROWTH = 8


class _Totals(NamedTuple):
    """Sums over the whole warm-up, each (num_chains,): non-finite proposals and gradients."""

    num_nonfinite: Array
    num_gradients: Array

    def add(self, is_nonfinite, num_gradients):
        return _Totals(self.num_nonfinite + is_nonfinite.astype(jnp.int32), self.num_gradients + num_gradients)


class _Tuning(NamedTuple):
    """What the last phase finds. Before it begins both log sigmas are the present one, and the sum is 0.

    first_log_sigma (): log sigma where the phase begins. average_log_sigma (): average of log sigma in the phase.
    total_rate (num_chains,): sum of the acceptance rates in the phase.
    """

    first_log_sigma: Array
    average_log_sigma: Array
    total_rate: Array

    def follow(self, log_sigma, rates, count, is_tuning):
        """After step `count` of the phase if `is_tuning`, else after a step before it.

        log_sigma (). rates (num_chains,): acceptance rates.
        """
        average, dtype = self.average_log_sigma, self.average_log_sigma.dtype
        average = average + jnp.asarray(_AVERAGE_GAIN(count), dtype) * (log_sigma - average)
        return _Tuning(
            first_log_sigma=jnp.where(is_tuning, self.first_log_sigma, log_sigma),
            average_log_sigma=jnp.where(is_tuning, average, log_sigma),
            total_rate=jnp.where(is_tuning, self.total_rate + rates.astype(dtype), 0),
        )


class _State(NamedTuple):
    """State of a warm-up.

    growth (): transitions by which trajectories have grown, less those taken back, see `_GROWTH`.
    count (): steps made.
    num_learning (): steps of the first phase; while its end is not known, the most there may be.
    """

    adaptive: adaptive.AdaptiveState
    settling: Settling
    tuning: _Tuning
    growth: Array
    totals: _Totals
    count: Array
    num_learning: Array


def warmup(
    logdensity_fn: Callable,
    scheme: Scheme,
    num_chains: int = 4,
    *,
    sampler: str | Sampler = "hmc",
    target_acceptance_rate: float | None = None,
    initial: Any = None,
    keep: Callable | None = None,
) -> Warmup:
    """Learn a preconditioner and a step size from running chains, and return both frozen.

    Starts whose log-densities differ by more than 1000 (or 2 d, if that is more), and the start of a single chain,
    climb first, each alone, by `arrive`.

    The chains run HMC. Trajectories have one leapfrog step at first, as those of MALA. Once the acceptance has crossed
    its target they grow by a step at every 8th transition, up to a quarter period, as long as fewer than one in eight
    ends outside the support of the target. Long trajectories show the learner the wide directions. They are worth their
    gradients once the map is known in part.

    A chain is climbing if its log-density rose by more than d + 10 since the learner last started. In the first half of
    the learning steps (of the most there may be, if their number is not given) starting anew costs little, and a rise
    by more than min(d, 6 d^(1/2)) + 10 is enough. (The log-densities of two draws of a Gaussian differ by d^(1/2), in
    standard deviation.) The learner then forgets its draws. From step 100 on half of the chains must climb for that,
    and there is at most one restart in 30 steps, so that a map learnt on the way can shorten the climb.

    A chain whose log-density is more than d + 10 below that of the others is behind. It has a step size of its own and
    teaches nothing. After 50 steps behind it is judged: if its place holds a negligible part of the mass, by its height
    and by the volume it has moved in, it takes the state of another chain. `info.num_moves` counts that. A lower mode
    that is wide enough to hold mass keeps its chains. So is a chain judged that is ahead, one in four at most: if its
    place leaves the others a negligible part of the mass, they take its state. A log-density so large in size that
    floating point rounds it to more than d + 10 counts as behind.

    In the last tenth of the steps the chains run the sampler that is asked for, the map is frozen, and only the step
    size is adapted and averaged.

    Parameters
    ----------
    logdensity_fn, scheme, num_chains
        As for `adaptive_mala`.
    sampler
        "hmc", "mala" or a `Sampler`: what is to sample with the map. The last phase tunes its step size.
    target_acceptance_rate
        Acceptance rate that its step size is tuned to; by default 0.8 for HMC and 0.574 for MALA. While the map is
        learnt the target is 0.8, or this if it is higher.
    initial
        A map that is known, in any form that `as_preconditioner` takes: the learner begins with it. Of the schemes
        here `two_ended` can.
    keep
        (AdaptiveState, AdaptiveInfo) -> what to keep of a learning step. By default nothing is kept, and memory does
        not grow with `num_steps`.

    Returns
    -------
    Warmup, an `AdaptationAlgorithm`. `run(rng_key, positions, num_steps=None)` returns ((state, parameters), info).
    The state is that of the sampler, with a leading chain axis. The parameters are a dict of step_size (),
    inverse_mass_matrix, a preconditioner, and, if sampler and scheme have one, center, a position. The info is a
    `WarmupInfo`. Without a number of steps the warm-up ends when the step size has settled and the chains agree, see
    `settling`, after 111 to 10,000 steps. To go on, give `info.last_state` for the positions.

    Raises
    ------
    TypeError
        If `sampler` is neither a name nor a `Sampler`. At `run`, if `num_steps` is no integer, and as the `init` of
        `adaptive_mala`.
    ValueError
        If the sampler is unknown or the target outside (0, 1). At `run`, if `num_steps` is negative; if there is a
        `keep` but no number of steps; if a state to go on from is of another scheme or number of chains; if there is an
        `initial` that the scheme cannot begin with; and as the `init` of `adaptive_mala`.

    Examples
    --------
    .. code-block:: python

        (state, parameters), info = hm.warmup(logdensity_fn, hm.two_ended()).run(rng_key, positions)
        kernel = hm.hmc(logdensity_fn, **parameters)
        state, info = jax.vmap(kernel.step)(jax.random.split(rng_key, 4), state)

    Warm-ups with equal arguments share one compiled program. On a CPU it compiles in half the time, by settings of XLA
    that XLA_FLAGS overrides, and may run a little slower. (Within another jitted function it has the settings of that.)
    The arrays that `logdensity_fn` reads are compiled into
    it, so other data compile another. For many data sets of one shape make the data an argument; this compiles once:

    .. code-block:: python

        def run(rng_key, positions, data):
            return hm.warmup(model(data), hm.two_ended()).run(rng_key, positions)

        results, info = jax.jit(run)(rng_key, positions, data)
    """
    sampler = find_sampler(sampler)
    target = sampler.target_acceptance_rate if target_acceptance_rate is None else target_acceptance_rate
    require_rate(target)

    def run(
        rng_key: PRNGKey, positions: ArrayLikeTree | adaptive.AdaptiveState, num_steps: int | None = None
    ) -> tuple[WarmupResults, WarmupInfo]:
        """Warm up chains from positions whose leaves have a leading chain axis; see `householder_mcmc.warmup`.

        Returns ((state, parameters), info).
        """
        if num_steps is not None:
            num_steps = require_integer("num_steps", num_steps, least=0)
        elif keep is not None:
            raise ValueError("`keep` needs a number of steps: run(rng_key, positions, num_steps).")
        if isinstance(positions, adaptive.AdaptiveState):
            state = adaptive.resume(positions, scheme, _LEARNER, num_chains)
            num_gradients = jnp.zeros(num_chains, jnp.int32)
        else:
            state = adaptive.init(positions, logdensity_fn, scheme, _LEARNER, num_chains)
            state, num_gradients = _arrive_if_far(state, logdensity_fn, scheme)
            if initial is not None:
                state = state._replace(scheme=scheme.begin_with(state.scheme, initial))
        return _adapt(logdensity_fn, scheme, sampler, target, keep, num_steps)(rng_key, state, num_gradients)

    return Warmup(cast(Any, run))


def _arrive_if_far(state, logdensity_fn, scheme):
    """The state after far starts have climbed, and the gradients that this took, (num_chains,)."""
    num_chains = len(state.levels)
    is_far, none = are_far(state.levels, adaptive.dimension(state.chains)), jnp.zeros(num_chains, jnp.int32)

    def arrived(carry):
        positions, info = arrive(logdensity_fn, carry[0].position)
        return adaptive.init(positions, logdensity_fn, scheme, _LEARNER, num_chains), info.num_gradients

    if is_concrete(is_far):  # where it is known, a program that is not needed is not compiled
        return arrived((state, none)) if is_far else (state, none)
    return only_if(is_far, arrived, (state, none))


@brief_program
def _adapt(logdensity_fn, scheme, sampler, target, keep, num_steps):
    ends_by_itself = num_steps is None
    most_steps = MOST_STEPS if ends_by_itself else num_steps
    most_learning = most_steps - most_steps // _TUNING_PART

    def adapt(rng_key, state, num_gradients):
        def one_step(sampler, state):
            return _one_step(rng_key, state, logdensity_fn, scheme, sampler, target, ends_by_itself)

        def run(sampler, state, first, last):
            """Steps `first` to `last` - 1. Where the end is not known, `last` is a function of the state."""
            if ends_by_itself:
                go_on = lambda state: state.count < last(state)  # noqa: E731
                return jax.lax.while_loop(go_on, lambda state: one_step(sampler, state)[0], state), None

            def kept(state, _):
                state, info = one_step(sampler, state)
                return state, None if keep is None else keep(state.adaptive, info)

            return jax.lax.scan(kept, state, length=last - first)

        learning = (lambda state: state.num_learning) if ends_by_itself else most_learning
        end = (lambda state: state.num_learning + _num_tuning(state)) if ends_by_itself else most_steps
        state = _start(state, most_learning, num_gradients)
        if sampler == _LEARNER:
            state, history = run(_LEARNER, state, 0, end)
            history = jax.tree.map(lambda leaf: leaf[:most_learning], history)
        else:
            state, history = run(_LEARNER, state, 0, learning)
            state, _ = run(sampler, _hand_over(state, scheme, sampler), learning, end)

        learnt, tuning = state.adaptive, state.tuning
        parameters = {
            "step_size": sampler.step_size(jnp.exp(tuning.average_log_sigma)),
            **adaptive.parameters(scheme, sampler, learnt),
        }
        num_tuning = (state.count - state.num_learning).astype(tuning.total_rate.dtype)
        info = WarmupInfo(
            acceptance_rate=jnp.where(num_tuning > 0, tuning.total_rate / num_tuning, jnp.nan),
            num_nonfinite=state.totals.num_nonfinite,
            num_gradients=state.totals.num_gradients,
            num_steps=state.count,
            num_learnt=learnt.climb.steps_learnt,
            has_settled=state.settling.has_settled,
            is_behind=find_behind(learnt.levels, adaptive.dimension(learnt.chains)),
            num_moves=learnt.num_moves,
            explained=None if scheme.explained is None else scheme.explained(learnt.scheme),
            last_state=learnt,
            history=history,
        )
        return WarmupResults(learnt.chains, parameters), info

    return adapt


def _hand_over(state, scheme, sampler):
    """The state of a warm-up, where another sampler takes over the learner's chains and step size.

    A sampler without a center needs shorter steps than a learner that solves the learnt Gaussian exactly. So sigma is
    at most 1.5 d^(-1/4) then.
    """
    learnt, log_sigma = state.adaptive, state.adaptive.log_sigma
    center = adaptive.parameters(scheme, _LEARNER, learnt).get("center")
    if center is not None and sampler.longest_sigma is None:
        longest = math.log(_LEAPFROG) - math.log(adaptive.dimension(learnt.chains)) / 4
        log_sigma = jnp.where(is_known(center), jnp.minimum(log_sigma, longest), log_sigma)
    learnt = learnt._replace(
        chains=sampler.state(*learnt.chains), step_size=learnt.step_size._replace(log_sigma=log_sigma)
    )
    tuning = state.tuning._replace(first_log_sigma=log_sigma, average_log_sigma=log_sigma)
    return state._replace(adaptive=learnt, tuning=tuning)


def _num_tuning(state):
    """Steps of the last phase where the first one ended by itself: a ninth of the first, so a tenth of all."""
    return jnp.maximum(state.num_learning // (_TUNING_PART - 1), 1)


def _start(state, num_learning, num_gradients=0):
    """The start of a warm-up from an `AdaptiveState`."""
    rates, zero = state.acceptance_rate, jnp.zeros((), jnp.int32)
    none = jnp.zeros(len(rates), jnp.int32)
    return _State(
        adaptive=state,
        settling=Settling.start(ravel_chains(state.position), state.chains.logdensity),
        tuning=_Tuning(state.log_sigma, state.log_sigma, total_rate=jnp.zeros_like(rates)),
        growth=state.step_size.count.astype(rates.dtype),
        totals=_Totals(num_nonfinite=none, num_gradients=none + num_gradients),
        count=zero,
        num_learning=jnp.asarray(num_learning, jnp.int32),
    )


def _one_step(rng_key, state, logdensity_fn, scheme, sampler, target, ends_by_itself=False):
    """A step of either phase: (_State, AdaptiveInfo)."""
    num_learning = state.num_learning
    is_tuning = state.count >= num_learning
    count = jnp.where(is_tuning, state.count - num_learning, state.count)  # of steps in the phase
    key = jax.random.fold_in(jnp.where(is_tuning, *jax.random.split(rng_key)[::-1]), count)

    # 1. All chains move; in its phase the learner learns.
    kernel = adaptive.build_kernel(
        scheme,
        _with_trajectories(sampler, jnp.where(is_tuning, MOST_INTEGRATION_STEPS, 1 + state.growth // _GROWTH)),
        target_acceptance_rate=jnp.where(is_tuning, target, jnp.maximum(target, _LEARNER.target_acceptance_rate)),
        step_size_gain=lambda steps: jnp.where(is_tuning, _TUNING_GAIN(count), _learning_gain(steps)),
        is_learning=~is_tuning,
        is_early=2 * count < num_learning,
        may_move=~is_tuning,
    )
    learnt, info = kernel(key, state.adaptive, logdensity_fn)
    lowest = jnp.where(is_tuning, state.tuning.first_log_sigma - _LARGEST_FALL, -jnp.inf)
    step_size = learnt.step_size._replace(log_sigma=jnp.maximum(learnt.log_sigma, lowest))
    learnt = learnt._replace(step_size=step_size)

    # 2. Trajectories grow. A search for the step size takes them back to one step.
    growth = jnp.maximum(state.growth + 1 - _GROWTH * jnp.mean(info.is_nonfinite, dtype=state.growth.dtype), 0)
    growth = jnp.where(step_size.count == 0, 0, growth)
    tuning = state.tuning.follow(learnt.log_sigma, info.acceptance_rate, count, is_tuning)
    totals = state.totals.add(info.is_nonfinite, info.num_gradients)

    # 3. Whether enough is learnt.
    settling = state.settling.watch(
        ravel_chains(learnt.position),
        learnt.chains.logdensity,
        learnt.log_sigma,
        is_counted=learnt.lag.num_steps == 0,
        is_awaited=learnt.are_awaited,
        steps_learnt=learnt.climb.steps_learnt,
        is_sought=step_size.count == 0,
        count=state.count + 1,
        determined=None if scheme.determined is None else partial(scheme.determined, learnt.scheme),
    )
    settling = jax.tree.map(partial(jnp.where, is_tuning), state.settling, settling)
    is_last = settling.has_settled & ends_by_itself & ~is_tuning
    num_learning = jnp.where(is_last, state.count + 1, num_learning)
    return _State(learnt, settling, tuning, growth, totals, state.count + 1, num_learning), info


def _with_trajectories(sampler, max_integration_steps):
    """The sampler; if it is the learner's, with at most this many integration steps in a trajectory."""
    if sampler != _LEARNER:
        return sampler
    return sampler._replace(kernel=partial(sampler.kernel, max_integration_steps=max_integration_steps))


def _learning_gain(count):
    """Gain of log sigma while the map is learnt, 0.1 or more.

    A step size that lags behind the map is too small, and transitions take more gradients by that factor.
    """
    return jnp.maximum(STEP_SIZE_GAIN(count), _SMALLEST_LEARNING_GAIN)
