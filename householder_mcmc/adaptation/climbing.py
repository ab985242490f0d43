"""Chains that are on their way or behind the others: told by their log-densities, without any kernel."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import Array

__all__ = ["Climb", "Lag", "are_negligible", "find_behind", "find_front", "follow_levels"]

# A rise of the log-density by more than d + 10 is a climb. In the first half, where starting anew costs little, one by
# more than 6 d^(1/2) + 10 is, if that is less. Of two draws of a Gaussian the log-densities differ by d^(1/2), in
# standard deviation. The 10 is for small d: there they differ by more with a probability of about e^-10.
# (Neither made a difference on three targets of d = 26 to 102, where no two draws differ by so much.)
_RISE = 10
_DEVIATIONS = 6

# The learner is reset at each of this many steps after a climb: by then the step size fits the map that it starts from.
# (With 1 or 30 one seed of nine ends at a third of its ESS or less: `benchmarks/results/warmup_constants.md`.)
_RESETS = 10

# From this step on a climb is slow, and the learner gets more than `_SPELL` steps between two series of resets. (Where
# that begins at step 500, two of three seeds of `diamonds` end at a hundredth of their ESS; spells of 5 and of 80 steps
# do as well as 20.)
_SLOW = 100
_SPELL = 20

# Steps that a chain's level remembers, so that it is nearer to the mean of its log-densities than draws are.
_LEVEL_MEMORY = 20

# The front is the highest level but for a quarter of the chains, so that one in a narrow place of high density does not
# leave the others behind.
_FRONT_PART = 4

# Log-densities of 32 bits at -1e9 are known to 64: levels nearer than this many units of rounding are equal.
_ROUNDING = 8

# Widths of more than this, in units of the map, are those of a plateau without end. Their squares are finite.
_WIDEST = 1e15

# Steps that a chain must have been behind before it is judged by how far it has moved.
_PATIENCE = 50

# Steps after which a chain that is still behind is taken to stay: its mode has then been judged three times. Chosen.
_ENDURANCE = 3 * _PATIENCE


def follow_levels(levels: Array, logdensity: Array, dim: int) -> Array:
    """Running means of the chains' log-densities, (num_chains,). A rise of more than d + 10 is followed at once."""
    logdensity = logdensity.astype(levels.dtype)
    is_climbing = ~(logdensity - levels <= dim + _RISE)
    followed = jnp.where(is_climbing, logdensity, levels + (logdensity - levels) / _LEVEL_MEMORY)
    return jnp.where(jnp.isfinite(logdensity), followed, levels)


def find_front(levels: Array) -> Array:
    """The level of the chains in front, (): the highest but for a quarter of them."""
    return jnp.sort(levels, descending=True)[len(levels) // _FRONT_PART]


def find_behind(levels: Array, dim: int) -> Array:
    """Which chains are more than d + 10 below the front, (num_chains,)."""
    front = find_front(levels)
    rounding = _ROUNDING * jnp.finfo(levels.dtype).eps * jnp.abs(front)
    return ~(levels >= front - (dim + _RISE) - rounding)


class Lag(NamedTuple):
    """How long chains have been behind, and where they were.

    num_steps (num_chains,): in a row. positions (num_chains, d): before them, or before the latest 50 of them.
    """

    num_steps: Array
    positions: Array

    @property
    def are_awaited(self) -> Array:
        """Which chains have not been behind for long enough to tell whether they stay, (num_chains,)."""
        return (self.num_steps > 0) & (self.num_steps <= _ENDURANCE)

    @property
    def have_stayed(self) -> Array:
        """Which chains have been behind for 50 steps or more, (num_chains,)."""
        return self.num_steps >= _PATIENCE

    def follow(self, x: Array, is_behind: Array) -> tuple["Lag", Array]:
        """The lag of chains at x (num_chains, d), and which of them have been behind for another 50 steps."""
        num_steps = jnp.where(is_behind, self.num_steps + 1, 0)
        is_anew = num_steps % _PATIENCE == 0
        return Lag(num_steps, jnp.where(is_anew[:, None], x, self.positions)), is_anew & is_behind


def are_negligible(gap: Array, moved: Array, preconditioner) -> Array:
    """Whether the modes in which chains rest hold a negligible part of the mass, (num_chains,).

    A mode holds exp(-gap) times its volume of the mass of the others: a lower one that is wide may hold as much. Its
    volume is judged by how far a chain has moved in it, in units of the others: two draws differ by 2 d widths^2. It is
    negligible if it would be behind, by more than d + 10, with its volume too.

    gap (num_chains,): of the log-density, below that of the others. moved (num_chains, d): way in 50 steps.
    preconditioner: of the others.
    """
    dim = moved.shape[1]
    if not hasattr(preconditioner, "solve"):  # a map of the user's own may lack it; no chain is moved then
        return jnp.zeros(gap.shape, bool)
    moved = jnp.clip(jax.vmap(preconditioner.solve)(moved), -_WIDEST, _WIDEST)
    widths_squared = jnp.sum(moved**2, axis=1) / (2 * dim)
    log_volume = dim / 2 * jnp.log(widths_squared)
    return gap > dim + _RISE + jnp.maximum(log_volume, 0)


class Climb(NamedTuple):
    """A chain is climbing if its log-density has risen, since the learner last started, by more than draws differ.

    levels (num_chains,): log-densities where the learner last started.
    resets_left (): of the learner, this step's included.
    steps_learnt (): since the last reset.
    """

    levels: Array
    resets_left: Array
    steps_learnt: Array

    def watch(
        self, logdensity: Array, is_behind: Array, dim: int, count: Array, is_early: Array | bool
    ) -> tuple["Climb", Array]:
        """The climb after step `count`, and whether a new one has begun, ().

        logdensity (num_chains,): of the chains now. Those that are behind may climb without it.
        """
        logdensity = logdensity.astype(self.levels.dtype)
        rise = logdensity - self.levels
        limit = _RISE + jnp.where(is_early, min(dim, _DEVIATIONS * math.sqrt(dim)), dim).astype(rise.dtype)
        has_risen = jnp.isfinite(rise) & (rise > limit) & ~is_behind
        are_many = 2 * jnp.sum(has_risen) >= jnp.sum(~is_behind)
        has_begun = jnp.any(has_risen) & ((count < _SLOW) | are_many & (self.steps_learnt > _SPELL))
        resets_left = jnp.where(has_begun, _RESETS, jnp.maximum(self.resets_left - 1, 0))
        is_reset = resets_left > 0
        levels = jnp.where(is_reset | is_behind | ~jnp.isfinite(self.levels), logdensity, self.levels)
        return Climb(levels, resets_left, jnp.where(is_reset, 0, self.steps_learnt + 1)), has_begun
