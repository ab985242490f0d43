"""The step size that chains share, adapted to their acceptance rates alone.

While it is far off it is searched for: log sigma moves by up to log 4 a step. Then it is followed: log sigma moves by
the gain times the mean of acceptance minus target.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import optax
from blackjax.types import Array

__all__ = ["StepSize", "search_move", "start_search", "weigh"]

# In the search the step size changes by up to this factor in a step: by all of it at an acceptance of 0 or 1. So it
# goes from 1e-6 to 1 in ten steps. (With 1.2, about what one step of a gain of 1 can do, `chirp` takes 400.)
_SEARCH = 4.0

# The search begins again if the running mean of the acceptance is above target + 0.75 (1 - target) or below
# target - 0.6 target. At a target of 0.8 that is above 0.95, where the step is half of the right one, or below 0.32.
# The mean remembers at least 32 rates. A mean of 32 acceptance rates of a Gaussian has a standard deviation of 0.045.
_FAR_ABOVE, _FAR_BELOW = 0.75, 0.6
_FEWEST_RATES = 32

# It also remembers at least this many steps, because the first eight gains, from 0.62 on, may change log sigma by more
# than log 4 without a search.
_FEWEST_STEPS = 8

# A chain that accepts less than this share of the target counts as stuck. Five standard errors of its mean rate fit
# between, see `_ACCEPTANCE_MEMORY` in `adaptive`.
_STUCK = 0.7

# What is added to a chain's rate where its weight divides by it. A chain that accepts nothing has the weight
# (0.7 target / 0.01)^2, about 3000 for HMC and 1600 for MALA: as many chains do not outvote it.
_SMALLEST_RATE = 0.01


class StepSize(NamedTuple):
    """State of the step size.

    log_sigma (): log of the scale of a move in whitened coordinates.
    first_error_sign (): +1 if the acceptance began above its target, -1 below, 0 if unknown.
    count (): steps since the acceptance was first on the other side of its target; 0 during a search.
    recent_error (): running mean of acceptance minus target since the search last began.
    """

    log_sigma: Array
    first_error_sign: Array
    count: Array
    recent_error: Array

    def seek(self, is_due: Array | bool) -> "StepSize":
        """Where `is_due`, begin a search from the present log sigma."""
        nothing = start_search(self.log_sigma)
        return StepSize(*(jnp.where(is_due, new, old) for new, old in zip(nothing, self, strict=True)))

    def follow(
        self,
        errors: Array,
        weights: Array,
        target: float | Array,
        gain: optax.Schedule,
        may_search: bool | Array = True,
        longest: float | Array = math.inf,
    ) -> "StepSize":
        """The step size after a transition of all chains.

        In a search log sigma moves by `search_move` of the plain mean error. Otherwise it moves by the gain times the
        weighted mean error. A search ends once the mean error has changed its sign.

        errors (num_chains,): acceptance rates minus target. weights (num_chains,): as from `weigh`, 0 for chains that
        do not count. gain: of `count`. may_search (): whether a search may go on or begin. longest (): the largest
        sigma. Where that is reached, acceptance above the target is no error, and ends a search.
        """
        dtype = self.log_sigma.dtype
        error = _mean(errors, (weights > 0).astype(errors.dtype))
        first_error_sign = jnp.where(self.first_error_sign == 0, jnp.sign(error), self.first_error_sign)
        highest = jnp.log(jnp.asarray(longest, dtype))
        is_longest = (self.log_sigma >= highest) & (error > 0)
        error = jnp.where(is_longest, 0, error)
        has_crossed = (self.count > 0) | (first_error_sign * error < 0) | is_longest | ~jnp.asarray(may_search)
        gain_now = jnp.asarray(gain(self.count), dtype)
        move = jnp.where(has_crossed, gain_now * _mean(errors, weights), search_move(error, target))
        lowest = 2 * math.log(jnp.finfo(dtype).eps)  # a shorter step moves nothing that is of size eps or more

        # Where the gain is small, the memory is 1 / gain. So with gains that decay, searches come to an end.
        memory = jnp.maximum(max(_FEWEST_RATES / len(errors), _FEWEST_STEPS), 1 / gain_now)
        recent_error = self.recent_error + (error - self.recent_error) / memory
        is_far = (recent_error > _FAR_ABOVE * (1 - target)) | (recent_error < -_FAR_BELOW * target)
        followed = StepSize(
            log_sigma=jnp.clip(self.log_sigma + move, lowest, highest).astype(dtype),
            first_error_sign=first_error_sign.astype(dtype),
            count=jnp.where(has_crossed, optax.safe_increment(self.count), 0),
            recent_error=recent_error.astype(dtype),
        )
        return followed.seek(is_far & may_search)


def start_search(log_sigma: Array) -> StepSize:
    """A step size at the beginning of a search."""
    zero = jnp.zeros((), log_sigma.dtype)
    return StepSize(log_sigma, first_error_sign=zero, count=jnp.zeros((), jnp.int32), recent_error=zero)


def search_move(error: Array, target: float | Array) -> Array:
    """What a search adds to log sigma, by the error of the acceptance: log 4 at an acceptance of 1, -log 4 at 0.

    It is linear in the error on either side of the target. error: acceptance minus target, of any shape.
    """
    return math.log(_SEARCH) * error / jnp.where(error > 0, 1 - target, target)


def weigh(acceptance_rate: Array, is_counted: Array, target: float | Array) -> Array:
    """The weights of chains, (num_chains,), by their running mean acceptance rates, (num_chains,).

    Chains have weight 1. One that accepts less than 0.7 of the target has weight (0.7 target / (rate + 0.01))^2, so
    that it is not outvoted. One that is not counted has weight 0.
    """
    shortfall = _STUCK * target / (acceptance_rate + _SMALLEST_RATE)
    return jnp.where(is_counted, jnp.maximum(1, shortfall) ** 2, 0)


def _mean(values, weights):
    return jnp.sum(weights * values) / jnp.maximum(jnp.sum(weights), 1)
