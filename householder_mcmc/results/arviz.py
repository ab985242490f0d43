"""Traces of runs for ArviZ, with named variables."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

__all__ = ["names", "label", "named_draws", "ravelled_draws", "statistics", "from_groups", "to_arviz"]

# The names of ArviZ's schema, where they differ from BlackJAX's.
_SCHEMA = {"is_divergent": "diverging", "num_integration_steps": "n_steps", "num_trajectory_expansions": "tree_depth"}


def names(position) -> list[str]:
    """The name of each leaf: its path, joined by dots; "x" if the position is a single array.

    Raises ValueError if two leaves have the same name.
    """
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(position)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "x" for path in paths]
    if len(set(names)) < len(names):
        raise ValueError(f"two variables have the same name: {sorted(names)}.")
    return names


def label(position, index: int) -> str:
    """The name of one coordinate, by its index in the ravelled position: `log_tau` or `z[0, 3]`."""
    leaves = jax.tree.leaves(position)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    i = int(np.searchsorted(ends, index, side="right"))
    where = np.unravel_index(index - ends[i] + np.size(leaves[i]), np.shape(leaves[i]))
    return names(position)[i] + (f"[{', '.join(map(str, where))}]" if where else "")


def named_draws(positions, chain_axis: int = 1) -> dict[str, np.ndarray]:
    """Leaves by name, as arrays (num_chains, num_draws, ...). Raises ValueError as `to_arviz`.

    chain_axis: 1 if the leaves are (num_draws, num_chains, ...), 0 if they are (num_chains, num_draws, ...).
    """
    variables = dict(zip(names(positions), map(np.asarray, jax.tree.leaves(positions)), strict=True))
    shapes = {name: variable.shape[:2] for name, variable in variables.items()}
    if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 2:
        raise ValueError(f"positions must share their first two axes, chains and draws; they have {shapes}.")
    return {name: np.moveaxis(variable, chain_axis, 0) for name, variable in variables.items()}


def ravelled_draws(positions) -> tuple[np.ndarray, Callable[[int], str]]:
    """Draws (num_chains, num_draws, d), and a function: index in d -> name of the coordinate.

    positions: leaves (num_draws, num_chains, ...). Raises ValueError as `to_arviz`.
    """
    variables = named_draws(positions).values()
    draws = [variable.reshape(*variable.shape[:2], math.prod(variable.shape[2:])) for variable in variables]
    return np.concatenate(draws, axis=2), partial(label, jax.tree.map(lambda leaf: leaf[0, 0], positions))


def to_arviz(states, infos=None, *, step_size=None, warmup: tuple[Any, Any] | None = None, chain_axis: int = 1):
    """A run as ArviZ's InferenceData (ArviZ 0.23) or DataTree (1.x).

    Parameters
    ----------
    states
        Trace of states of any BlackJAX-like kernel, leaves (num_draws, num_chains, ...) or, for one chain,
        (num_draws, ...). Or a trace of positions, leaves (num_draws, num_chains, ...).
    infos
        Trace of their infos. Fields with one number for each draw become sample statistics: acceptance_rate,
        is_accepted, step_size, diverging, ... A field without a chain axis is repeated for each chain.
    step_size
        The step size of a frozen kernel, () or (num_chains,). It becomes a sample statistic.
    warmup
        (states, infos) of the warm-up, kept apart in groups warmup_posterior and warmup_sample_stats.
    chain_axis
        Where the leaves have their chains: 1, as in a scan over many chains, or 0, as in a vmap over runs.

    Returns
    -------
    InferenceData or DataTree with the groups posterior and, if there are any statistics, sample_stats.

    Raises
    ------
    ImportError
        Without ArviZ.
    ValueError
        If the first two axes of leaves differ, if two leaves have the same name, or if `chain_axis` is not 0 or 1.

    Examples
    --------
    .. code-block:: python

        state, (states, infos) = run_inference_algorithm(rng_key, sampler, num_steps, initial_state=state)
        results = hm.to_arviz(states, infos)
        arviz.summary(results)
    """
    if chain_axis not in (0, 1):
        raise ValueError(f"chain_axis must be 0 or 1, got {chain_axis}.")
    groups: dict[str, Any] = _groups(states, infos, chain_axis, step_size)
    if warmup is not None:
        groups |= {f"warmup_{name}": group for name, group in _groups(*warmup, chain_axis).items()}
    return from_groups(groups)


def from_groups(groups: dict[str, Any], **options: Any):
    """InferenceData or DataTree of {group: {variable: (num_chains, num_draws, ...)}}.

    options: coords and dims, as for `arviz.from_dict`. Raises ImportError without ArviZ.
    """
    import arviz

    if arviz.__version__.startswith("0."):
        return arviz.from_dict(**groups, **options, save_warmup=True)
    return arviz.from_dict(groups, **options, save_warmup=True)


def _groups(states, infos, chain_axis, step_size=None):
    logdensity = _fields(getattr(states, "chains", states)).get("logdensity")
    if logdensity is not None and np.ndim(logdensity) == 1:  # one chain
        logdensity, states, infos = jax.tree.map(
            lambda leaf: np.expand_dims(leaf, chain_axis), (logdensity, states, infos)
        )
    variables = named_draws(getattr(states, "position", states), chain_axis)
    shape = next(iter(variables.values())).shape[:2]
    found = statistics(infos, logdensity, shape, chain_axis, step_size)
    return {"posterior": variables} | ({"sample_stats": found} if found else {})


def statistics(infos, logdensity, shape: tuple[int, int], chain_axis: int = 1, step_size=None) -> dict[str, np.ndarray]:
    """Fields of infos with a number for each draw, and the log-density, by ArviZ's names, (num_chains, num_draws).

    infos: may be None. shape: (num_chains, num_draws). chain_axis: as for `named_draws`. step_size: () or
    (num_chains,).
    """

    def per_draw(value):
        """The value as (num_chains, num_draws) if it has one number for each draw, else None."""
        found = getattr(value, "shape", None)
        if found == (shape if chain_axis == 0 else shape[::-1]):
            return np.moveaxis(np.asarray(value), chain_axis, 0)
        return np.broadcast_to(value, shape) if found == shape[1:] else None

    values = {_SCHEMA.get(name, name): per_draw(value) for name, value in _fields(infos).items()}
    values["lp"] = per_draw(logdensity)
    if step_size is not None:
        values["step_size"] = np.broadcast_to(np.asarray(step_size)[..., None], shape)
    return {name: value for name, value in values.items() if value is not None}


def _fields(record: Any) -> dict[str, Any]:
    return record._asdict() if hasattr(record, "_asdict") else {}
