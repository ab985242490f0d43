"""Many chains of one kernel: a transition of all of them, and a run of frozen transitions."""

from collections.abc import Callable
from typing import Any

import jax
from blackjax.types import Array, ArrayTree, PRNGKey
from jax.flatten_util import ravel_pytree

__all__ = ["ravel_chains", "run_chains", "step_chains"]


def step_chains(kernel: Callable, rng_key: PRNGKey, chains: Any, *args) -> tuple[Any, Any]:
    """One transition of every chain.

    kernel: kernel(rng_key, state, *args) -> (state, info), such as `step` of a BlackJAX `SamplingAlgorithm`. chains:
    its states with a leading chain axis. args: shared by all chains.
    """
    keys = jax.random.split(rng_key, chains.logdensity.shape[0])
    return jax.vmap(lambda key, state: kernel(key, state, *args))(keys, chains)


def run_chains(
    kernel: Callable,
    rng_key: PRNGKey,
    chains: Any,
    num_steps: int,
    keep: Callable[[Any, Any], Any] = lambda state, info: (state, info),
) -> tuple[Any, Any]:
    """`num_steps` transitions of every chain.

    Returns the last states, and what `keep` makes of the states and infos of each transition, leaves
    (num_steps, num_chains, ...).
    """

    def one_step(chains, key):
        chains, info = step_chains(kernel, key, chains)
        return chains, keep(chains, info)

    return jax.lax.scan(one_step, chains, jax.random.split(rng_key, num_steps))


def ravel_chains(positions: ArrayTree) -> Array:
    """Positions with a leading chain axis as a (num_chains, d) array."""
    return jax.vmap(lambda position: ravel_pytree(position)[0])(positions)
