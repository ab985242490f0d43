"""What an optimiser gets: samples and scores as arrays, without those that are not finite."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from householder_mcmc.preconditioners.checks import require_integer

__all__ = ["Batch", "check_size", "clean", "keep_if_usable"]


class Batch(NamedTuple):
    """samples (batch, d), scores (batch, d), weights (batch,).

    A weight is 0 if the sample was dropped, and otherwise 1 / (number of samples that were not).
    """

    samples: Array
    scores: Array
    weights: Array


def check_size(batch_size: int) -> None:
    """Raise ValueError unless a batch has two samples or more, TypeError if their number is no integer."""
    require_integer("the number of samples of a batch", batch_size, least=2)


def clean(samples, scores, mean: Array) -> Batch:
    """The `Batch` of samples and scores, which are positions with a leading axis.

    mean (d,): the ravelled mean of the parameters. It replaces samples that are dropped, and zero their scores. Raises
    ValueError on other shapes, or a batch below 2.
    """
    samples, scores = _ravel_rows(samples), _ravel_rows(scores)
    if samples.shape != scores.shape or samples.shape[1:] != mean.shape:
        raise ValueError(
            f"samples and scores must have shape (batch, d) with d = {mean.shape[0]}, "
            f"got {samples.shape} and {scores.shape}."
        )
    check_size(samples.shape[0])
    is_finite = jnp.all(jnp.isfinite(samples) & jnp.isfinite(scores), axis=1)
    weights = is_finite.astype(mean.dtype) / jnp.maximum(jnp.sum(is_finite), 1).astype(mean.dtype)
    return Batch(jnp.where(is_finite[:, None], samples, mean[None]), jnp.where(is_finite[:, None], scores, 0), weights)


def keep_if_usable(batch: Batch, updates, state, old_state):
    """(updates, state), or zero updates and the old state if no sample is left or an update is not finite."""
    is_usable = jnp.any(batch.weights > 0) & jnp.all(jnp.isfinite(ravel_pytree(updates)[0]))
    updates = jax.tree.map(lambda update: jnp.where(is_usable, update, 0), updates)
    return updates, jax.tree.map(lambda new, old: jnp.where(is_usable, new, old), state, old_state)


def _ravel_rows(tree):
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    if not leaves or any(leaf.ndim == 0 or leaf.shape[0] != leaves[0].shape[0] for leaf in leaves):
        raise ValueError(f"samples and scores must have a leading batch axis, got {[leaf.shape for leaf in leaves]}.")
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)
