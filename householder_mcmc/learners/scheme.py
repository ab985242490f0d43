"""What a learner is: a `Scheme`, three pure functions that know nothing of the kernel that makes the draws.

Draws come as (num_chains, d) arrays, and all increments are averaged over the chains. This file has the type, the
schemes that learn nothing, and the conditional update that the others use. Each learner has a file of its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from householder_mcmc.learners.gains import Gains
from householder_mcmc.preconditioners.maps import Diagonal, Preconditioner, as_preconditioner, cast_floats
from householder_mcmc.sharing import shared

__all__ = ["Scheme", "none", "fixed", "only_if"]


class Scheme(NamedTuple):
    """A learner of preconditioners. Schemes made with equal arguments are equal, so that they share compiled programs.

    init: starting positions (num_chains, d) -> state, a pytree of arrays.
    update: (state, positions, scores) -> state. Positions and scores, the gradients of the log-density there, are
    (num_chains, d). Some schemes do without scores.
    preconditioner: state -> `Preconditioner`.
    gains: the `Gains` of the learner, if it has any.
    forget: (state, positions) -> state. Optional: drop the draws, keep the map. Without it the learner restarts from
    `init`.
    center: state -> (d,), the mean of the Gaussian that is learnt, NaN where none fits. Optional: without it no sampler
    solves that Gaussian.
    explained: state -> (), how much of the scores a linear function of the draws explains, between 0 and 1, on draws
    that were not learnt from. Optional.
    determined: (state, differences of positions (n, d)) -> (n, d), what is left of them without the directions along
    which the log-density may be constant. Optional: without it no direction is.
    begin: (state, preconditioner) -> state. Optional: of a state that has seen no draw, one that has learnt the given
    map.

    Counters stop at 2^31 - 1 updates, where gains like 1 / t are below rounding in float32. From then on a learner
    skips what it does at every n-th update, n > 1, and its map may stay as it is.
    """

    init: Callable[[Array], Any]
    update: Callable[..., Any]
    preconditioner: Callable[[Any], Preconditioner]
    gains: Gains | None = None
    forget: Callable[[Any, Array], Any] | None = None
    begin: Callable[[Any, Preconditioner], Any] | None = None
    center: Callable[[Any], Array] | None = None
    explained: Callable[[Any], Array] | None = None
    determined: Callable[[Any, Array], Array] | None = None

    def start_anew(self, state: Any, positions: Array) -> Any:
        """The state to go on with where all draws so far came from elsewhere."""
        return self.init(positions) if self.forget is None else self.forget(state, positions)

    def begin_with(self, state: Any, inverse_mass_matrix: Any) -> Any:
        """The state, which has seen no draw, with a known map.

        inverse_mass_matrix: whatever `as_preconditioner` takes. Raises ValueError if the scheme cannot begin with a
        map, or not with this one.
        """
        if self.begin is None:
            raise ValueError("this scheme cannot begin with a known map; hm.two_ended can.")
        return self.begin(state, as_preconditioner(inverse_mass_matrix))


@shared
def none() -> Scheme:
    """Learn nothing: L = I."""
    return Scheme(lambda positions: Diagonal(jnp.ones_like(positions[0])), _keep, _identity)


def fixed(preconditioner) -> Scheme:
    """Learn nothing: use a given preconditioner or BlackJAX inverse mass matrix.

    Its arrays are compiled into programs, so another preconditioner compiles again.

    Raises
    ------
    TypeError, ValueError
        As `as_preconditioner`; also ValueError at `init` if it does not act on vectors of the positions' length.
    """
    preconditioner = as_preconditioner(preconditioner)

    def init_fn(positions):
        try:
            image = jax.eval_shape(preconditioner.apply, positions[0])
        except (TypeError, ValueError):
            image = None
        if image is None or image.shape != positions[0].shape:
            raise ValueError(f"the fixed preconditioner does not act on positions with d = {positions.shape[1]}.")
        return cast_floats(preconditioner, positions.dtype)

    return Scheme(init_fn, _keep, _identity)


def only_if(is_due: Array, update: Callable, carry):
    """update(carry) if is_due, else carry, as a loop of at most one pass.

    A loop, because `lax.cond` copies what it passes on, and under vmap computes both sides at every call.
    """
    return lax.while_loop(
        lambda state: state[0], lambda state: (jnp.zeros_like(state[0]), update(state[1])), (is_due, carry)
    )[1]


def _keep(state, positions, scores=None):
    del positions, scores
    return state


def _identity(state):
    return state
