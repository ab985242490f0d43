"""The Metropolis choice of every kernel, and the checks of its states and step size.

States have a `position`, a `logdensity` and a `logdensity_grad`, as BlackJAX's have.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.proposal import static_binomial_sampling
from blackjax.types import Array
from jax.flatten_util import ravel_pytree

from householder_mcmc.linalg import is_at_hand

__all__ = ["accept_or_reject", "require_positive", "require_rate", "require_finite", "is_finite"]


def accept_or_reject(rng_key, log_ratio, state, proposal) -> tuple[NamedTuple, tuple[Array, Array, Array]]:
    """Metropolis's choice, with a proposal that is not finite rejected and a state that is not left for any other.

    Returns the new state; the acceptance rate, whether the proposal was accepted, and whether either was not finite.
    """
    is_bad_start, is_bad_proposal = ~is_finite(state), ~is_finite(proposal)
    log_ratio = jnp.where(is_bad_start, jnp.inf, log_ratio)
    log_ratio = jnp.where(is_bad_proposal | jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    state, (is_accepted, acceptance_rate, _) = static_binomial_sampling(rng_key, log_ratio, state, proposal)
    return state, (acceptance_rate, is_accepted, is_bad_proposal | is_bad_start)


def require_positive(step_size) -> None:
    """Raise ValueError unless a step size is one number and, if at hand, positive and finite."""
    if np.shape(step_size) != () or is_at_hand(step_size) and not 0 < step_size < np.inf:
        raise ValueError(f"step_size must be a positive and finite number, got {step_size}.")


def require_rate(target_acceptance_rate) -> None:
    """Raise ValueError if a target of the acceptance rate is at hand and not between 0 and 1."""
    if is_at_hand(target_acceptance_rate) and not 0 < target_acceptance_rate < 1:
        raise ValueError(f"target_acceptance_rate must be between 0 and 1, got {target_acceptance_rate}.")


def require_finite(state: NamedTuple) -> None:
    """Raise ValueError if a state, or one of a batch, has a non-finite position, log-density or gradient.

    Unless the values are not at hand: traced, or in part on the devices of other processes.
    """
    if not all(map(is_at_hand, jax.tree.leaves(state))):
        return
    batched = jax.vmap(is_finite) if jnp.ndim(state.logdensity) else is_finite
    is_good = np.atleast_1d(batched(state))
    if not is_good.all():
        where = f" of chains {np.flatnonzero(~is_good).tolist()}" if jnp.ndim(state.logdensity) else ""
        values = np.atleast_1d(np.asarray(state.logdensity))[~is_good]
        is_gradient = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.position))
        what = "log-density" if not np.isfinite(values).all() else "gradient" if is_gradient else "position"
        raise ValueError(
            f"position, log-density and its gradient must be finite at the start{where}: "
            f"the {what} is not, with log-density {values.tolist()}."
        )


def is_finite(state: NamedTuple) -> Array:
    """Whether the log-density and all of the position and of the gradient are."""
    x, logdensity_grad = ravel_pytree(state.position)[0], ravel_pytree(state.logdensity_grad)[0]
    return jnp.isfinite(state.logdensity) & jnp.all(jnp.isfinite(x) & jnp.isfinite(logdensity_grad))
