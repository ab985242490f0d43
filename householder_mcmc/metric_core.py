"""Our learner in BlackJAX's warm-ups: a `MetricCore` for `blackjax.staged_adaptation`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.adaptation.metric_recipes import MetricCore
from blackjax.mcmc.metrics import LowRankInverseMassMatrix
from jax import Array
from jax.flatten_util import ravel_pytree

from householder_mcmc.gains import AVERAGED_GAINS, Gains
from householder_mcmc.schemes import eigen

__all__ = ["MetricCoreState", "metric_core"]


class MetricCoreState(NamedTuple):
    """inverse_mass_matrix: what was learnt at the last end of a window. count (): updates made. scheme: its state."""

    inverse_mass_matrix: LowRankInverseMassMatrix
    count: Array
    scheme: NamedTuple


def metric_core(rank: int, tail: str = "isotropic", gains: Gains = AVERAGED_GAINS) -> MetricCore:
    """The streaming eigen learner as BlackJAX's metric adaptation, O(rank d) memory and no buffer of draws.

    It learns from every draw of the slow windows and never starts anew; what it has learnt is put to use at the end of
    each window.

    Parameters
    ----------
    rank
        Number of eigenvectors, 1 <= rank <= d.
    tail
        "isotropic" or "unit", as for `eigen`. (A free tail has no BlackJAX inverse mass matrix.)
    gains
        As for `eigen`.

    Returns
    -------
    MetricCore, which emits `LowRankInverseMassMatrix`.

    Raises
    ------
    ValueError
        On another tail, a rank below 1, or, at `init`, above d.

    Examples
    --------
    .. code::

        warmup = blackjax.staged_adaptation(blackjax.nuts, logdensity_fn, metric=hm.metric_core(rank=10))
        (state, parameters), info = warmup.run(rng_key, position, num_steps=1000)
    """
    if tail == "free":
        raise ValueError("tail must be 'isotropic' or 'unit': BlackJAX has no inverse mass matrix for a free tail.")
    scheme = eigen(rank, tail, gains)

    def inverse_mass_matrix(state):
        return scheme.preconditioner(state).to_inverse_mass_matrix()

    def init(n_dims):
        state = scheme.init(jnp.zeros((1, n_dims)))
        return MetricCoreState(inverse_mass_matrix(state), jnp.zeros((), jnp.int32), state)

    def update(state, position, grad):
        del grad
        draws = ravel_pytree(position)[0][None]
        start = scheme.init(draws)
        learnt = jax.tree.map(lambda new, old: jnp.where(state.count == 0, new, old), start, state.scheme)
        return state._replace(count=state.count + 1, scheme=scheme.update(learnt, draws))

    def final(state):
        return state._replace(inverse_mass_matrix=inverse_mass_matrix(state.scheme))

    return MetricCore(init, update, final)
