"""When a warm-up has learnt enough: judged by its chains and its step size, whatever the kernel.

The learning phase is looked at after 80 steps, and again each time that it has grown by a quarter. It has settled if

1. the learner has not started anew since the last look, the step size is not being searched for, and no chain has been
   behind for 1 to 150 steps of a known map, because such a chain may still arrive or be moved;
2. the step size is steady: the mean of log sigma since the last look is within 0.15 of the mean between the two looks
   before. Directions that are still too narrow would shorten it;
3. the chains agree: since the last look R-hat is below 1.1 for each coordinate and the log-density. Along directions
   that are still too wide they would stay apart. Directions along which the log-density may be constant do not count:
   along these no chains ever agree.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from blackjax.types import Array

__all__ = ["MOST_STEPS", "Settling"]

# Step of the first look, and the most steps of a warm-up that ends by itself. At 100 and at 2000 steps of warm-up the
# ESS per gradient of three targets is within a third of the best (`benchmarks/results/ablations.md`).
_FIRST_LOOK = 80
MOST_STEPS = 10_000

# From a look to the next one the number of steps grows by one part in this many.
_GROWTH = 4

# The largest change of the mean of log sigma between two looks. Its standard error is 0.05 for the acceptance rates of
# four chains over 16 steps.
_LARGEST_CHANGE = 0.15

# R-hat of n independent draws of each chain is about 1 + 1 / (2 n): 1.02 for the 20 steps before the second look, and
# 1.1 for the worst of 1000 coordinates.
_LARGEST_RHAT = 1.1


class Settling(NamedTuple):
    """What is known of whether a warm-up has settled.

    next_look (): the step at which it is looked at next.
    has_settled (): whether it had settled at a look so far.
    num_steps (): steps since the last look.
    log_sigma (): mean of log sigma over these steps.
    previous_log_sigma (): the same mean at the last look, infinite before there was one.
    center (num_chains, d + 1): positions and log-densities at the last look, or at the start.
    mean, squares (num_chains, d + 1): means, over the steps since then, of the deviations from the center and of their
    squares, without flat directions.
    """

    next_look: Array
    has_settled: Array
    num_steps: Array
    log_sigma: Array
    previous_log_sigma: Array
    center: Array
    mean: Array
    squares: Array

    @classmethod
    def start(cls, x: Array, logdensity: Array) -> "Settling":
        """Before the first look, of chains at x (num_chains, d) with log-densities (num_chains,)."""
        seen, zero = _seen(x, logdensity), jnp.zeros((), x.dtype)
        nothing = jnp.zeros_like(seen)
        return cls(
            next_look=jnp.asarray(_FIRST_LOOK, jnp.int32),
            has_settled=jnp.zeros((), bool),
            num_steps=zero,
            log_sigma=zero,
            previous_log_sigma=zero + jnp.inf,
            center=seen,
            mean=nothing,
            squares=nothing,
        )

    def watch(
        self,
        x: Array,
        logdensity: Array,
        log_sigma: Array,
        *,
        is_counted: Array,
        is_awaited: Array,
        steps_learnt: Array,
        is_sought: Array,
        count: Array,
        determined: Callable[[Array], Array] | None = None,
    ) -> "Settling":
        """After `count` steps, with chains at x (num_chains, d), log-densities (num_chains,) and log_sigma ().

        is_counted (num_chains,): chains that must agree. is_awaited (num_chains,): chains to wait for. steps_learnt ():
        since the learner last started anew. is_sought (): whether the step size is being searched for. determined:
        differences of positions (n, d) -> the same without flat directions; by default there is none.
        """

        def without_flat(differences):
            if determined is None:
                return differences
            return differences.at[:, :-1].set(determined(differences[:, :-1]))

        seen = _seen(x, logdensity)
        num = self.num_steps + 1
        deviation = without_flat(seen - self.center)
        new = self._replace(
            num_steps=num,
            log_sigma=self.log_sigma + (log_sigma - self.log_sigma) / num,
            mean=self.mean + (deviation - self.mean) / num,
            squares=self.squares + (deviation**2 - self.squares) / num,
        )
        has_rested = (steps_learnt.astype(num.dtype) >= num) & ~is_sought & ~jnp.any(is_awaited)
        is_steady = jnp.abs(new.log_sigma - self.previous_log_sigma) < _LARGEST_CHANGE
        apart = without_flat(self.center - jnp.mean(self.center, axis=0, where=is_counted[:, None])[None])
        agree = _rhat(apart + new.mean, new.squares - new.mean**2, is_counted) < _LARGEST_RHAT
        is_due = count >= self.next_look

        def at_look(there, here):
            return jnp.where(is_due, there, here)

        return Settling(
            next_look=at_look(self.next_look + (self.next_look + _GROWTH - 1) // _GROWTH, self.next_look),
            has_settled=self.has_settled | (is_due & has_rested & is_steady & agree),
            num_steps=at_look(0, num),
            log_sigma=at_look(0, new.log_sigma),
            previous_log_sigma=at_look(new.log_sigma, self.previous_log_sigma),
            center=at_look(seen, self.center),
            mean=at_look(0, new.mean),
            squares=at_look(0, new.squares),
        )


def _seen(x, logdensity):
    """Positions and log-densities, (num_chains, d + 1)."""
    return jnp.concatenate([x, logdensity.astype(x.dtype)[:, None]], axis=1)


def _rhat(means, variances, is_counted):
    """The largest R-hat of the chains that are counted, (); 1 if that is only one.

    means, variances (num_chains, d + 1), by chain. R-hat is sqrt(1 + B / W), with B the variance of the chains' means
    and W the mean of their variances.
    """
    num_chains = jnp.sum(is_counted).astype(means.dtype)

    def total(of_chains):
        return jnp.sum(jnp.where(is_counted[:, None], of_chains, 0), axis=0)

    within = total(variances) / num_chains
    between = total((means - total(means)[None] / num_chains) ** 2) / jnp.maximum(num_chains - 1, 1)
    rhat = jnp.max(jnp.where(between > 0, jnp.sqrt(1 + between / within), 1))
    return jnp.where(num_chains > 1, rhat, 1)
