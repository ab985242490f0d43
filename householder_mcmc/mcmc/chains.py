"""Many chains of one kernel: one transition of all chains, and a run of such transitions."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from blackjax.types import Array, ArrayTree, PRNGKey
from jax.experimental.multihost_utils import process_allgather
from jax.flatten_util import ravel_pytree

__all__ = ["gathered", "ravel_chains", "run_chains", "share_time", "step_chains"]

# Most chains of which any may try shorter steps, while all wait. Of more, one that stays where it is matters less.
# Chosen.
_MOST_TO_RETRY = 16


def share_time(kernel: Callable, rng_key: PRNGKey, num_chains: int) -> tuple[Callable, Array]:
    """The kernel for one transition of many chains, and a key for each chain, (num_chains,).

    If the kernel takes a `time_key`, as that of `hmc` does, all chains get the same one. Their trajectories then have
    the same time, so that none waits for the longer trajectory of another. The time is drawn anew for each transition.
    Given the times, the chains are independent and each leaves the target invariant. So draws of different chains are
    uncorrelated in equilibrium, as if each chain drew its own times.

    Source: Hoffman, Radul & Sountsov (2021), who share times for the same reason.
    """
    if "time_key" in inspect.signature(kernel).parameters:
        # `fold_in`, because the last key of a longer split would be sent between devices where chains are sharded
        kernel = partial(kernel, time_key=jax.random.fold_in(rng_key, num_chains))
    return kernel, jax.random.split(rng_key, num_chains)


def step_chains(kernel: Callable, rng_key: PRNGKey, chains: Any, *args) -> tuple[Any, Any]:
    """One transition of every chain, with trajectories of the same time, see `share_time`.

    If the kernel takes a `may_retry`, as that of `hmc` does, it is true for up to 16 chains.

    kernel: kernel(rng_key, state, *args) -> (state, info), such as `step` of a BlackJAX `SamplingAlgorithm`. chains:
    its states with a leading chain axis. args: shared by all chains. Returns states and infos with a leading chain
    axis.
    """
    num_chains = chains.logdensity.shape[0]
    if "may_retry" in inspect.signature(kernel).parameters:
        kernel = partial(kernel, may_retry=num_chains <= _MOST_TO_RETRY)
    kernel, keys = share_time(kernel, rng_key, num_chains)
    return jax.vmap(lambda key, state: kernel(key, state, *args))(keys, chains)


def run_chains(
    kernel: Callable,
    rng_key: PRNGKey,
    chains: Any,
    num_steps: int,
    keep: Callable[[Any, Any], Any] = lambda state, info: (state, info),
) -> tuple[Any, Any]:
    """`num_steps` transitions of every chain. kernel, chains: as for `step_chains`.

    Returns the last states, and what `keep` returns for the states and infos of each transition, stacked: leaves
    (num_steps, num_chains, ...).
    """

    def one_step(chains, key):
        chains, info = step_chains(kernel, key, chains)
        return chains, keep(chains, info)

    return jax.lax.scan(one_step, chains, jax.random.split(rng_key, num_steps))


def ravel_chains(positions: ArrayTree) -> Array:
    """Positions whose leaves have a leading chain axis, as one (num_chains, d) array."""
    return jax.vmap(lambda position: ravel_pytree(position)[0])(positions)


def gathered(tree: Any) -> Any:
    """The tree with every array whole in each process. Arrays that are spread over processes are gathered.

    All processes must call it.
    """

    def whole(leaf):
        is_here = getattr(leaf, "is_fully_addressable", True) or leaf.is_fully_replicated
        return leaf if is_here else process_allgather(leaf, tiled=True)

    return jax.tree.map(whole, tree)
