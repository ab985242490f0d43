"""Further trials with shorter steps, where a trajectory fails in a narrow place.

Where the target is so narrow that steps of this size fail, a chain would stay for hundreds of transitions. There it
tries again from the same momenta, for the same time, with steps of a quarter, then of a sixteenth, and so on. A trial
fails if its energy grows by more than 10 nats and it is not accepted all the same, or if it is lost: energies on its
way differ by more than 1000 nats. Further trials stop where they are lost.

Let r_i(x) be the probability that trial i from x (position and momenta) fails. Trial k from x to y, the first that does
not fail, is accepted with probability min(1, pi(y) / pi(x)) r_0(y) ... r_{k-1}(y). So trials 0, ..., k - 1 are made
from y too, with the momenta reversed, and must fail there. The product of this, of pi(x) and of r_0(x) ... r_{k-1}(x)
is the same with x and y exchanged, which is detailed balance.

How many trials a transition may have is drawn without regard to the state: k more or above with probability 4^(1 - k),
so that each of them costs the same gradients on average.

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

__all__ = ["DIVERGENCE_THRESHOLD", "Path", "Trials", "find_most_trials", "run_trials"]

# Growth of the energy above which a trajectory is divergent, in nats: that of BlackJAX's HMC.
DIVERGENCE_THRESHOLD = 1000

# Growth of the energy above which a trial may fail, in nats. It is then accepted once in 20,000 times. With 3 nats in
# place of 10, ESS per gradient is the same on the log-Gaussian Cox process and the Gaussian process, and 0.9 times as
# large on breast cancer, where more is tried in vain.
_HOPELESS = 10

# How many times shorter, and more, the steps of each trial are than those of the one before. Modi et al. divide by 2 to
# 10.
_SHORTER = 4


class Path(NamedTuple):
    """A trajectory so far.

    end: (move, momentum, score, state). log_ratio (): logarithm of the Metropolis ratio of the end. lowest, highest ():
    of the finite energies on the way, less that of the beginning.
    """

    end: Any
    log_ratio: Array
    lowest: Array
    highest: Array

    @classmethod
    def start(cls, begin: Any) -> "Path":
        _, momentum, _, state = begin
        zero = jnp.zeros((), jnp.result_type(momentum, state.logdensity))  # a log-density may have more digits
        return cls(begin, zero, zero, zero)

    def extend(self, begin: Any, end: Any) -> "Path":
        """The path from `begin`, a tuple like the end, to its next point."""
        (_, momentum, _, state), (_, end_momentum, _, end_state) = begin, end
        log_ratio = end_state.logdensity - state.logdensity + jnp.sum(momentum**2 - end_momentum**2) / 2
        growth = jnp.where(jnp.isfinite(log_ratio), -log_ratio, 0)
        return Path(end, log_ratio, jnp.minimum(self.lowest, growth), jnp.maximum(self.highest, growth))

    def is_lost(self) -> Array:
        """Whether energies on the way differ by more than 1000 nats. It is the same for the path from the other end."""
        return self.highest - self.lowest > DIVERGENCE_THRESHOLD

    def log_failure(self, is_first: Array | bool) -> Array:
        """The logarithm of the probability that this trial fails, (). is_first: whether it goes on where it is lost.

        Where its energy was never high, but is not finite at the end, the target ends there. Shorter steps would end
        there too, so it does not fail.
        """
        is_certain = self.is_lost() & ~(is_first & is_finite(self.end[-1]))
        is_high = is_finite(self.end[-1]) & (self.log_ratio < -_HOPELESS)
        log_rejected = jnp.log1p(-jnp.exp(jnp.minimum(self.log_ratio, -_HOPELESS)))
        return jnp.where(is_certain, 0, jnp.where(is_high, log_rejected, -jnp.inf))


class Trials(NamedTuple):
    """The trials of a transition.

    last: path of the last trial from the state. first_log_ratio (): logarithm of the Metropolis ratio of the first,
    -inf if its end was not finite. is_accepted (): whether one after the first was accepted. num_steps (): integration
    steps of all.
    """

    last: Path
    first_log_ratio: Array
    is_accepted: Array
    num_steps: Array


class _Carry(NamedTuple):
    """Between two trials, all ().

    is_open: whether there is another. number: of the next one from the state, or of the last. back: of the next one
    from the other end, -1 while they are from the state. uniform: of the trial `number`. log_all_fail: log-probability
    that those from the other end all failed.
    """

    is_open: Array
    number: Array
    back: Array
    uniform: Array
    log_all_fail: Array
    trials: Trials


def find_most_trials(uniform: Array, num_steps: Array, max_steps: Array) -> Array:
    """Most further trials of a transition, (): one, another with probability 1/4, and so on.

    None has more than max_steps steps. uniform (): drawn from (0, 1). num_steps (): of the first trial.
    """
    drawn = 1 - jnp.log(jnp.maximum(uniform, jnp.finfo(uniform.dtype).tiny)) / math.log(_SHORTER)
    allowed = jnp.log(max_steps / num_steps.astype(max_steps.dtype)) / math.log(_SHORTER)
    return jnp.floor(jnp.minimum(drawn, allowed)).astype(jnp.int32)


def run_trials(
    rng_key: PRNGKey, follow: Callable, begin: Any, step_size: Array, num_steps: Array, most_trials: Array
) -> Trials:
    """The trials of a transition: the first, and others as long as they fail.

    rng_key: with which `accept_or_reject` judges the first trial. follow: (begin, step_size, num_steps, may_stop) ->
    (steps made, path). begin: (move, momentum, score, state). step_size, num_steps (): of the first trial. most_trials
    (): further ones, as from `find_most_trials`.

    It is one loop, so that the log-density is compiled once. Under `vmap` all chains wait for the last. Each trial is
    decided by a uniform number. If it fails with probability r, the number is above 1 - r, and is stretched to (0, 1)
    for the next.
    """
    most_trials = jnp.where(is_finite(begin[-1]), most_trials, 0)  # a state that is not finite is left in the first

    def one_trial(carry):
        _, number, back, uniform, log_all_fail, trials = carry
        is_back, is_first = back >= 0, number == 0
        level = jnp.where(is_back, back, number)
        shorter = _SHORTER**level
        move, momentum, score, state = trials.last.end
        start = _choose(is_back, (move, -momentum, score, state), begin)
        num = jnp.where(carry.is_open, num_steps * shorter, 0)
        num, path = follow(start, step_size / shorter.astype(step_size.dtype), num, level > 0)
        log_failure = path.log_failure(is_first=level == 0)
        fails = log_failure > -jnp.inf

        # from the state
        log_ratio = jnp.where(is_finite(path.end[-1]), path.log_ratio, -jnp.inf)
        passes = (is_first | ~path.is_lost()) & (jnp.log(uniform) < log_ratio)
        goes_on = ~is_back & ~passes & fails & (number < most_trials)
        # from the other end, where all trials before must fail
        is_last = is_back & (back + 1 == number)
        log_all_fail += jnp.where(is_back, log_failure, 0)
        log_accepted = jnp.minimum(trials.last.log_ratio, 0) + log_all_fail
        return _Carry(
            is_open=jnp.where(is_back, fails & ~is_last, passes & ~is_first | goes_on),
            number=jnp.where(goes_on, number + 1, number),
            back=jnp.where(is_back, back + 1, jnp.where(passes & ~is_first, 0, -1)),
            uniform=jnp.where(goes_on, jnp.maximum(1 - (1 - uniform) / jnp.exp(log_failure), 0), uniform),
            log_all_fail=log_all_fail,
            trials=Trials(
                last=_choose(is_back, trials.last, path),
                first_log_ratio=jnp.where(is_first, log_ratio, trials.first_log_ratio),
                is_accepted=is_last & (jnp.log(uniform) < log_accepted),
                num_steps=trials.num_steps + num,
            ),
        )

    zero, nowhere = jnp.zeros((), jnp.int32), Path.start(begin)
    uniform = jax.random.uniform(rng_key, (), nowhere.log_ratio.dtype)
    none = Trials(nowhere, nowhere.log_ratio, zero > 0, jnp.zeros_like(num_steps))
    carry = _Carry(zero == 0, zero, zero - 1, uniform, jnp.zeros_like(uniform), none)
    return jax.lax.while_loop(lambda carry: carry.is_open, one_trial, carry).trials


def _choose(is_first, first, second):
    return jax.tree.map(lambda a, b: jnp.where(is_first, a, b), first, second)
