"""A line on the terminal that says how far a run is."""

import sys
import time
from typing import Any

import jax
import numpy as np

__all__ = ["Progress"]

_LENGTH = 20

# Seconds that warnings take for each number of the draws, on one core with ArviZ 0.23. They are shown after the run if
# they take no more than this share of its time.
_SECONDS_A_NUMBER = 8e-7
_SHARE = 0.05

# R-hat in the line is of at most this many coordinates, the first ones, and of about this many draws of each block, so
# that the line costs little.
_MOST_COORDINATES = 1000
_MOST_DRAWS = 100


class Progress:
    """The line, on standard error. On a terminal it is written over itself between blocks, elsewhere once at the end.

    label: what the line begins with. has_warnings: whether the warnings of the result are written after it.
    """

    def __init__(self, is_shown: bool, label: str = "", has_warnings: bool = True):
        self.is_shown, self.label, self.has_warnings = is_shown, label, has_warnings
        self.is_terminal = is_shown and sys.stderr.isatty()
        self.begins, self.num_divergent, self.moments = time.perf_counter(), 0, None
        self.text = ""

    def show(self, text: str) -> None:
        """Make this text the line, over the one before."""
        text = self.label + text
        if self.is_terminal:
            print(f"\r{text:<{len(self.text)}}", end="", file=sys.stderr, flush=True)
        self.text = text

    def follow(self, draws: Any, num_done: int, num_draws: int, step_size: Any) -> None:
        """After a block of draws: show that num_done of num_draws are there, the step size, divergences and R-hat.

        draws: the `Draws` of the block.
        """
        if not self.is_shown:
            return
        self.num_divergent += int(np.sum(getattr(draws.infos, "is_divergent", 0)))
        self.moments = _combine(self.moments, _moments(draws.variables if draws.position is None else draws.position))
        seconds = time.perf_counter() - self.begins
        self.show(
            f"{_bar(num_done / num_draws)} {num_done}/{num_draws} draws, step size {float(step_size):.3g}, "
            f"{self.num_divergent} divergent{_rhat(self.moments)}, {seconds:.0f} s"
        )

    def end(self, result: Any = None) -> None:
        """End the line, and write the warnings of the result, if there is one.

        Where the warnings would take long, only the result's notes are written.
        """
        if self.is_shown and self.text:
            print("" if self.is_terminal else self.text, file=sys.stderr, flush=True)
        self.text = ""
        if not self.is_shown or not self.has_warnings or result is None:
            return
        trace = result.trace.variables if result.trace.position is None else result.trace.position
        seconds = _SECONDS_A_NUMBER * sum(leaf.size for leaf in jax.tree.leaves(trace))
        is_quick = seconds <= _SHARE * (time.perf_counter() - self.begins)
        for warning in result.warnings if is_quick else result.notes:
            print(f"WARNING: {warning}", file=sys.stderr)
        if not is_quick:
            print(f"not judged yet, which takes about {seconds:.0f} s: result.warnings", file=sys.stderr)


def _bar(part):
    return f"[{'#' * round(_LENGTH * part):<{_LENGTH}}]"


def _moments(positions):
    """Number of draws; mean of each chain, and sum of squares about it, (num_chains, d).

    The moments are estimated from about `_MOST_DRAWS` of the draws.
    """
    leaves = jax.tree.leaves(positions)
    step = max(1, len(leaves[0]) // _MOST_DRAWS)
    leaves = [leaf[::step].reshape(len(leaf[::step]), leaf.shape[1], -1)[:, :, :_MOST_COORDINATES] for leaf in leaves]
    x = np.concatenate(leaves, axis=2)[:, :, :_MOST_COORDINATES].astype(np.float64)
    num_draws, mean = len(jax.tree.leaves(positions)[0]), x.mean(axis=0)
    return num_draws, mean, num_draws * np.mean((x - mean) ** 2, axis=0)


def _combine(old, new):
    """The moments of two sets of draws together. Source: Chan, Golub & LeVeque (1983)."""
    if old is None:
        return new
    (n, mean, squares), (m, new_mean, new_squares) = old, new
    change = new_mean - mean
    return n + m, mean + change * (m / (n + m)), squares + new_squares + change**2 * (n * m / (n + m))


def _rhat(moments):
    """The largest R-hat, as a text for the line, or "" if there is none.

    Without splits and ranks: sqrt(1 - 1/n + variance of the chains' means / mean of their variances).
    """
    n, means, squares = moments
    if n < 2 or len(means) < 2:
        return ""
    within = np.mean(squares, axis=0) / (n - 1)
    between = np.var(means, axis=0, ddof=1)
    is_known = within > 0
    return f", R-hat {np.sqrt(1 - 1 / n + np.max(between[is_known] / within[is_known], initial=0)):.3f}"
