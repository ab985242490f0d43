"""When a warm-up has learnt enough: told by its chains and its step size, without any kernel.

The learning phase is looked at after 80 steps, and again each time that it is longer by a quarter. It has settled if

1. the learner has not started anew since the last look, the step size is not being sought, and no chain fell behind
   so lately that it may still arrive or be moved;
2. the step size has changed by less than 15%, in the mean over the steps between two looks: directions that are still
   too narrow shorten it;
3. the chains agree, R-hat below 1.1 over the steps since the last look, on each coordinate and on the log-density:
   along directions that are still too wide they would stay apart.
"""

from typing import NamedTuple

import jax.numpy as jnp
from blackjax.types import Array

__all__ = ["MOST_STEPS", "Settling"]

# Steps of the first look, and the most there are. At 100 and at 2000 steps of warm-up the ESS per gradient of three
# targets is within a third of the best (`benchmarks/results/ablations.md`).
_FIRST_LOOK = 80
MOST_STEPS = 10_000

# Each look is later than the one before by this part of its steps.
_GROWTH = 4

# The largest change of log sigma. Acceptance rates of four chains over 16 steps leave it a standard error of 0.05.
_LARGEST_CHANGE = 0.15

# R-hat of draws that all count is about 1 + 1 / (2 n) for n of them: 1.02 for the 20 steps before the second look, 1.1
# for the worst of 1000 coordinates.
_LARGEST_RHAT = 1.1


class Settling(NamedTuple):
    """next_look (): number of steps. has_settled ().

    Since the last look: num_steps (); log_sigma (), its mean; center, mean and squares (num_chains, d + 1), of
    positions and log-density about the center. previous_log_sigma (): the mean before the last look.
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
        """Of chains at x (num_chains, d)."""
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
    ) -> "Settling":
        """After `count` steps, with chains at x (num_chains, d).

        is_counted, is_awaited (num_chains,): chains that must agree, and those that are waited for.
        """
        seen = _seen(x, logdensity)
        num = self.num_steps + 1
        deviation = seen - self.center
        new = self._replace(
            num_steps=num,
            log_sigma=self.log_sigma + (log_sigma - self.log_sigma) / num,
            mean=self.mean + (deviation - self.mean) / num,
            squares=self.squares + (deviation**2 - self.squares) / num,
        )
        has_rested = (steps_learnt.astype(num.dtype) >= num) & ~is_sought & ~jnp.any(is_awaited)
        is_steady = jnp.abs(new.log_sigma - self.previous_log_sigma) < _LARGEST_CHANGE
        agree = _rhat(new, is_counted) < _LARGEST_RHAT
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
    return jnp.concatenate([x, logdensity.astype(x.dtype)[:, None]], axis=1)


def _rhat(settling, is_counted):
    """The largest R-hat of the chains that are counted, (); 1 if there is one."""
    num_chains = jnp.sum(is_counted).astype(settling.mean.dtype)

    def total(of_chains):
        return jnp.sum(jnp.where(is_counted[:, None], of_chains, 0), axis=0)

    means = settling.center + settling.mean
    within = total(settling.squares - settling.mean**2) / num_chains
    between = total((means - total(means)[None] / num_chains) ** 2) / jnp.maximum(num_chains - 1, 1)
    rhat = jnp.max(jnp.where(between > 0, jnp.sqrt(1 + between / within), 1))
    return jnp.where(num_chains > 1, rhat, 1)
