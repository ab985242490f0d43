"""Many chains of one kernel: a transition of all of them, and a run of frozen transitions."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from blackjax.types import Array, ArrayTree, PRNGKey
from jax.experimental.multihost_utils import process_allgather
from jax.flatten_util import ravel_pytree

__all__ = ["gathered", "ravel_chains", "run_chains", "share_time", "step_chains"]


def share_time(kernel: Callable, rng_key: PRNGKey, num_chains: int) -> tuple[Callable, Array]:
    """The kernel for one transition of many chains, and their keys, (num_chains,).

    If it takes a `time_key`, as that of `hmc`, all chains get the same one, so that none waits for the longer
    trajectory of another. Times are random from one transition to the next. Given the times the chains are independent,
    and each leaves the target invariant: draws of different chains are uncorrelated in equilibrium, as with times of
    their own. Source: Hoffman, Radul & Sountsov (2021), who share them for the same reason.
    """
    if "time_key" in inspect.signature(kernel).parameters:
        # not the last of a longer split: where chains are sharded, that would be sent between devices
        kernel = partial(kernel, time_key=jax.random.fold_in(rng_key, num_chains))
    return kernel, jax.random.split(rng_key, num_chains)


def step_chains(kernel: Callable, rng_key: PRNGKey, chains: Any, *args) -> tuple[Any, Any]:
    """One transition of every chain, with trajectories of the same time, see `share_time`.

    kernel: kernel(rng_key, state, *args) -> (state, info), such as `step` of a BlackJAX `SamplingAlgorithm`. chains:
    its states with a leading chain axis. args: shared by all chains.
    """
    kernel, keys = share_time(kernel, rng_key, chains.logdensity.shape[0])
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


def gathered(tree: Any) -> Any:
    """Arrays whole in each process, where other processes hold a part of them. All processes must call it."""

    def whole(leaf):
        is_here = getattr(leaf, "is_fully_addressable", True) or leaf.is_fully_replicated
        return leaf if is_here else process_allgather(leaf, tiled=True)

    return jax.tree.map(whole, tree)
