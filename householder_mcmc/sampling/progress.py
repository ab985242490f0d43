"""A line on the terminal that says how far a run is."""

import sys
import time
from typing import Any

import jax
import numpy as np

__all__ = ["Progress"]

_LENGTH = 20

# Warnings take about so long for each number of the draws, on one core with ArviZ 0.23. They come with the bar if that
# is no more than this share of the time that the run has taken.
_SECONDS_A_NUMBER = 8e-7
_SHARE = 0.05

# R-hat is shown of so many coordinates at most, the first ones, and of about so many draws of each block, so that the
# line costs little.
_MOST_COORDINATES = 1000
_MOST_DRAWS = 100


class Progress:
    """Written to standard error between blocks; on a terminal over itself, else once at the end.

    label: what the line begins with. has_warnings: whether those of the result come after it.
    """

    def __init__(self, is_shown: bool, label: str = "", has_warnings: bool = True):
        self.is_shown, self.label, self.has_warnings = is_shown, label, has_warnings
        self.is_terminal = is_shown and sys.stderr.isatty()
        self.begins, self.num_divergent, self.moments = time.perf_counter(), 0, None
        self.text = ""

    def show(self, text: str) -> None:
        """The line is now this text, over the one of before."""
        text = self.label + text
        if self.is_terminal:
            print(f"\r{text:<{len(self.text)}}", end="", file=sys.stderr, flush=True)
        self.text = text

    def follow(self, draws: Any, num_done: int, num_draws: int, step_size: Any) -> None:
        """After a block of draws: how many there are, of how many, and the state of the chains."""
        if not self.is_shown:
            return
        self.num_divergent += int(np.sum(getattr(draws.infos, "is_divergent", 0)))
        self.moments = _combined(self.moments, _moments(draws.variables if draws.position is None else draws.position))
        seconds = time.perf_counter() - self.begins
        self.show(
            f"{_bar(num_done / num_draws)} {num_done}/{num_draws} draws, step size {float(step_size):.3g}, "
            f"{self.num_divergent} divergent{_rhat(self.moments)}, {seconds:.0f} s"
        )

    def end(self, result: Any = None) -> None:
        """Leave the line, and begin the next: with the warnings of the result, if there is one and they are quick."""
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
    """Number of draws, and of each chain mean and sum of squares about it, (num_chains, d)."""
    leaves = jax.tree.leaves(positions)
    step = max(1, len(leaves[0]) // _MOST_DRAWS)
    leaves = [leaf[::step].reshape(len(leaf[::step]), leaf.shape[1], -1)[:, :, :_MOST_COORDINATES] for leaf in leaves]
    x = np.concatenate(leaves, axis=2)[:, :, :_MOST_COORDINATES].astype(np.float64)
    num_draws, mean = len(jax.tree.leaves(positions)[0]), x.mean(axis=0)
    return num_draws, mean, num_draws * np.mean((x - mean) ** 2, axis=0)


def _combined(old, new):
    """Moments of both. Source: Chan, Golub & LeVeque (1983)."""
    if old is None:
        return new
    (n, mean, squares), (m, new_mean, new_squares) = old, new
    change = new_mean - mean
    return n + m, mean + change * (m / (n + m)), squares + new_squares + change**2 * (n * m / (n + m))


def _rhat(moments):
    """The largest R-hat, in words, without splits and ranks: sqrt(1 - 1/n + variance of means / mean of variances)."""
    n, means, squares = moments
    if n < 2 or len(means) < 2:
        return ""
    within = np.mean(squares, axis=0) / (n - 1)
    between = np.var(means, axis=0, ddof=1)
    is_known = within > 0
    return f", R-hat {np.sqrt(1 - 1 / n + np.max(between[is_known] / within[is_known], initial=0)):.3f}"
