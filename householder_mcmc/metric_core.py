"""Our learners in BlackJAX's warm-ups: a `MetricCore` for `blackjax.staged_adaptation`."""

from typing import NamedTuple

import jax.numpy as jnp
from blackjax.adaptation.metric_recipes import MetricCore
from blackjax.mcmc.metrics import LowRankInverseMassMatrix
from jax.flatten_util import ravel_pytree

from householder_mcmc.linalg import only_if
from householder_mcmc.schemes import Scheme
from householder_mcmc.two_ended import two_ended

__all__ = ["MetricCoreState", "metric_core"]


class MetricCoreState(NamedTuple):
    """inverse_mass_matrix: what was learnt at the last end of a window. scheme: the learner's state."""

    inverse_mass_matrix: LowRankInverseMassMatrix
    scheme: NamedTuple


def metric_core(scheme: Scheme | int) -> MetricCore:
    """A streaming learner as BlackJAX's metric adaptation, O(rank d) memory and no buffer of all draws.

    It learns from every draw of the slow windows and never starts anew; what it has learnt is put to use at the end of
    each window.

    Parameters
    ----------
    scheme
        `two_ended`, or `eigen` with an isotropic or unit tail. (A free tail has no BlackJAX inverse mass matrix.) A
        number stands for `two_ended(number)`.

    Returns
    -------
    MetricCore, which emits `LowRankInverseMassMatrix`.

    Raises
    ------
    ValueError
        On a rank below 1, or, at `init`, one that the scheme refuses.
    TypeError
        At `init`, on a map without a BlackJAX low-rank inverse mass matrix.

    Examples
    --------
    .. code::

        warmup = blackjax.staged_adaptation(blackjax.nuts, logdensity_fn, metric=hm.metric_core(32))
        (state, parameters), info = warmup.run(rng_key, position, num_steps=1000)
    """
    scheme = scheme if isinstance(scheme, Scheme) else two_ended(scheme)

    def inverse_mass_matrix(state):
        return scheme.preconditioner(state).to_inverse_mass_matrix()

    def init(n_dims):
        state = scheme.init(jnp.zeros((1, n_dims)))
        matrix = inverse_mass_matrix(state)
        if not isinstance(matrix, LowRankInverseMassMatrix):
            raise TypeError("the scheme must learn a LowRank map, such as hm.two_ended() or hm.eigen(2, 'isotropic').")
        return MetricCoreState(matrix, state)

    def update(state, position, grad):
        x, score = ravel_pytree(position)[0][None], ravel_pytree(grad)[0][None]
        learnt = only_if(state.scheme.count == 0, lambda _: scheme.init(x), state.scheme)  # the first draw is the start
        return state._replace(scheme=scheme.update(learnt, x, score))

    def final(state):
        return state._replace(inverse_mass_matrix=inverse_mass_matrix(state.scheme))

    return MetricCore(init, update, final)
