"""Further trials with shorter steps, where a trajectory fails in a narrow place.

Where the target is so narrow that steps of this size fail, a chain would stay for hundreds of transitions. There it
tries again from the same momenta, for the same time, with steps of a quarter, then of a sixteenth, and so on. A trial
fails if its energy grows by more than 10 nats and it is not accepted all the same.

Let r_i(x) be the probability that trial i from x (position and momenta) fails. Trial k from x to y, the first that does
not fail, is accepted with probability min(1, pi(y) / pi(x)) min(1, R), where R is the product of r_i(y) / r_i(x) over
i < k. So trials 0, ..., k - 1 are made from y too, with the momenta reversed, and all must fail there. This keeps
detailed balance: k is an auxiliary variable, drawn given x.

How many trials a transition may have is drawn without regard to the state: k more with probability 4^(1 - k) at least,
so that each number of them costs the same gradients on average.

Source: Modi, Barnett & Carpenter (2023), Delayed rejection Hamiltonian Monte Carlo; Bou-Rabee, Carpenter & Marsden
(2024) on step sizes that are auxiliary variables.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import Array, PRNGKey

from householder_mcmc.mcmc.metropolis import is_finite

__all__ = ["Trials", "find_most_trials", "may_fail", "try_again"]

# Growth of the energy above which a trial may fail, in nats. It is then accepted once in 20,000 times. With 3 nats in
# place of 10, ESS per gradient is the same on the log-Gaussian Cox process and the Gaussian process, and 0.9 times as
# large on breast cancer, where more is tried in vain.
_HOPELESS = 10

# How many times shorter, and more, the steps of each trial are than those of the one before. Modi et al. divide by 2 to
# 10.
_SHORTER = 4


class Trials(NamedTuple):
    """The further trials of a transition.

    is_accepted (): whether one was accepted.
    end: where the last one from the state ended: (move, momentum, score, state), with the momentum reversed.
    log_ratio (): logarithm of the Metropolis ratio of that end; of the first trial, if there were no others.
    num_steps (): integration steps of all.
    """

    is_accepted: Array
    end: Any
    log_ratio: Array
    num_steps: Array


class _Carry(NamedTuple):
    """Between two trials. back: number of the next one from the other end, -1 while they are from the state."""

    is_open: Array
    number: Array
    back: Array
    log_balance: Array
    trials: Trials


def find_most_trials(uniform: Array, rate: float | Array, num_steps: Array, max_steps: Array) -> Array:
    """Most further trials of a transition, (): at least one with probability `rate`, each more with a quarter of that.

    None has more than max_steps steps. uniform (): drawn from (0, 1). num_steps (): of the first trial.
    """
    drawn = 1 + jnp.log(rate / jnp.maximum(uniform, jnp.finfo(uniform.dtype).tiny)) / math.log(_SHORTER)
    allowed = jnp.log(max_steps / num_steps) / math.log(_SHORTER)
    return jnp.floor(jnp.clip(drawn, 0, allowed)).astype(jnp.int32)


def may_fail(log_ratio: Array, end: Any) -> Array:
    """Whether the energy grew by so much, to a finite state, that shorter steps may be tried, ().

    Where a state is not finite the target may end, and shorter steps would end beyond it too.
    """
    return (log_ratio < -_HOPELESS) & is_finite(end)


def try_again(
    rng_key: PRNGKey,
    follow: Callable,
    begin: Any,
    log_ratio: Array,
    is_due: Array,
    step_size: Array,
    num_steps: Array,
    most_trials: Array,
) -> Trials:
    """The further trials of a transition, none unless `is_due`.

    follow: (begin, step_size, num_steps) -> end and the logarithm of its Metropolis ratio. begin, end: (move, momentum,
    score, state). log_ratio (), step_size (), num_steps (): of the first trial, which failed. most_trials (): as from
    `find_most_trials`.

    Under `vmap` all chains wait for the one that has the most.
    """

    def one_trial(carry):
        _, number, back, log_balance, trials = carry
        is_back = back >= 0
        shorter = _SHORTER ** jnp.where(is_back, back, number)
        num = jnp.where(carry.is_open, num_steps * shorter, 0)
        end, log_ratio = follow(_choose(is_back, trials.end, begin), step_size / shorter, num)
        move, momentum, score, state = end
        log_uniform = jnp.log(jax.random.uniform(jax.random.fold_in(rng_key, number), (), log_ratio.dtype))
        fails = may_fail(log_ratio, state)
        log_failure = jnp.where(fails, _log_failure(log_ratio), -jnp.inf)

        # from the state
        passes = is_finite(state) & (log_uniform < log_ratio)
        goes_on = ~is_back & ~passes & fails
        # from the other end, where all trials before must fail
        is_last = is_back & (back + 1 == number)
        log_balance += jnp.where(is_back, log_failure, jnp.where(goes_on, -log_failure, 0))
        is_accepted = is_last & (log_uniform < jnp.minimum(trials.log_ratio, 0) + jnp.minimum(log_balance, 0))
        return _Carry(
            is_open=jnp.where(is_back, fails & ~is_last, passes | goes_on & (number < most_trials)),
            number=number + goes_on,
            back=jnp.where(is_back, back + 1, jnp.where(passes, 0, -1)),
            log_balance=log_balance,
            trials=Trials(
                is_accepted,
                _choose(is_back, trials.end, (move, -momentum, score, state)),
                jnp.where(is_back, trials.log_ratio, log_ratio),
                trials.num_steps + num,
            ),
        )

    none = Trials(jnp.zeros((), bool), begin, log_ratio, jnp.zeros_like(num_steps))
    one = jnp.ones((), jnp.int32)
    carry = _Carry(is_due & (most_trials > 0), one, -one, -_log_failure(log_ratio), none)
    return jax.lax.while_loop(lambda carry: carry.is_open, one_trial, carry).trials


def _log_failure(log_ratio):
    """Logarithm of the probability that a trial of this ratio fails, below -10."""
    return jnp.log1p(-jnp.exp(jnp.minimum(log_ratio, -_HOPELESS)))


def _choose(is_first, first, second):
    return jax.tree.map(lambda a, b: jnp.where(is_first, a, b), first, second)
