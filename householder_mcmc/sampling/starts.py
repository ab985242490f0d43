"""Where chains start: apart, and where the log-density is finite."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from householder_mcmc.mcmc.logdensity import value_and_grad
from householder_mcmc.preconditioners.checks import require_numbers
from householder_mcmc.preconditioners.maps import cast_floats
from householder_mcmc.results.diagnostics import MANY_CHAINS
from householder_mcmc.sampling.model import Model
from householder_mcmc.sharing import brief_program

__all__ = ["find_starts", "find_superchains"]

# Each coordinate of a start is uniform within this distance of the initial position, as in PyMC and nutpie.
_SPREAD = 1.0

# Places where many chains begin, several at each. The chains of a place are a superchain, and the superchains' means
# say whether chains have forgotten their start. Chosen, without a source: the variance of 16 means is known to 37%, and
# four or more chains are left for each.
_NUM_SUPERCHAINS = 16

# A start with a log-density that is not finite is drawn anew, until it has been drawn this many times. Around an
# initial position the distance is halved each time, to 2e-3 in the end.
_MOST_ATTEMPTS = 10


def find_starts(model: Model, initial: Any, starts: Any, rng_key, num_chains: int, dtype: Any = None) -> Any:
    """Starts: positions whose leaves have a leading axis of length num_chains.

    initial: one position, a function of a key, or positions with a chain axis; None: that of the model. starts:
    positions with a chain axis, or None. dtype: what positions are cast to, None to leave theirs. Raises ValueError and
    TypeError as `hm.sample`.
    """
    positions = _find_starts(model, initial, starts, rng_key, num_chains)
    return positions if dtype is None else cast_floats(positions, dtype)


def find_superchains(positions: Any) -> np.ndarray:
    """A number for each chain, (num_chains,), of positions with a chain axis.

    Neighbouring chains with equal positions have the same number.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(positions)]
    is_new = [np.any(leaf[1:] != leaf[:-1], axis=tuple(range(1, leaf.ndim))) for leaf in leaves]
    return np.cumsum(np.concatenate([[0], np.any(is_new, axis=0)])).astype(np.int32)


def _find_starts(model, initial, starts, rng_key, num_chains):
    if starts is not None:
        if initial is not None:
            raise ValueError("give either `initial` or `starts`, not both.")
        return starts
    if initial is None:
        if model.initial is None:
            raise ValueError("a log-density needs `initial`: a position, or a function of a random key.")
        initial = model.initial
    elif not callable(initial):
        initial = _as_floats(initial)
        if _has_chain_axis(model.logdensity, initial, num_chains):
            return initial
    if not callable(initial):
        initial = _as_floats(initial)
        jax.eval_shape(value_and_grad(model.logdensity), initial)  # says what a log-density must be
    return _draw_starts(model.logdensity, initial, rng_key, num_chains)


def _as_floats(initial):
    """The position as arrays, Python's numbers in the default precision."""
    require_numbers(initial)

    def convert(path, leaf):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int):
            where = jax.tree_util.keystr(path)
            raise TypeError(f"initial{where} must be an array, got {type(leaf).__name__}.")
        value = jnp.asarray(float(leaf) if type(leaf) is int else leaf)
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise TypeError(f"initial{jax.tree_util.keystr(path)} must be floating point, got {value.dtype}.")
        return value

    return jax.tree_util.tree_map_with_path(convert, initial)


def _has_chain_axis(logdensity, initial, num_chains):
    """Whether a position is that of `num_chains` chains. Raises ValueError if it may be both."""
    if any(jnp.shape(leaf)[:1] != (num_chains,) for leaf in jax.tree.leaves(initial)):
        return False
    is_one = _is_position(logdensity, initial)
    is_many = _is_position(logdensity, jax.tree.map(lambda leaf: leaf[0], initial))
    if is_one and is_many:
        raise ValueError(
            f"`initial` may be one position or those of {num_chains} chains: the log-density takes both. Give the "
            "positions of chains as `starts`, and one position as hm.Model(logdensity, initial)."
        )
    return is_many


def _is_position(logdensity, position):
    """Whether the log-density takes a position, and returns one number."""
    try:
        value = jax.eval_shape(logdensity, position)
    except Exception:  # whatever a log-density raises when it is given something else
        return False
    return getattr(value, "shape", None) == ()


def _draw_starts(logdensity, initial, rng_key, num_chains):
    """Starts around the position `initial`, or those that it returns if it is a function.

    64 chains and more share 16 starts. Starts where the log-density is not finite are drawn anew.
    """
    num_starts = num_chains if num_chains < MANY_CHAINS else _NUM_SUPERCHAINS
    keys = jax.random.split(rng_key, num_starts)[np.arange(num_chains) * num_starts // num_chains]
    positions, is_bad = None, np.full(num_chains, True)
    for attempt in range(_MOST_ATTEMPTS):
        if callable(initial):
            drawn = jax.vmap(lambda key: initial(jax.random.fold_in(key, attempt)))(keys)  # noqa: B023
            finite = _are_finite(logdensity)(drawn)
        else:
            drawn, finite = _draw_around(logdensity)(keys, initial, attempt)
        positions = drawn if positions is None else jax.tree.map(_choose(is_bad), drawn, positions)
        is_bad = is_bad & ~np.asarray(finite)
        if not is_bad.any():
            break
    return positions  # the warm-up raises an error that names those which are still not finite


def _choose(is_chosen):
    """A function (x, y) -> x of the chains that are chosen, y of the others."""
    return lambda x, y: jnp.where(is_chosen.reshape(-1, *[1] * (x.ndim - 1)), x, y)


@brief_program
def _are_finite(logdensity):
    return lambda positions: jnp.isfinite(jax.vmap(logdensity)(positions))


@brief_program
def _draw_around(logdensity):
    """(keys, initial, attempt) -> positions around `initial`, and whether the log-density is finite at each."""

    def draw(keys, initial, attempt):
        def around(key):
            leaves, structure = jax.tree.flatten(initial)
            parts = zip(jax.random.split(jax.random.fold_in(key, attempt), len(leaves)), leaves, strict=True)
            distance = _SPREAD * 0.5**attempt
            moved = [x + (distance * jax.random.uniform(k, x.shape, x.dtype, -1, 1)).astype(x.dtype) for k, x in parts]
            return jax.tree.unflatten(structure, moved)

        positions = jax.vmap(around)(keys)
        return positions, jnp.isfinite(jax.vmap(logdensity)(positions))

    return draw
