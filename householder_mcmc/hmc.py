"""Hamiltonian Monte Carlo with trajectories of a quarter period, in BlackJAX's shape.

In whitened coordinates a Gaussian target turns by one radian in unit time, so that after pi / 2 a state has forgotten
where it began. The time of each trajectory is uniform between 3/4 and 5/4 of that: no direction with a period near
that of another stays behind. Integrator, energies and acceptance are BlackJAX's. Source: Duane et al. (1987), Neal
(2011), Section 5.4.2 on the preconditioning and 5.5.1 on random times.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from blackjax.base import SamplingAlgorithm, build_sampling_algorithm
from blackjax.mcmc.hmc import HMCState
from blackjax.types import Array, ArrayLikeTree, PRNGKey
from jax.flatten_util import ravel_pytree

from householder_mcmc import mala
from householder_mcmc.metrics import to_metric
from householder_mcmc.preconditioners import as_preconditioner, cast_floats

__all__ = ["HMCState", "HMCInfo", "init", "build_kernel", "as_top_level_api"]

_SHORTEST, _LONGEST = 0.75 * math.pi / 2, 1.25 * math.pi / 2
_MOST_STEPS = 1000  # of a trajectory, however small the step size


class HMCInfo(NamedTuple):
    """What happened in a transition.

    acceptance_rate (): probability of accepting the end of the trajectory, 0 if it was not finite.
    is_accepted (): whether it was accepted.
    is_nonfinite (): whether the log-density, or a coordinate of its gradient, was not finite there.
    num_integration_steps (): leapfrog steps, of one gradient each.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_nonfinite: Array
    num_integration_steps: Array


def init(position: ArrayLikeTree, logdensity_fn: Callable) -> HMCState:
    """The state at a position (any pytree of floating point arrays). Raises as `mala.init`."""
    return HMCState(*mala.init(position, logdensity_fn))


def build_kernel() -> Callable:
    """Return kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix) -> (state, info)."""
    integrate = blackjax.hmc.build_kernel()

    def kernel(
        rng_key: PRNGKey, state: HMCState, logdensity_fn: Callable, step_size: float, inverse_mass_matrix
    ) -> tuple[HMCState, HMCInfo]:
        """One transition. inverse_mass_matrix: whatever `as_preconditioner` takes, if it has an inverse."""
        key_time, key = jax.random.split(rng_key)
        dtype = ravel_pytree(state.position)[0].dtype
        step_size = jnp.asarray(step_size, dtype)
        time = jax.random.uniform(key_time, (), dtype, _SHORTEST, _LONGEST)
        num_steps = jnp.clip(jnp.round(time / step_size), 1, _MOST_STEPS).astype(jnp.int32)
        metric = to_metric(cast_floats(as_preconditioner(inverse_mass_matrix), dtype))
        end, info = integrate(key, state, logdensity_fn, step_size, metric, num_steps)

        is_bad = ~mala.is_finite(info.proposal)
        state = jax.tree.map(lambda old, new: jnp.where(is_bad, old, new), state, end)
        acceptance_rate = jnp.where(is_bad, 0, info.acceptance_rate)
        return state, HMCInfo(acceptance_rate, info.is_accepted & ~is_bad, is_bad, num_steps)

    return kernel


def as_top_level_api(logdensity_fn: Callable, step_size: float, inverse_mass_matrix) -> SamplingAlgorithm:
    """Preconditioned HMC as a BlackJAX `SamplingAlgorithm`.

    Against `mala` it needs fewer gradients for an effective draw the better the target is whitened, since it does not
    walk at random; against `blackjax.nuts` it looks for no turn, so none of its gradients are thrown away.

    Parameters
    ----------
    logdensity_fn
        Position -> log-density up to a constant.
    step_size
        Of the leapfrog integrator, positive. A transition takes about 1.6 / step_size gradients, at most 1000.
    inverse_mass_matrix
        L L^T, in any form that `as_preconditioner` takes.

    Examples
    --------
    .. code::

        (state, parameters), _ = hm.warmup(logdensity_fn, hm.two_ended(), sampler="hmc").run(rng_key, positions)
        kernel = hm.hmc(logdensity_fn, **parameters)
        state, info = jax.vmap(kernel.step)(jax.random.split(rng_key, 4), state)
    """
    mala.require_positive(step_size)
    return build_sampling_algorithm(
        build_kernel(), init, logdensity_fn, kernel_args=(step_size, as_preconditioner(inverse_mass_matrix))
    )
