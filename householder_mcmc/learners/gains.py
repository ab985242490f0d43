"""Gains: how much of each new increment a learner takes, as optax schedules (count of updates made -> float)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from householder_mcmc.preconditioners.checks import is_concrete
from householder_mcmc.sharing import shared

__all__ = [
    "Gains",
    "power_decay",
    "growing_memory",
    "DEFAULT_GAINS",
    "LATEST_GAINS",
    "AUTHORS_GAINS",
    "STEP_SIZE_GAIN",
    "diminishes",
    "require_gains",
]


@shared
def power_decay(exponent: float, coefficient: float = 1.0, offset: float = 0.0) -> optax.Schedule:
    """coefficient * (t + offset)^-exponent at the t-th update, t = 1, 2, ... (Hird & Livingstone 2026, Algorithm 1)."""
    return lambda count: coefficient * (jnp.asarray(count, float) + 1 + offset) ** -exponent


@shared
def growing_memory(forgetting: float) -> optax.Schedule:
    """forgetting / (t + forgetting) at the t-th update: an average over about the last t / forgetting updates.

    The memory grows with the run, so it outlasts the chain's mixing time, and still forgets the start.
    """
    return lambda count: forgetting / (jnp.asarray(count, float) + 1 + forgetting)


class Gains(NamedTuple):
    """The gains of a learner. `hm.DEFAULT_GAINS`, `hm.LATEST_GAINS` and `hm.AUTHORS_GAINS` are ready to use.

    moments: schedule of the mean, the variances and the covariance.
    oja: schedule of the eigenvectors.
    relative: whether Oja's increment is divided by the learnt variances. A raw increment, as in the paper, is as large
    as the target's variance.
    average: schedule of a running average of Oja's eigenvectors (Polyak & Juditsky 1992). The map is built on the
    average, or on the latest eigenvectors if this is None.
    """

    moments: optax.Schedule
    oja: optax.Schedule
    relative: bool = True
    average: optax.Schedule | None = None

    def schedules(self) -> dict[str, optax.Schedule]:
        """The schedules that are used, by name."""
        named = {"moments": self.moments, "oja": self.oja, "average": self.average}
        return {name: schedule for name, schedule in named.items() if schedule is not None}


def require_gains(gains) -> None:
    """Raise TypeError unless they are `Gains`, of schedules."""
    if not isinstance(gains, Gains):
        raise TypeError(f"gains must be Gains, such as hm.DEFAULT_GAINS, got {gains!r}.")
    for name, schedule in gains.schedules().items():
        if not callable(schedule):
            raise TypeError(f"gains.{name} must be a schedule, such as hm.power_decay(0.7), got {schedule!r}.")


def diminishes(schedule: optax.Schedule) -> bool:
    """Whether gains decay like t^-0.5 or faster between the steps 10^4 and 10^6.

    Such gains fall by a factor of 10 there. The test allows 1% more, for offsets and rounding. True for gains that
    depend on traced values, which cannot be read.
    """
    with jax.ensure_compile_time_eval():
        does = jnp.asarray(schedule(10**6 - 1)) <= 0.101 * jnp.asarray(schedule(10**4 - 1))
    return not is_concrete(does) or bool(does)


# The map must move much more slowly than the chains, so that it does not follow them. Oja's exponent is the authors'.
# With a memory of a third of the run the chains keep 0.95-1.03 of the variance of the paper's first Gaussian
# (`tests/test_learning.py`). A shorter memory forgets what slow chains have seen.
DEFAULT_GAINS = Gains(moments=growing_memory(3.0), oja=power_decay(0.7, offset=1.0), average=growing_memory(3.0))

# The map is that of the latest eigenvectors, as in the paper.
LATEST_GAINS = DEFAULT_GAINS._replace(average=None)

# What the authors' program runs. (The paper's text has 0.1 for Oja's exponent, which learns nothing.) For reproduction
# only: on ill-conditioned targets the map follows the current state, and the chain explores a part of the target.
# In float32 an increment longer than 2896 is cut to that length (`online_pca.to_orthonormal_rows`). The head of
# `benchmarks/paper/settings.py` lists where `adaptive_mala` with these gains still differs from the paper.
AUTHORS_GAINS = Gains(moments=power_decay(0.7, offset=1.0), oja=power_decay(0.7), relative=False)

# Gains of the steps on log sigma, in the default and in the authors' settings.
STEP_SIZE_GAIN = power_decay(0.7, offset=1.0)
