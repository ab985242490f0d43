"""The Metropolis choice of every kernel, and the checks of its states and step size."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.proposal import static_binomial_sampling
from blackjax.types import Array
from jax.flatten_util import ravel_pytree

from householder_mcmc.preconditioners.checks import is_concrete

__all__ = [
    "ChainState",
    "accept_or_reject",
    "require_state",
    "require_positive",
    "require_rate",
    "require_finite",
    "is_finite",
]


class ChainState(Protocol):
    """What a kernel knows of its chain. position, logdensity_grad: pytrees. logdensity ()."""

    @property
    def position(self) -> Any: ...
    @property
    def logdensity(self) -> Any: ...
    @property
    def logdensity_grad(self) -> Any: ...


def accept_or_reject(rng_key, log_ratio: Any, state: Any, proposal: Any) -> tuple[Any, tuple[Array, Array, Array]]:
    """Metropolis's choice between a state and a proposal. log_ratio (): logarithm of the Metropolis ratio.

    Non-finite proposals are rejected. A chain whose own state is not finite accepts the first finite proposal.

    Returns the new state, and a tuple of three (): the acceptance rate, whether the proposal was accepted, and whether
    the log-density, the position or the gradient of the proposal or of the state was not finite.
    """
    is_bad_start, is_bad_proposal = ~is_finite(state), ~is_finite(proposal)
    log_ratio = jnp.where(is_bad_start, jnp.inf, log_ratio)
    log_ratio = jnp.where(is_bad_proposal | jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    state, (is_accepted, acceptance_rate, _) = static_binomial_sampling(rng_key, log_ratio, state, proposal)
    return state, (acceptance_rate, is_accepted, is_bad_proposal | is_bad_start)


def require_state(state: Any, kind: type) -> None:
    """Raise TypeError unless a state is of the class `kind`: it may be one of another sampler."""
    if not isinstance(state, kind):
        name, given = kind.__name__, type(state).__name__
        raise TypeError(f"the kernel steps from a {name}, got a {given}: make one with the kernel's own `init`.")


def require_positive(step_size) -> None:
    """Raise ValueError unless a step size is one number and, if it is not traced, positive and finite."""
    # by NumPy, because within a jitted function JAX traces comparisons of known arrays too
    if np.shape(step_size) != () or is_concrete(step_size) and not 0 < np.asarray(step_size) < np.inf:
        raise ValueError(f"step_size must be a positive and finite number, got {step_size}.")


def require_rate(target_acceptance_rate) -> None:
    """Raise ValueError if a target of the acceptance rate is not between 0 and 1. A traced one passes."""
    if is_concrete(target_acceptance_rate) and not 0 < np.asarray(target_acceptance_rate) < 1:
        raise ValueError(f"target_acceptance_rate must be between 0 and 1, got {target_acceptance_rate}.")


def require_finite(state: ChainState) -> None:
    """Raise ValueError if a state, or one of a batch, has a non-finite position, log-density or gradient.

    Values that cannot be read here pass: those that are traced, or in part on the devices of other processes.
    """
    if not all(map(is_concrete, jax.tree.leaves(state))):
        return
    is_batch = jnp.ndim(state.logdensity) == 1
    num = len(state.logdensity) if is_batch else 1

    def each_finite(tree):
        """Whether a tree is finite, for each state, (num,). By NumPy, because JAX would compile."""
        leaves = [np.isfinite(np.asarray(leaf)).reshape(num, -1) for leaf in jax.tree.leaves(tree)]
        return np.all(np.concatenate(leaves, axis=1), axis=1)

    parts = {"log-density": state.logdensity, "position": state.position, "gradient": state.logdensity_grad}
    are_good = {what: each_finite(part) for what, part in parts.items()}
    bad = np.flatnonzero(~np.all(list(are_good.values()), axis=0))
    if bad.size:
        what = next(what for what, good in are_good.items() if not good[bad].all())
        where = f" of chains {bad.tolist()}" if is_batch else ""
        values = np.atleast_1d(np.asarray(state.logdensity))[bad].tolist()
        raise ValueError(
            f"position, log-density and its gradient must be finite at the start{where}: "
            f"the {what} is not, with log-density {values}."
        )


def is_finite(state: ChainState) -> Array:
    """Whether the log-density and every coordinate of the position and of the gradient are finite, ()."""
    x, logdensity_grad = ravel_pytree(state.position)[0], ravel_pytree(state.logdensity_grad)[0]
    return jnp.isfinite(state.logdensity) & jnp.all(jnp.isfinite(x) & jnp.isfinite(logdensity_grad))
