"""Draws of frozen chains in blocks: one compiled program, which Python runs until there are enough.

Between blocks Python stores the draws, shows progress and can be interrupted. Draw i has the key fold_in(rng_key, i),
so that draws do not depend on where blocks end.
"""

import functools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from householder_mcmc.adaptation.samplers import Sampler
from householder_mcmc.mcmc.chains import gathered, step_chains
from householder_mcmc.preconditioners.maps import LowRank
from householder_mcmc.results import arviz
from householder_mcmc.sampling.model import Model
from householder_mcmc.sharing import program

__all__ = ["Draws", "Plan", "draw_blocks", "empty_draws", "require_names"]

# Seconds that a block is to take, so that the bar moves and an interrupt is heard soon.
_SECONDS = 0.5

# Draws of the first block, when it is not known yet how long one takes; and the largest factor by which a block may
# have more draws than the one before.
_FIRST, _GROWTH = 4, 8

# Most draws, and most bytes (64 MiB), of a block. Two blocks are in memory at once.
_MOST_DRAWS = 1000
_MOST_BYTES = 2**26

# The rank of the frozen map is rounded up to a multiple of this, so that runs of one model share a compiled program.
# Chosen.
_MULTIPLE = 8


class Draws(NamedTuple):
    """What is kept of draws; leaves (num_draws, num_chains, ...).

    position: unconstrained positions; None if only some variables are kept.
    logdensity: of the unconstrained positions.
    infos: infos of the sampler, without the fields that are not one number for each chain.
    variables: what the user reads, by name; empty if all is kept and the user reads the positions.
    """

    position: Any
    logdensity: Any
    infos: Any
    variables: dict[str, Any]


class Plan(NamedTuple):
    """How chains are run.

    sampler: whose kernel is run.
    target_acceptance_rate: what the step size was tuned to.
    thin: transitions for each draw.
    names: names of the variables to keep, None for all.
    block_size: most draws of a block, None for 1000 or what fits in 64 MiB.
    """

    sampler: Sampler
    target_acceptance_rate: float
    thin: int = 1
    names: tuple[str, ...] | None = None
    block_size: int | None = None


def draw_blocks(
    model: Model, plan: Plan, rng_key, parameters: dict[str, Any], state: Any, first: int, num_draws: int
) -> Iterator[tuple[Any, Draws, float]]:
    """Draws first, ..., first + num_draws - 1 in blocks: the state of the chains after each, its `Draws`, its seconds.

    While the caller works with a block, the next one is computed. parameters: of the frozen kernel. state: of the
    chains before draw `first`.
    """
    parameters = _compressed(parameters)
    # The program is the same whatever the block size is, so that its draws are, bit for bit.
    size = _fitting_size(model, plan, rng_key, parameters, state)
    run = _run(_model_functions(model), plan.sampler, plan.thin, plan.names, size)
    size = min(size, plan.block_size or size)
    if num_draws:  # a block of no draws first, so that compilation is not counted as time of draws
        jax.block_until_ready(run(rng_key, parameters, state, np.uint32(first), np.int32(0)))
    num_begun, most, is_ready = 0, min(_FIRST, size), time.perf_counter()

    def begin(state):
        """Start a block, and return at once."""
        num, begins = min(most, num_draws - num_begun), time.perf_counter()
        return *run(rng_key, parameters, state, np.uint32(first + num_begun), np.int32(num)), num, begins

    block = begin(state) if num_draws else None
    while block is not None:
        state, kept, num, begins = block
        num_begun += num
        block = begin(state) if num_begun < num_draws else None
        jax.block_until_ready(kept)
        begins, is_ready = max(begins, is_ready), time.perf_counter()
        seconds, most = is_ready - begins, min(size, _GROWTH * num)
        if jax.process_count() == 1:  # several must make equal blocks, and their clocks differ
            most = int(np.clip(_SECONDS * num / seconds, 1, most))
        yield state, _to_numpy(kept, num), seconds


def empty_draws(model: Model, plan: Plan, rng_key, parameters: dict[str, Any], state: Any) -> Draws:
    """No draws, with the shapes and types of those of a run."""
    shapes = _shapes(model, plan, rng_key, parameters, state)
    return jax.tree.map(lambda leaf: np.empty((0, *leaf.shape), leaf.dtype), shapes)


def _compressed(parameters):
    """Parameters whose map has only the directions that do something, so that sampling costs O(effective rank d)."""
    preconditioner = parameters["inverse_mass_matrix"]
    if not isinstance(preconditioner, LowRank):
        return parameters
    return {**parameters, "inverse_mass_matrix": preconditioner.compress(_MULTIPLE)}


def _to_numpy(kept, num):
    # copies, because a view would hold all of the block in memory
    return jax.tree.map(lambda leaf: np.array(np.asarray(leaf)[:num]), gathered(kept))


def _fitting_size(model, plan, rng_key, parameters, state):
    """Draws of a block that fits in `_MOST_BYTES`, at most `_MOST_DRAWS`."""
    leaves = jax.tree.leaves(_shapes(model, plan, rng_key, parameters, state))
    return int(np.clip(_MOST_BYTES // sum(leaf.size * leaf.dtype.itemsize for leaf in leaves), 1, _MOST_DRAWS))


def _shapes(model, plan, rng_key, parameters, state):
    """`Draws` of one draw, with shapes and dtypes in place of arrays."""
    draw: Any = _one_draw(_model_functions(model), plan.sampler, plan.thin, plan.names)
    return draw.eval_shape(parameters, state, rng_key)[1]


@program
def _one_draw(functions, sampler, thin, names):
    def one_draw(parameters, state, key):  # never compiled: only its shapes are found, and kept
        return _draw(functions, sampler, thin, names, parameters, state, key)

    return one_draw


def _model_functions(model: Model) -> Callable:
    """A function without arguments that returns the model's log-density and `constrain`.

    It is the same function for the same two, so that their programs are found again.
    """
    try:
        return _shared_functions(model.logdensity, model.constrain)
    except TypeError:  # a log-density that cannot be hashed
        return _shared_functions.__wrapped__(model.logdensity, model.constrain)


@functools.lru_cache(16)  # as many as there are programs
def _shared_functions(logdensity, constrain):
    return lambda: (logdensity, constrain)


@program
def _run(functions, sampler, thin, names, block_size):
    def run(rng_key, parameters, state, first, num_draws):
        """The state after `num_draws` draws, at most block_size, and `Draws` of length block_size."""
        keys = jax.vmap(partial(jax.random.fold_in, rng_key))(first + jnp.arange(block_size, dtype=first.dtype))
        draw = partial(_draw, functions, sampler, thin, names, parameters)
        shapes = jax.eval_shape(draw, state, keys[0])[1]
        kept = jax.tree.map(lambda leaf: jnp.zeros((block_size, *leaf.shape), leaf.dtype), shapes)

        def one_draw(i, carry):
            state, kept = carry
            state, new = draw(state, keys[i])
            put = partial(jax.lax.dynamic_update_index_in_dim, index=i, axis=0)
            return state, jax.tree.map(lambda leaf, row: put(leaf, row), kept, new)

        return jax.lax.fori_loop(0, num_draws, one_draw, (state, kept))

    return run


def _draw(functions, sampler, thin, names, parameters, state, key):
    """The state after the `thin` transitions of a draw, and what is kept."""
    logdensity_fn, constrain = functions()

    def transition(state, key):
        state, info = step_chains(partial(sampler.kernel, **parameters), key, state, logdensity_fn)
        return state, _without_other_fields(info, state.logdensity.shape)

    if thin == 1:
        state, info = transition(state, key)
    else:
        state, infos = jax.lax.scan(transition, state, jax.random.split(key, thin))
        info = jax.tree.map(_combine_thinned, infos)
    if names is None and constrain is None:
        return state, Draws(state.position, state.logdensity, info, {})
    variables = state.position if constrain is None else jax.vmap(constrain)(state.position)
    variables = dict(zip(arviz.names(variables), jax.tree.leaves(variables), strict=True))
    if names is None:
        return state, Draws(state.position, state.logdensity, info, variables)
    return state, Draws(None, state.logdensity, info, {name: variables[name] for name in names})


def require_names(model: Model, names: tuple[str, ...] | None, positions: Any) -> None:
    """Raise ValueError if a name is not that of a variable, or two variables have the same. positions: of chains."""
    found = arviz.names(jax.eval_shape(jax.vmap(model.variables), positions))
    unknown = sorted(set(names or ()) - set(found))
    if unknown:
        raise ValueError(f"store has {unknown}, which are no variables; there are {sorted(found)}.")


def _without_other_fields(info, shape):
    """The info with None for the fields that are not one number for each chain. shape: (num_chains,)."""
    others = [name for name, value in info._asdict().items() if getattr(value, "shape", None) != shape]
    return info._replace(**dict.fromkeys(others))


def _combine_thinned(values):
    """One number for each chain of those of all transitions, (thin, num_chains).

    Of flags whether any is set, of counts the sum, of other numbers that of the last transition.
    """
    if values.dtype == bool:
        return jnp.any(values, axis=0)
    return jnp.sum(values, axis=0, dtype=values.dtype) if jnp.issubdtype(values.dtype, jnp.integer) else values[-1]
