"""Which chains climb, and which are behind the others or ahead: judged by log-densities, whatever the kernel."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from blackjax.types import Array

__all__ = [
    "Climb",
    "Lag",
    "are_negligible",
    "find_ahead",
    "find_behind",
    "find_front",
    "follow_levels",
    "gaps",
    "lack_digits",
    "outweigh",
]

# A rise of the log-density by more than d + 10 is a climb. In the first half of the learning, where starting anew costs
# little, a rise by more than min(d, 6 d^(1/2)) + 10 is one. The log-densities of two draws of a Gaussian differ by
# d^(1/2), in standard deviation. The 10 is for small d: there they differ by more with a probability of about e^-10.
# (Neither made a difference on three targets of d = 26 to 102, where no two draws differ by so much.)
_RISE = 10
_DEVIATIONS = 6

# From the start of a climb the learner is reset at each of this many steps: by then the step size fits the map that it
# starts from. (With 1 or 30 one seed of nine ends at a third of its ESS or less, see
# `benchmarks/results/warmup_constants.md`.)
_RESETS = 10

# From this step on a climb is slow. The learner then gets more than `_SPELL` steps between two series of resets, so
# that a map learnt on the way can shorten the climb. (If that begins at step 500, two of three seeds of `diamonds` end
# at a hundredth of their ESS. Spells of 5 and of 80 steps do as well as 20.)
_SLOW = 100
_SPELL = 20

# Steps that a chain's level remembers, so that it is nearer to the mean of its log-densities than draws are.
_LEVEL_MEMORY = 20

# The front is the highest level once the top one in four chains is left out, so that a chain in a narrow place of high
# density does not leave the others behind.
_FRONT_PART = 4

# Near -1e9 float32 rounds a log-density to multiples of 64. So to be behind or ahead, the level of a chain must be
# lower or higher by this many units of rounding in addition.
_ROUNDING = 8

# A chain that moves further than this, in units of the map, is on a plateau without end. Moves are cut to it, so that
# their squares are finite.
_WIDEST = 1e15

# A chain that is behind or ahead is judged, each time after this many steps, by how far it has moved in them.
_PATIENCE = 50

# Steps after which a chain that is still behind is taken to stay: its mode has then been judged three times. Chosen.
_ENDURANCE = 3 * _PATIENCE


def follow_levels(levels: Array, logdensity: Array, dim: int) -> Array:
    """Running means of the chains' log-densities, (num_chains,), over about 20 steps.

    A rise of more than d + 10 is followed at once. A log-density that is not finite is left out.
    """
    logdensity = logdensity.astype(levels.dtype)
    is_climbing = ~(logdensity - levels <= dim + _RISE)
    followed = jnp.where(is_climbing, logdensity, levels + (logdensity - levels) / _LEVEL_MEMORY)
    return jnp.where(jnp.isfinite(logdensity), followed, levels)


def find_front(levels: Array) -> Array:
    """The level of the chains in front, (): the highest once the top quarter of the chains is left out."""
    return jnp.sort(levels, descending=True)[len(levels) // _FRONT_PART]


def find_behind(levels: Array, dim: int) -> Array:
    """Which chains have levels more than d + 10 below the front, (num_chains,), or levels without digits.

    A log-density of 1e21 is rounded to multiples of 1e5: a kernel cannot tell two draws apart there. A formula that
    cancels may have such values where it should have others.
    """
    front = find_front(levels)
    return ~(levels >= front - (dim + _RISE) - _rounding(front)) | lack_digits(levels, front, dim)


def find_ahead(levels: Array, dim: int) -> Array:
    """Which chains have levels more than d + 10 above the front, (num_chains,), that do not lack digits."""
    front = find_front(levels)
    return (levels > front + (dim + _RISE) + _rounding(front)) & ~lack_digits(levels, front, dim)


def gaps(levels: Array, dim: int) -> Array:
    """By how much levels are below the front, (num_chains,); infinite for those without digits."""
    front = find_front(levels)
    return jnp.where(lack_digits(levels, front, dim), jnp.inf, front - levels)


def lack_digits(levels: Array, other: Array, dim: int) -> Array:
    """Whether rounding moves a level by d + 10 more than it moves another one."""
    return _rounding(levels) > _rounding(other) + (dim + _RISE)


def _rounding(levels):
    return _ROUNDING * jnp.finfo(levels.dtype).eps * jnp.abs(levels)


class Lag(NamedTuple):
    """How long chains have been behind, or ahead, and where they were.

    num_steps (num_chains,): steps behind, in a row; 0 for a chain that is not behind.
    positions (num_chains, d), levels (num_chains,): where a chain was when it fell behind, or at the last 50th step
    since then.
    """

    num_steps: Array
    positions: Array
    levels: Array

    @classmethod
    def start(cls, x: Array, levels: Array) -> "Lag":
        """No chain is behind. x (num_chains, d): the positions."""
        return cls(jnp.zeros(len(x), jnp.int32), x, levels)

    def are_awaited(self, steps_known: Array) -> Array:
        """Which chains have not been behind for long enough to tell whether they stay, (num_chains,).

        steps_known (): steps for which the map has been known, without which no chain is judged.
        """
        return (self.num_steps > 0) & (jnp.minimum(self.num_steps, steps_known) <= _ENDURANCE)

    @property
    def have_stayed(self) -> Array:
        """Which chains have been behind for 50 steps or more, (num_chains,)."""
        return self.num_steps >= _PATIENCE

    def follow(self, x: Array, levels: Array, is_behind: Array) -> tuple["Lag", Array]:
        """The lag, with chains at x (num_chains, d), and which chains have now been behind for another 50 steps."""
        num_steps = jnp.where(is_behind, self.num_steps + 1, 0)
        is_anew = num_steps % _PATIENCE == 0
        positions = jnp.where(is_anew[:, None], x, self.positions)
        return Lag(num_steps, positions, jnp.where(is_anew, levels, self.levels)), is_anew & is_behind


def are_negligible(gap: Array, moved: Array, preconditioner) -> Array:
    """Whether the mode in which a chain rests holds a negligible part of the mass, (num_chains,).

    It holds exp(-gap) V times the mass of the others' mode, where V is the ratio of the volumes. So a lower mode that
    is wide may hold as much. It is negligible if gap > d + 10 + max(log V, 0).

    gap (num_chains,): by how much the log-density is below that of the others. moved (num_chains, d): the last 50
    steps, x - x'. preconditioner: the map L of the others. If it has no `solve`, no mode is negligible.
    """
    log_volumes = _log_volumes(moved, preconditioner)
    return gap > moved.shape[1] + _RISE + jnp.maximum(log_volumes, 0)


def outweigh(gap: Array, risen: Array, moved: Array, preconditioner, are_others: Array) -> Array:
    """Whether the mode in which a chain rests leaves the others' mode a negligible part of the mass, (num_chains,).

    As in `are_negligible`, with the two exchanged: a higher mode that is narrow, such as the neck of a funnel, may hold
    no more than the others'. The map is that of all chains. So the volume of the others' mode is that of the one among
    them that has moved the furthest, and at least that of the map. A chain whose level has risen by more than d + 10
    rests nowhere yet.

    gap (num_chains,): by how much the log-density is above that of the others. risen (num_chains,): by how much it has
    risen in the last 50 steps. are_others (num_chains,): which chains are the others.
    """
    least, log_volumes = moved.shape[1] + _RISE, _log_volumes(moved, preconditioner)
    of_others = jnp.max(log_volumes, where=are_others, initial=0)
    return (risen <= least) & (gap > least + jnp.maximum(of_others - log_volumes, 0))


def _log_volumes(moved, preconditioner):
    """log V, the volume of a chain's mode over that of the mode for which the map L is right, (num_chains,).

    In units of L it has a width w, and V = w^d. Two draws of it differ by |L^{-1} (x - x')|^2 = 2 d w^2, so w is
    estimated from how far the chain has moved. NaN, of which nothing follows, if L has no `solve`.
    """
    dim = moved.shape[1]
    if not hasattr(preconditioner, "solve"):  # a map of the user's own may lack it
        return jnp.full(len(moved), jnp.nan, moved.dtype)
    moved = jnp.clip(jax.vmap(preconditioner.solve)(moved), -_WIDEST, _WIDEST)
    widths_squared = jnp.sum(moved**2, axis=1) / (2 * dim)
    return dim / 2 * jnp.log(widths_squared)


class Climb(NamedTuple):
    """A chain is climbing if its log-density has risen, since the learner last started, by more than draws differ.

    levels (num_chains,): log-densities where the learner last started.
    resets_left (): resets of the learner to come, this step's included.
    steps_learnt (): steps since the last reset.
    """

    levels: Array
    resets_left: Array
    steps_learnt: Array

    def watch(
        self, logdensity: Array, is_behind: Array, dim: int, count: Array, is_early: Array | bool
    ) -> tuple["Climb", Array]:
        """The climb after step `count`, and whether a new series of resets has begun, ().

        It begins if a chain has risen by more than d + 10, or by more than min(d, 6 d^(1/2)) + 10 if `is_early`. From
        step 100 on half of the chains that count must have risen, and the learner must have learnt for more than 20
        steps.

        logdensity (num_chains,): of the chains now. is_behind (num_chains,): chains that do not count.
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
