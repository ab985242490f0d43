"""Our learners in BlackJAX's warm-ups: a `MetricCore` for `blackjax.staged_adaptation`."""

from numbers import Integral
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from blackjax.adaptation.metric_recipes import MetricCore
from blackjax.mcmc.metrics import LowRankInverseMassMatrix
from jax import Array
from jax.flatten_util import ravel_pytree

from householder_mcmc.learners.scheme import Scheme, only_if
from householder_mcmc.learners.two_ended import two_ended
from householder_mcmc.preconditioners.checks import require_numbers
from householder_mcmc.preconditioners.maps import LowRank

__all__ = ["MetricCoreState", "metric_core"]


class MetricCoreState(NamedTuple):
    """count (): draws seen. inverse_mass_matrix: as learnt at the last end of a window. scheme: the learner's state."""

    count: Array
    inverse_mass_matrix: LowRankInverseMassMatrix
    scheme: Any


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
        On a rank below 1, or, at `init`, one that the scheme refuses, or d = 0.
    TypeError
        If it is neither a `Scheme` nor an integer, or, at `init`, a scheme whose map is no `LowRank`.

    Examples
    --------
    .. code::

        warmup = blackjax.staged_adaptation(blackjax.nuts, logdensity_fn, metric=hm.metric_core(32))
        (state, parameters), info = warmup.run(rng_key, position, num_steps=1000)
    """
    if isinstance(scheme, Integral):
        scheme = two_ended(int(scheme))
    if not isinstance(scheme, Scheme):
        raise TypeError(f"metric_core takes a rank or a Scheme, such as hm.two_ended(), got {scheme!r}.")

    def init(n_dims):
        start = jnp.zeros((1, n_dims))
        require_numbers(start)
        state = scheme.init(start)
        preconditioner = scheme.preconditioner(state)
        if not isinstance(preconditioner, LowRank):
            raise TypeError(
                "metric_core takes a scheme that learns a LowRank map, such as hm.two_ended() or "
                f"hm.eigen(2, 'isotropic'); this one learns a {type(preconditioner).__name__}."
            )
        return MetricCoreState(jnp.zeros((), jnp.int32), preconditioner.to_inverse_mass_matrix(), state)

    def update(state, position, grad):
        x, score = ravel_pytree(position)[0][None], ravel_pytree(grad)[0][None]
        learnt = only_if(state.count == 0, lambda _: scheme.init(x), state.scheme)  # the first draw is the start
        return state._replace(count=optax.safe_increment(state.count), scheme=scheme.update(learnt, x, score))

    def final(state):
        preconditioner: Any = scheme.preconditioner(state.scheme)
        return state._replace(inverse_mass_matrix=preconditioner.to_inverse_mass_matrix())

    return MetricCore(init, update, final)
