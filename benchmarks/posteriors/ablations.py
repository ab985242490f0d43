"""What each part and each setting of `hm.two_ended` does, and of `refresh_every` in `hm.eigen`: one change at a time.

    python -m benchmarks.posteriors.ablations [--seeds N] [--warmup] [--out FOLDER]

HMC as in `benchmarks.posteriors`: 100,000 gradients of 4 chains, of which a warm-up of 500 steps takes a part (unless
varied); bulk ESS per 1000 gradients, smallest and median over the parameters; medians over the seeds. Writes
`ablations.csv` and `ablations.md`, and for the constants of the warm-up (30,000 gradients, targets whose chains start
far away among them) `warmup_constants.csv` and `warmup_constants.md`.
"""

import argparse
import contextlib
import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import pandas as pd

import householder_mcmc as hm
from benchmarks import environment
from benchmarks.posteriors import problems
from benchmarks.posteriors.methods import Budget, together, trajectories
from benchmarks.posteriors.results import judge

RANK, NUM_GRADIENTS = 32, 100_000
TARGETS = ("first Gaussian, d = 100", "second Gaussian, d = 100", "breast cancer, d = 31")


class Change(NamedTuple):
    """scheme: () -> `hm.Scheme`. is_scaled: whether two_ended has its scales."""

    scheme: Callable
    num_warmup: int = 500
    num_chains: int = 4
    is_scaled: bool = True


def keeping(which: Callable) -> Callable:
    """two_ended with only the eigenvalues in its map that `which` says; the others are 1."""

    def scheme():
        learner = hm.two_ended(RANK)

        def preconditioner(state):
            learnt = learner.preconditioner(state)
            return learnt._replace(eigenvalues=jnp.where(which(learnt.eigenvalues), learnt.eigenvalues, 1))

        return learner._replace(preconditioner=preconditioner)

    return scheme


def as_fitted() -> hm.Scheme:
    """two_ended with the eigenvalues of the draws that its directions are fitted to."""
    learner = hm.two_ended(RANK)

    def preconditioner(state):
        return learner.preconditioner(state._replace(corrections=jnp.zeros_like(state.corrections)))

    return learner._replace(preconditioner=preconditioner)


def with_settings(**settings) -> Callable:
    return lambda: hm.two_ended(**({"rank": RANK} | settings))


def refreshed(gains: hm.Gains, every: int) -> Callable:
    return lambda: hm.eigen(3, gains=gains, refresh_every=every)


CHANGES = {
    "two_ended as it is": Change(with_settings()),
    "only wide directions": Change(keeping(lambda eigenvalues: eigenvalues > 1)),
    "only narrow directions": Change(keeping(lambda eigenvalues: eigenvalues < 1)),
    "only the scales": Change(keeping(lambda eigenvalues: eigenvalues < 0)),
    "no scales": Change(with_settings(), is_scaled=False),
    "eigenvalues not corrected": Change(as_fitted),
    **{f"forgetting {c}": Change(with_settings(forgetting=float(c))) for c in (1, 10, 30)},
    **{f"block_size {size}": Change(with_settings(block_size=size)) for size in (2, 5, 40)},
    **{f"rank {rank}": Change(with_settings(rank=rank)) for rank in (3, 8, 64)},
    **{f"{num} chains": Change(with_settings(), num_chains=num) for num in (2, 16)},
    **{f"{num} warm-up steps": Change(with_settings(), num_warmup=num) for num in (100, 250, 1000, 2000)},
}
REFRESH = {
    f"eigen(3), {name} gains, refresh_every {every}": Change(refreshed(gains, every))
    for name, gains in {"latest": hm.LATEST_GAINS, "default": hm.DEFAULT_GAINS}.items()
    for every in (1, 10, 100)
}


WARMUP_TARGETS = ("second Gaussian, d = 100", "diamonds, d = 26", "log-Gaussian Cox process, d = 102")
WARMUP_GRADIENTS = 30_000
_WARMUP_MODULES = ("warmup", "adaptive", "climbing", "step_size")
# Constants of the warm-up, and other values of them.
WARMUP = {
    "warm-up as it is": {},
    **{f"_RISE {value}": {"_RISE": value} for value in (0, 30)},
    **{f"_DEVIATIONS {value}": {"_DEVIATIONS": value} for value in (3, 20)},
    **{f"_RESETS {value}": {"_RESETS": value} for value in (1, 30)},
    **{f"_SLOW {value}": {"_SLOW": value} for value in (20, 500)},
    **{f"_SPELL {value}": {"_SPELL": value} for value in (5, 80)},
    **{f"_SEARCH {value}": {"_SEARCH": value} for value in (1.2, 16.0)},
    **{f"_FEWEST_RATES {value}": {"_FEWEST_RATES": value} for value in (8, 128)},
    **{f"_GROWTH {value}": {"_GROWTH": value} for value in (2, 32)},
    **{f"_SMALLEST_LEARNING_GAIN {value}": {"_SMALLEST_LEARNING_GAIN": value} for value in (0.0, 0.03, 0.3)},
    "_TUNING_GAIN t^-0.7": {"_TUNING_GAIN": hm.power_decay(0.7, offset=1.0)},
    **{f"_AVERAGE_GAIN {c}": {"_AVERAGE_GAIN": hm.growing_memory(c)} for c in (1.0, 10.0)},
    **{f"_LARGEST_FALL log {value}": {"_LARGEST_FALL": math.log(value)} for value in (2, 16)},
    **{f"_ACCEPTANCE_MEMORY {value}": {"_ACCEPTANCE_MEMORY": value} for value in (10, 250)},
    **{f"_STUCK {value}": {"_STUCK": value} for value in (0.4, 0.9)},
    **{f"_SMALLEST_RATE {value}": {"_SMALLEST_RATE": value} for value in (0.001, 0.1)},
}


@contextlib.contextmanager
def with_constants(changes: dict):
    """A context in which constants of the warm-up have other values."""
    modules = [import_module(f"householder_mcmc.adaptation.{name}") for name in _WARMUP_MODULES]
    with contextlib.ExitStack() as stack:
        for name, value in changes.items():
            (module,) = (module for module in modules if hasattr(module, name))
            stack.enter_context(mock.patch.object(module, name, value))
        with compiled_anew():
            yield


@contextlib.contextmanager
def compiled_anew():
    """A context without shared programs, which would not see that a constant is patched."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@contextlib.contextmanager
def without_scales():
    """A context in which `two_ended` leaves every coordinate's scale at 1."""
    module = import_module("householder_mcmc.learners.two_ended")
    with mock.patch.object(module, "_scales", lambda variances, old: jnp.ones_like(old)), compiled_anew():
        yield


def run(target: str, name: str, seed: int) -> dict:
    """One row of results."""
    change = (CHANGES | REFRESH)[name]
    method = trajectories(hm.hmc, together(change.scheme()))
    with jax.enable_x64(True), contextlib.nullcontext() if change.is_scaled else without_scales():
        problem = problems.PROBLEMS[target]()
        starts, budget = problem.starts(seed, change.num_chains), Budget(NUM_GRADIENTS, change.num_warmup)
        row = judge(problem, method(problem.logdensity, starts, jax.random.key(seed), budget))
    print(f"{target} | {name} | {row['min_ess']:.3g} / {row['median_ess']:.3g}", flush=True)
    return {"target": target, "change": name, "seed": seed} | row


def run_warmup(target: str, name: str, num_seeds: int) -> list[dict]:
    """Rows of results, one a seed, which share a compiled program."""
    method, rows = trajectories(hm.hmc, together(hm.two_ended(RANK))), []
    with jax.enable_x64(True), with_constants(WARMUP[name]):
        problem = problems.PROBLEMS[target]()
        for seed in range(num_seeds):
            starts, budget = problem.starts(seed, 4), Budget(WARMUP_GRADIENTS)
            row = judge(problem, method(problem.logdensity, starts, jax.random.key(seed), budget))
            rows.append({"target": target, "change": name, "seed": seed} | row)
            print(f"{target} | {name} | {row['min_ess']:.3g} / {row['median_ess']:.3g}", flush=True)
    return rows


def table(rows: pd.DataFrame) -> str:
    """Markdown: one row a change, one column a target; in brackets what does not count."""
    targets = list(dict.fromkeys(rows["target"]))
    lines = ["| | " + " | ".join(targets) + " |", "|" + "---|" * (len(targets) + 1)]
    for change, of_change in rows.groupby("change", sort=False):
        cells = []
        for target in targets:
            chosen = of_change[of_change["target"] == target]
            middle = chosen[["min_ess", "median_ess"]].median()
            cell = f"{middle['min_ess']:.3g} / {middle['median_ess']:.3g}" if len(chosen) else ""
            cells.append(cell if chosen["counts"].astype(float).median() > 0.5 or not cell else f"({cell})")
        lines.append(f"| {change} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.posteriors.ablations", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--warmup", action="store_true", help="only the constants of the warm-up")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results", help="folder of the results")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = [(target, name) for name in CHANGES for target in TARGETS]
    tasks += [(TARGETS[0], name) for name in REFRESH]
    with environment.pool() as pool:
        of_warmup = [
            pool.submit(run_warmup, target, name, options.seeds) for name in WARMUP for target in WARMUP_TARGETS
        ]
        runs = [pool.submit(run, *task, seed) for task in tasks for seed in range(options.seeds) if not options.warmup]
        _write(options.out / "warmup_constants", [row for each in of_warmup for row in each.result()])
        if runs:
            _write(options.out / "ablations", [each.result() for each in runs])


def _write(path, rows):
    rows = pd.DataFrame(rows)
    rows.to_csv(path.with_suffix(".csv"), index=False, float_format="%.4g")
    path.with_suffix(".md").write_text(table(rows) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
