"""Our learners in BlackJAX's warm-ups: a `MetricCore` for `blackjax.staged_adaptation`."""

from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import jax
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
    """State of `metric_core`.

    count (): draws seen. inverse_mass_matrix: what was learnt up to the end of the last window. scheme: the learner's
    state.
    """

    count: Array
    inverse_mass_matrix: LowRankInverseMassMatrix
    scheme: Any


def metric_core(scheme: Scheme | int | None = None, *, initial: Any = None) -> MetricCore:
    """A learner of this library as BlackJAX's metric adaptation, in O(rank d) memory, without a buffer of all draws.

    It learns from every draw of the slow windows, and never starts anew. At the end of each window what it has learnt
    becomes the inverse mass matrix. It skips a draw that is not finite, or whose score is not. Draws are cast to the
    dtype of the state.

    Parameters
    ----------
    scheme
        `two_ended`, or `eigen` with an isotropic or unit tail. (A free tail has no BlackJAX inverse mass matrix.) A
        number stands for `two_ended(number)`, and None for `two_ended()`, which chooses its rank.
    initial
        A map that is known, in any form that `as_preconditioner` takes: the scheme begins with it.

    Returns
    -------
    MetricCore, which emits `LowRankInverseMassMatrix`.

    Raises
    ------
    ValueError
        On a rank below 1. At `init`, if d = 0, or the scheme refuses its rank or cannot begin with `initial`. At
        `final`, if an inverse mass matrix given at the start is of another rank.
    TypeError
        If `scheme` is neither a `Scheme` nor an integer. At `init`, if the map of the scheme is no `LowRank`.

    Examples
    --------
    .. code-block:: python

        warmup = blackjax.staged_adaptation(blackjax.nuts, logdensity_fn, metric=hm.metric_core())
        (state, parameters), info = warmup.run(rng_key, position, num_steps=1000)
    """
    if scheme is None:
        scheme = two_ended()
    elif isinstance(scheme, Integral):
        scheme = two_ended(int(scheme))
    if not isinstance(scheme, Scheme):
        raise TypeError(f"metric_core takes a rank or a Scheme, such as hm.two_ended(), got {scheme!r}.")

    def begin(x):
        state = scheme.init(x)
        return state if initial is None else scheme.begin_with(state, initial)

    def init(n_dims):
        start = jnp.zeros((1, n_dims))
        require_numbers(start)
        state = begin(start)
        preconditioner = scheme.preconditioner(state)
        if not isinstance(preconditioner, LowRank):
            raise TypeError(
                "metric_core takes a scheme that learns a LowRank map, such as hm.two_ended() or "
                f"hm.eigen(2, 'isotropic'); this one learns a {type(preconditioner).__name__}."
            )
        return MetricCoreState(jnp.zeros((), jnp.int32), preconditioner.to_inverse_mass_matrix(), state)

    def update(state, position, grad):
        dtype = _dtype(state)
        x, score = (ravel_pytree(tree)[0].astype(dtype)[None] for tree in (position, grad))

        def learn(state):
            learner = only_if(state.count == 0, lambda learner: start(learner, x), state.scheme)
            return state._replace(count=optax.safe_increment(state.count), scheme=scheme.update(learner, x, score))

        return only_if(jnp.all(jnp.isfinite(x) & jnp.isfinite(score)), learn, state)

    def start(learner, x):
        """The learner, begun at the first draw x (1, d). One that is not as `init` makes it was given, and stays."""
        return jax.tree.map(partial(jnp.where, _are_equal(learner, begin(jnp.zeros_like(x)))), begin(x), learner)

    def final(state):
        dim = state.inverse_mass_matrix.sigma.shape[0]
        preconditioner: Any = scheme.preconditioner(state.scheme)
        # a learner that has learnt nothing yet does not replace an inverse mass matrix given at the start
        is_that_of_the_start = _are_equal(
            preconditioner, scheme.preconditioner(begin(jnp.zeros((1, dim), _dtype(state))))
        )
        new, old = preconditioner.to_inverse_mass_matrix(), state.inverse_mass_matrix
        shapes, given = (jax.tree.map(jnp.shape, each) for each in (new, old))
        if shapes != given:
            raise ValueError(f"an inverse mass matrix given at the start must have shapes {shapes}, got {given}.")
        in_use = jax.tree.map(partial(jnp.where, is_that_of_the_start), old, new)
        return state._replace(inverse_mass_matrix=in_use)

    return MetricCore(init, update, final)


def _dtype(state):
    return state.inverse_mass_matrix.sigma.dtype


def _are_equal(one, other):
    return jnp.all(jnp.array([jnp.all(x == y) for x, y in zip(*map(jax.tree.leaves, (one, other)), strict=True)]))
