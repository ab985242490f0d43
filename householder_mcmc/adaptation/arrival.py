"""Before a warm-up each chain climbs alone from its start to where a kernel can go on.

At a log-density of -1e50 no step size of an MCMC kernel is right. A quasi-Newton ascent does not depend on the size of
the log-density or of its gradient, nor on the units of coordinates. It must end early: at a mode, or in the neck of a
funnel, chains are further from typical draws than before. So a climb is over when it gains little, and the chain goes
back to the point from which it gained little. The kernel makes the rest of the way.

Source: L-BFGS, Nocedal & Wright (2006), Algorithms 7.4 and 7.5. It differs in three ways. The diagonal of the first
matrix is |s| / |y| of the latest pairs, coordinate by coordinate, which follows a change of units. The line search has
one evaluation in each turn of the loop, so that a program holds one copy of the log-density. What is climbed is the
log-density bent where it is very low, see `_bend`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.types import Array, ArrayLikeTree, ArrayTree
from jax.flatten_util import ravel_pytree

from householder_mcmc.adaptation.climbing import lack_digits
from householder_mcmc.mcmc.logdensity import value_and_grad
from householder_mcmc.preconditioners.checks import is_concrete, require_chains
from householder_mcmc.sharing import brief_program

__all__ = ["ArrivalInfo", "are_far", "arrive", "ascend"]

# A start is near if a climb of `_PATIENCE` evaluations gains no more than this from it: nats, or twice the dimension if
# that is more, since typical draws are d / 2 below the mode. A kernel makes up for 1000 nats in a few steps. (With 100
# starts in a funnel of d = 51 move to its neck, and more chains of a mixture end in its lower mode.)
_FAR = 1000.0
_FAR_BY_DIM = 2

# A chain that has left its start goes on until it gains no more than this (or 2 d) in as many evaluations. (With 1000
# nats chains of two posteriors of d = 4 stop on slopes where warm-ups are lost.)
_LEAST_GAIN = 100.0

# Evaluations that may pass without that gain. (In 30 a centred hierarchy of 50 groups, which gains 50 nats in each unit
# of log tau, is climbed far into its neck; in 20 it is not.)
_PATIENCE = 20

# The most gradients of a chain. On 14 targets none of 560 needed more than 140.
_MOST_GRADIENTS = 300

# Pairs of steps and changes of the gradient. Five to ten are usual.
_MEMORY = 6

# Below minus this many nats the log-density is bent, see `_bend`. Not sooner: where the logarithm of its log-density is
# climbed, a regression with an unknown sigma climbs along log sigma alone. (Such a climb from -1e12 ends 3000 nats too
# low with a bend at 1e6, and 60 with one at 1e12.)
_BEND = 1e12

# The line search: the part of the predicted gain that a step must reach, and the part of the first slope above which a
# longer step is tried. Nocedal & Wright have 1e-4 and 0.9. A smaller second number makes longer steps.
_SUFFICIENT = 1e-4
_STEEP = 0.5

# A step that fails is shortened to where a parabola has its top, but by no more and no less than these factors.
_SHORTEST = 0.05
_LONGEST = 0.5

# A coordinate is flat if its slope is less than this part of the steepest. Then it is not made to gain as much as the
# others. Units of 1e6 and 1e-6 give slopes a ratio of 1e-12, and another 1e-3 allows for the place.
# (Without this limit a coordinate may go 1e40 far where slopes are exponentials.)
_FLAT = 1e-15

# After this many trials in a row that fail, the memory is cleared.
_FAILURES = 5


class ArrivalInfo(NamedTuple):
    """How the chains arrived.

    has_arrived (num_chains,): False if a start is not finite, or if the climb was not over when its gradients were
    spent or no step could be made.
    logdensity (num_chains,): where the chains are now; -inf where the start is not finite.
    num_gradients (num_chains,): of the log-density, int32, that of the start included.
    """

    has_arrived: Array
    logdensity: Array
    num_gradients: Array


class _Point(NamedTuple):
    """x (d,), value () and the gradient of the bent log-density (d,)."""

    x: Any
    value: Any
    slope: Any


class _Climb(NamedTuple):
    """State of an ascent.

    start: where the line search begins. best: the best point of it. direction (d,), step (), slope (): the next trial
    is start.x + step * direction, and slope is that of the bent log-density along the direction.
    failures (), growth (): trials that failed in a row; longer steps that were tried.
    power (): exponent of the direction that is taken without a memory, see `_plain`.
    steps, changes (memory, d): pairs s, y, oldest first, scaled to s . y = 1; rows of zeros at first.
    anchor (d,), level (): the start, or the last point that was reached by enough of a gain, and its log-density.
    waited (): evaluations since the anchor was reached. has_left (): whether the anchor is another point than the
    start. has_settled (): whether a line search since then ended at a smaller slope.
    count (): evaluations. is_over (): whether the climb is over.
    """

    start: Any
    best: Any
    direction: Any
    step: Any
    slope: Any
    failures: Any
    growth: Any
    power: Any
    steps: Any
    changes: Any
    anchor: Any
    level: Any
    waited: Any
    has_left: Any
    has_settled: Any
    count: Any
    is_over: Any


def arrive(logdensity_fn: Callable, positions: ArrayLikeTree) -> tuple[ArrayTree, ArrivalInfo]:
    """Each chain climbs from its start to where an MCMC kernel can go on.

    This only chooses starts, on which no kernel's invariance depends. A start is near if 20 evaluations of a
    quasi-Newton ascent gain no more than 1000 nats (or 2 d, if that is more), and comes back as it was, bit for bit.
    Another chain climbs until 20 evaluations gain no more than 100 nats (or 2 d), and goes back to where these began:
    not far towards a mode or into the neck of a funnel. A step is shortened if it leads to values that are not finite,
    or to higher ones that rounding moves by more than d + 10. A chain uses 300 gradients at most, and 21 if its start
    is near. The result does not depend on the other chains, and nothing is random. Chains may still arrive at different
    modes.

    Parameters
    ----------
    logdensity_fn
        Position -> log-density up to a constant, in nats. Below -1e12 the climb is that of a logarithm of it.
    positions
        A pytree whose leaves have a leading chain axis.

    Returns
    -------
    The positions, shaped as they were given, and an `ArrivalInfo`.

    Raises
    ------
    TypeError
        If a leaf or the log-density is not floating point, or all leaves have fewer than 32 bits.
    ValueError
        If the leaves have no chain axis in common; if the log-density is no single number or has no reverse-mode
        gradient; if d = 0; if no start is finite with its log-density and gradient, unless they are traced. Where only
        some are not finite, these chains stay and their has_arrived is False.

    Examples
    --------
    .. code-block:: python

        positions, arrival = hm.arrive(logdensity_fn, positions)
        (state, parameters), info = hm.warmup(logdensity_fn, hm.two_ended()).run(rng_key, positions)
    """
    starts = require_chains(positions, "climbed from")
    arrived, info = _arrive(logdensity_fn)(starts)
    if is_concrete(info.logdensity) and not np.isfinite(np.asarray(info.logdensity)).any():
        raise ValueError(
            "position, log-density and its gradient must be finite at the start of a chain: of none they are."
        )
    return arrived, info


def are_far(logdensity: Array, dim: int) -> Array:
    """Whether chains climb before a warm-up, (): if log-densities (num_chains,) differ by more than max(1000, 2 d).

    They do too if one is not finite, and if there is one chain, which has no other to compare with.
    """
    return jnp.asarray(len(logdensity) == 1) | ~(jnp.ptp(logdensity) <= max(_FAR, _FAR_BY_DIM * dim))


@brief_program
def _arrive(logdensity_fn):
    def arrive(positions):
        def one(position):
            x, unravel = ravel_pytree(position)
            x, value, num_gradients, has_arrived = ascend(lambda x: logdensity_fn(unravel(x)), x)
            return unravel(x), ArrivalInfo(has_arrived, value, num_gradients)

        return jax.vmap(one)(positions)

    return arrive


def ascend(logdensity_fn: Callable, x: Array) -> tuple[Array, Array, Array, Array]:
    """The ascent of one chain from x (d,), of at least 32 bits. logdensity_fn: (d,) -> ().

    Returns x, its log-density (-inf if that or the gradient is not finite at the start), the number of gradients
    (int32) and whether the chain has arrived. Traces the log-density once. O(d) memory.
    """
    evaluate, dtype = value_and_grad(logdensity_fn), x.dtype
    least_gain, far = (max(gain, _FAR_BY_DIM * x.size) for gain in (_LEAST_GAIN, _FAR))

    def one_trial(climb):
        x = climb.start.x + climb.step * climb.direction
        trial, is_finite = _evaluate(evaluate, x)
        count, is_first = climb.count + 1, climb.count == 0
        is_gain = ~is_first & (trial.value > climb.start.value)
        is_finite &= ~(is_gain & lack_digits(trial.value, climb.start.value, x.size))

        # 1. The line search: a step is lengthened while the slope is steep, shortened after a failure, or done.
        gain = _bend(trial.value) - _bend(climb.start.value)
        predicted = climb.step * climb.slope
        is_better = is_finite & (trial.value > climb.best.value) & (is_first | (gain > _SUFFICIENT * predicted))
        is_steep = is_better & (_dot(trial.slope, climb.direction) > _STEEP * climb.slope)
        has_best = climb.best.value > climb.start.value
        is_done = (is_better & ~is_steep) | (~is_better & has_best)
        failures = jnp.where(is_better, 0, climb.failures + 1)
        is_reset = failures >= _FAILURES
        is_new = is_done | is_reset
        top = predicted / (2 * (predicted - gain))  # where a parabola has its top, in units of the step
        factor = jnp.clip(jnp.where(is_finite & (top > 0), top, 0), _SHORTEST, _LONGEST)
        factor = jnp.where(is_steep, 2.0 ** (1 + climb.growth).astype(dtype), factor)
        best = _where(is_better, trial, climb.best)

        # 2. Where it is done, its step and the change of the gradient enter the memory, and the next search begins.
        steps, changes = _remember(climb, best, is_done & ~is_first)
        power = jnp.where(is_done, 2, jnp.where(is_reset, (climb.power + 2) % 3, climb.power))  # 2, 1, 0, 2, ...
        plain = _plain(best.slope, power, jnp.maximum(least_gain, jnp.abs(_bend(best.value))))
        newton = _newton(steps, changes, best.slope, least_gain)
        slope = _dot(best.slope, newton)
        is_newton = ~is_reset & jnp.any(steps[-1] != 0) & (slope > 0) & (slope < jnp.inf)
        direction = jnp.where(is_newton, newton, plain)
        is_kept = is_newton | ~is_new
        steps, changes = jnp.where(is_kept, steps, 0), jnp.where(is_kept, changes, 0)

        # 3. The climb is over where `_PATIENCE` evaluations have not gained enough.
        has_risen = is_first | (best.value - climb.level > jnp.where(climb.has_left, least_gain, far))
        waited = jnp.where(has_risen, 0, climb.waited + 1)
        is_level = ~jnp.any(best.slope != 0)
        return _Climb(
            start=_where(is_new, best, climb.start),
            best=best,
            direction=jnp.where(is_new, direction, climb.direction),
            step=jnp.where(is_new, 1, climb.step * factor),
            slope=jnp.where(is_new, _dot(best.slope, direction), climb.slope),
            failures=jnp.where(is_new, 0, failures),
            growth=jnp.where(is_new, 0, climb.growth + is_steep.astype(jnp.int32)),
            power=power,
            steps=steps,
            changes=changes,
            anchor=jnp.where(has_risen, best.x, climb.anchor),
            level=jnp.where(has_risen, best.value, climb.level),
            waited=waited,
            has_left=~is_first & (climb.has_left | has_risen),
            has_settled=is_level | (is_better & ~is_steep & ~is_first) | (climb.has_settled & ~has_risen),
            count=count,
            is_over=(count >= _MOST_GRADIENTS) | (waited >= _PATIENCE) | is_level | ~jnp.isfinite(best.value),
        )

    zero, none, no = jnp.zeros((), dtype), jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    nowhere, memory = _Point(x, zero - jnp.inf, jnp.zeros_like(x)), jnp.zeros((_MEMORY, x.size), dtype)
    climb = _Climb(
        start=nowhere,
        best=nowhere,
        direction=jnp.zeros_like(x),
        step=zero,
        slope=zero,
        failures=none,
        growth=none,
        power=none + 2,
        steps=memory,
        changes=memory,
        anchor=x,
        level=nowhere.value,
        waited=none,
        has_left=no,
        has_settled=no,
        count=none,
        is_over=no,
    )
    climb = jax.lax.while_loop(lambda climb: ~climb.is_over, one_trial, climb)
    is_done = (climb.waited >= _PATIENCE) | ~jnp.any(climb.best.slope != 0)
    return climb.anchor, climb.level, climb.count, is_done & climb.has_settled & jnp.isfinite(climb.level)


def _evaluate(evaluate, x):
    """The point at x, and whether all of it is finite. Its slope is that of the bent log-density."""
    value, score = evaluate(x)
    value, score = value.astype(x.dtype), score.astype(x.dtype)
    is_finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(score) & jnp.isfinite(x))
    return _Point(x, value, score / (1 - jnp.minimum(value, 0) / _BEND)), is_finite


def _bend(value):
    """An increasing function of a log-density, nearly the same far above -1e12, a logarithm below.

    Where a log-density is minus an exponential of the position, or of an exponential, its curvature falls by orders
    between two steps, and a quasi-Newton method is too slow. Its logarithm is nearly linear, and squares of its
    gradient do not overflow.
    """
    return jnp.where(value < 0, -_BEND * jnp.log1p(-jnp.minimum(value, 0) / _BEND), value)


def _remember(climb, best, is_done):
    """The memory with the step and the change of the gradient of a line search, if its curvature is positive."""
    step, change = best.x - climb.start.x, climb.start.slope - best.slope
    curvature = _dot(step, change)
    is_good = is_done & (curvature > 0) & (curvature < jnp.inf)
    scale = jax.lax.rsqrt(jnp.where(is_good, curvature, 1))

    def append(rows, row):
        return jnp.where(is_good, jnp.concatenate([rows[1:], row[None] * scale]), rows)

    return append(climb.steps, step), append(climb.changes, change)


def _newton(steps, changes, slope, gain):
    """The L-BFGS direction, (d,), from steps and changes (memory, d) and the slope (d,).

    A coordinate in which the memory has no step, or no change of the gradient, is to gain its share, gain / d.
    """
    weights = 0.5 ** jnp.arange(_MEMORY, 0, -1, slope.dtype)[:, None]  # half for each younger pair
    lengths, widths = jnp.sum(weights * jnp.abs(steps), 0), jnp.sum(weights * jnp.abs(changes), 0)
    size, largest = _sizes(slope)
    unknown = gain / slope.size / jnp.maximum(size, _FLAT) ** 2 / largest**2
    is_known = (lengths > 0) & (widths > 0)
    diagonal = jnp.where(is_known, lengths / jnp.where(is_known, widths, 1), unknown)
    latest = jnp.sum(changes[-1] * diagonal * changes[-1])
    diagonal = diagonal / jnp.where(latest > 0, latest, 1)  # so that y . (diagonal y) = s . y

    def down(rest, pair):
        step, change = pair
        part = _dot(step, rest)
        return rest - part * change, part

    def up(direction, pair):
        step, change, part = pair
        return direction + step * (part - _dot(change, direction)), None

    rest, parts = jax.lax.scan(down, slope, (steps, changes), reverse=True)
    return jax.lax.scan(up, diagonal * rest, (steps, changes, parts))[0]


def _plain(slope, power, gain):
    """The direction sign(slope) |slope|^(1 - power), of a length that is predicted to gain `gain`.

    With power 2 each coordinate is to gain the same, whatever its units, so one with a small slope goes far. With power
    1 all coordinates go equally far. With power 0 it is the gradient. Where steps fail, the three are taken in turn.
    """
    size, largest = _sizes(slope)
    length = size * jnp.maximum(size, _FLAT) ** -power.astype(slope.dtype)
    total = jnp.sum(length * size) * largest
    return jnp.sign(slope) * length * (gain / jnp.where(total > 0, total, 1))


def _sizes(slope):
    """The sizes of a slope's coordinates as parts of the largest, and the largest, or 1 if all are 0."""
    largest = jnp.max(jnp.abs(slope))
    largest = jnp.where(largest > 0, largest, 1)
    return jnp.abs(slope) / largest, largest


def _dot(x, y):
    return jnp.sum(x * y)


def _where(condition, x, y):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)
