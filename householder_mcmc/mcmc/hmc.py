"""Hamiltonian Monte Carlo with trajectories of a quarter period, in BlackJAX's shape.

For a Gaussian target, position and momentum in whitened coordinates rotate by one radian in unit time. After a quarter
period, pi / 2, the position is independent of where it began. The time of each trajectory is uniform between 3/4 and
5/4 of pi / 2. It is random so that it does not match the period of any direction.

The momenta are whitened too, q ~ N(0, I). A leapfrog step of size e is x += e L q between two half kicks
q += e / 2 L^T grad log pi(x). It needs one product with L and one with L^T, and no inverse.

With a center the step is that of `integrator`, which solves the Gaussian N(center, L L^T) exactly. It needs one product
with L^{-1} for each trajectory.

Where a trajectory fails in a narrow place, shorter steps are tried, see `retries`.

Source: Duane, Kennedy, Pendleton & Roweth (1987); Neal (2011), MCMC using Hamiltonian dynamics, on linear
transformations and on random times.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from blackjax.base import build_sampling_algorithm
from blackjax.mcmc.hmc import HMCState
from blackjax.types import Array, ArrayLikeTree, PRNGKey
from jax.flatten_util import ravel_pytree

from householder_mcmc.mcmc import mala
from householder_mcmc.mcmc.api import Algorithm
from householder_mcmc.mcmc.integrator import rotate, whiten
from householder_mcmc.mcmc.logdensity import value_and_grad
from householder_mcmc.mcmc.metropolis import ChainState, accept_or_reject, is_finite, require_positive, require_state
from householder_mcmc.mcmc.retries import DIVERGENCE_THRESHOLD, Path, find_most_trials, run_trials
from householder_mcmc.preconditioners.maps import as_preconditioner, cast_floats

__all__ = ["HMCState", "HMCInfo", "init", "build_kernel", "as_top_level_api", "MOST_INTEGRATION_STEPS", "LONGEST_STEP"]

# Shortest and longest time of a trajectory: a quarter period, pi / 2, less or more by a quarter of that. A direction
# whose scale is wrong by up to a quarter then still has its own quarter period in this range.
_SHORTEST, _LONGEST = 0.75 * math.pi / 2, 1.25 * math.pi / 2

# With a center one step may make the whole trajectory, so step sizes above this are all the same.
LONGEST_STEP = _LONGEST

# Most integration steps of a trajectory: about those of a NUTS tree of depth 10, which has 1023.
MOST_INTEGRATION_STEPS = 1000


class HMCInfo(NamedTuple):
    """What happened in a transition.

    acceptance_rate (): probability of accepting the end of the first trajectory, 0 if it was not finite.
    is_accepted (): whether the end of a trajectory was accepted.
    is_nonfinite (): whether the log-density, or a coordinate of the position or of the gradient, was not finite at the
    end of the last trajectory, or at the state that it began from. (Only a start can be such a state.)
    is_divergent (): whether the energy grew by more than 1000 nats along the last trajectory, or its change was NaN or
    infinite. Then the steps are too long for narrow places of the target, and the chain may never enter these.
    num_integration_steps (): steps of all trajectories, of one gradient each.
    energy (): minus the log-density where the transition ends, plus the kinetic energy there.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_nonfinite: Array
    is_divergent: Array
    num_integration_steps: Array
    energy: Array


class _Step(Protocol):
    """Type of `step`: (rng_key, state, time_key=None) -> (state, info)."""

    def __call__(
        self, rng_key: PRNGKey, state: ChainState, time_key: PRNGKey | None = None
    ) -> tuple[ChainState, HMCInfo]: ...


class _HMC(Algorithm[ChainState, HMCInfo]):
    step: _Step  # pyright: ignore[reportIncompatibleVariableOverride]


def init(position: ArrayLikeTree, logdensity_fn: Callable) -> HMCState:
    """The state at a position (any pytree of floating point arrays). Raises as `mala.init`."""
    return HMCState(*mala.init(position, logdensity_fn))


def build_kernel() -> Callable:
    """Return kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix) -> (state, info)."""

    def kernel(
        rng_key: PRNGKey,
        state: HMCState,
        logdensity_fn: Callable,
        step_size: float | Array,
        inverse_mass_matrix,
        center: ArrayLikeTree | None = None,
        max_integration_steps: int | Array = MOST_INTEGRATION_STEPS,
        time_key: PRNGKey | None = None,
        may_retry: bool = True,
    ) -> tuple[HMCState, HMCInfo]:
        """One transition. inverse_mass_matrix: whatever `as_preconditioner` takes. center: as for `hmc`.

        max_integration_steps (): trajectories with more steps are cut short. With the default of 1000 that happens only
        at step sizes below 0.002.
        time_key: random key of the trajectory's time, shared by chains. None: `rng_key` draws the time. See `hmc`.
        may_retry: whether shorter steps are tried where a trajectory fails.
        Raises TypeError on a state of another sampler, and what `as_preconditioner` and `integrator.whiten` raise.
        """
        require_state(state, HMCState)
        own_time_key, key = jax.random.split(rng_key)
        key_momentum, key_accept = jax.random.split(key)
        shared_key = own_time_key if time_key is None else time_key
        x, unravel = ravel_pytree(state.position)
        preconditioner = cast_floats(as_preconditioner(inverse_mass_matrix), x.dtype)
        step_size = jnp.asarray(step_size, x.dtype)
        time, uniform = jax.random.uniform(
            shared_key, (2,), x.dtype, jnp.array([_SHORTEST, 0], x.dtype), jnp.array([_LONGEST, 1], x.dtype)
        )
        most = jnp.asarray(max_integration_steps, x.dtype)
        if center is None:
            start, frequency, num_steps = 0.0, 0.0, jnp.round(time / step_size)
        else:
            start, frequency = whiten(preconditioner, state.position, center)
            num_steps = jnp.where(frequency > 0, jnp.ceil(time / step_size), jnp.round(time / step_size))
        num_steps = jnp.fmin(jnp.fmax(num_steps, 1), most)
        if center is not None:  # shortened to time / num_steps, so that the time is random where one step is enough
            step_size = jnp.where(frequency > 0, jnp.minimum(step_size, time / num_steps), step_size)

        def whitened(logdensity_grad):
            return preconditioner.apply_transpose(ravel_pytree(logdensity_grad)[0])

        def kick(move, momentum, score, step_size):
            force = score if center is None else score + frequency * (start + move)
            return momentum + step_size / 2 * force

        def drift(move, momentum, step_size):
            if center is None:
                return move + step_size * momentum, momentum
            return rotate(start, move, momentum, step_size, frequency)

        def follow(begin, step_size, num_steps, may_stop):
            """The steps of a trajectory and its `Path`. may_stop (): whether it ends where it is lost."""

            def one_step(carry):
                i, path = carry
                move, momentum, score, _ = path.end
                move, momentum = drift(move, kick(move, momentum, score, step_size), step_size)
                position = unravel(x + preconditioner.apply(move))
                state = HMCState(position, *value_and_grad(logdensity_fn)(position))
                score = whitened(state.logdensity_grad)
                return i + 1, path.extend(begin, (move, kick(move, momentum, score, step_size), score, state))

            def goes_on(carry):
                i, path = carry
                return (i < num_steps) if may_stop is False else (i < num_steps) & ~(may_stop & path.is_lost())

            return jax.lax.while_loop(goes_on, one_step, (jnp.zeros_like(num_steps), Path.start(begin)))

        momentum = jax.random.normal(key_momentum, x.shape, x.dtype)
        score = jnp.where(is_finite(state), whitened(state.logdensity_grad), 0)
        begin = jnp.zeros_like(x), momentum, score, state
        num_steps = num_steps.astype(jnp.int32)
        if may_retry:
            most_trials = find_most_trials(uniform, num_steps, most)
            last, log_ratio, is_other_accepted, num_gradients = run_trials(
                key_accept, follow, begin, step_size, num_steps, most_trials
            )
        else:
            num_gradients, last = follow(begin, step_size, num_steps, False)
            log_ratio, is_other_accepted = last.log_ratio, False
        _, end_momentum, _, end_state = last.end
        # If the first trial is accepted, it is the last.
        state, (rate, is_accepted, is_nonfinite) = accept_or_reject(key_accept, log_ratio, state, end_state)
        state = jax.tree.map(partial(jnp.where, is_other_accepted), end_state, state)
        is_accepted |= is_other_accepted
        momentum = jnp.where(is_accepted, end_momentum, momentum)
        energy = jnp.sum(momentum**2) / 2 - state.logdensity
        is_divergent = ~((last.log_ratio >= -DIVERGENCE_THRESHOLD) & (last.log_ratio < jnp.inf))
        return state, HMCInfo(rate, is_accepted, is_nonfinite, is_divergent, num_gradients, energy)

    return kernel


def as_top_level_api(
    logdensity_fn: Callable,
    step_size: float | Array,
    inverse_mass_matrix,
    center: ArrayLikeTree | None = None,
    may_retry: bool = True,
) -> _HMC:
    """Preconditioned HMC as a BlackJAX `SamplingAlgorithm`.

    Unlike `mala` it does not walk at random. The better the target is whitened, the fewer gradients it needs for an
    effective draw, compared with `mala`. Unlike `blackjax.nuts` it spends no gradients on finding where a trajectory
    turns.

    Under `vmap` all chains step until the longest of their trajectories ends. If they share a `time_key`, their
    trajectories have the same time, and none waits for a longer one. `hm.sample` and warm-ups do that. Given the times,
    the chains are independent and each leaves the target invariant.

    Parameters
    ----------
    logdensity_fn
        Position -> log-density up to a constant.
    step_size
        Step size of the integrator in whitened coordinates, positive. A transition takes about 1.6 / step_size
        gradients, at least 1 and at most 1000. With a center no step is longer than the trajectory, so step sizes above
        1.96 are all the same.
    inverse_mass_matrix
        L L^T, in any form that `as_preconditioner` takes. With a center its map must have `solve` and
        `solve_transpose`.
    center
        A position: the mean of the Gaussian N(center, L L^T) that trajectories solve exactly, see `integrator`. The
        nearer this Gaussian is to the target, the longer the steps may be, whatever d. Where it fits badly, as with
        heavy tails or in funnels, such steps do about as well as leapfrog steps. From a start very many standard
        deviations away, leapfrog steps reach the target; steps with a center may not, if the target is no Gaussian out
        there. With None, or a center that is not finite, steps are leapfrog, and times are rounded to whole steps.
    may_retry
        Whether shorter steps are tried where the energy grows by more than 10 nats, see `mcmc/retries.py`. They free
        chains that would stay in a narrow place for hundreds of transitions. Where all goes well they cost no gradient.
        Under `vmap` all chains wait for one that tries again, so `hm.sample` does it with up to 16 chains.

    Raises
    ------
    ValueError
        If the step size is not positive, or, at `step`, the center is of another d; and as `as_preconditioner`.
    TypeError
        At `step`, if there is a center and the map has no inverse; and as `as_preconditioner`.

    Examples
    --------
    .. code-block:: python

        (state, parameters), _ = hm.warmup(logdensity_fn, hm.two_ended()).run(rng_key, positions)
        kernel = hm.hmc(logdensity_fn, **parameters)
        key_chains, time_key = jax.random.split(rng_key)
        state, info = jax.vmap(kernel.step, (0, 0, None))(jax.random.split(key_chains, 4), state, time_key)
    """
    require_positive(step_size)
    kernel, kernel_args = build_kernel(), (step_size, as_preconditioner(inverse_mass_matrix), center)

    def step(rng_key, state, time_key=None):
        return kernel(rng_key, state, logdensity_fn, *kernel_args, time_key=time_key, may_retry=may_retry)

    algorithm: Any = build_sampling_algorithm(kernel, init, logdensity_fn)._replace(step=step)
    return algorithm
