"""BlackJAX's NUTS on our map, as a `Sampler` that a warm-up tunes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from blackjax.mcmc import nuts
from blackjax.mcmc.hmc import HMCState
from blackjax.types import Array, PRNGKey

from householder_mcmc.adaptation.samplers import SAMPLERS, Sampler
from householder_mcmc.preconditioners.metric import to_metric

__all__ = ["ALL_SAMPLERS", "NUTSInfo"]

_STEP = nuts.build_kernel()


class NUTSInfo(NamedTuple):
    """The numbers of BlackJAX's `NUTSInfo`, and what every sampler's info has.

    acceptance_rate (): mean over the tree.
    is_accepted (): whether the chain moved.
    is_nonfinite (): whether the log-density was not finite at an end of the trajectory.
    is_divergent (): whether the energy grew by more than 1000 nats.
    energy (): minus the log-density of the state that was chosen, plus its kinetic energy.
    num_integration_steps (): leapfrog steps, of one gradient each.
    num_trajectory_expansions (): doublings of the tree.
    """

    acceptance_rate: Array
    is_accepted: Array
    is_nonfinite: Array
    is_divergent: Array
    energy: Array
    num_integration_steps: Array
    num_trajectory_expansions: Array


def _kernel(
    rng_key: PRNGKey, state: HMCState, logdensity_fn: Callable, step_size, inverse_mass_matrix, **others: Any
) -> tuple[HMCState, NUTSInfo]:
    """One transition. others: parameters of our own HMC, which NUTS does not use."""
    del others
    metric: Any = to_metric(inverse_mass_matrix)
    new: Any
    found: Any
    new, found = _STEP(rng_key, state, logdensity_fn, step_size, metric)
    return new, NUTSInfo(
        acceptance_rate=found.acceptance_rate,
        is_accepted=new.logdensity != state.logdensity,
        is_nonfinite=~jnp.isfinite(found.trajectory_leftmost_state.logdensity)
        | ~jnp.isfinite(found.trajectory_rightmost_state.logdensity),
        is_divergent=found.is_divergent,
        energy=found.energy,
        num_integration_steps=found.num_integration_steps,
        num_trajectory_expansions=found.num_trajectory_expansions,
    )


# The samplers that a warm-up knows by name, and NUTS.
ALL_SAMPLERS = {
    **SAMPLERS,
    "nuts": Sampler(
        kernel=_kernel,
        state=HMCState,
        step_size=lambda sigma: sigma,
        target_acceptance_rate=0.8,  # as in Stan and BlackJAX
        num_gradients=lambda info: info.num_integration_steps,
    ),
}
