"""What the library chooses by itself beside every fixed choice: the length of a warm-up, or the rank of `two_ended`.

    python -m benchmarks.posteriors.choices lengths|ranks [--seeds N] [--targets REGEX] [--out FOLDER]

HMC as in `benchmarks.posteriors`, with its budgets. Lengths are compared on its targets that are not hard. Writes
`lengths.csv` and `lengths.md`, or `ranks.csv` and `ranks.md`.
"""

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd

import householder_mcmc as hm
from benchmarks import environment
from benchmarks.posteriors.methods import Budget, together, trajectories
from benchmarks.posteriors.problems import PROBLEMS, dimension
from benchmarks.posteriors.results import judge, worst_ess
from benchmarks.posteriors.study import HARD, budget

LENGTHS = (None, 250, 500, 1000, 2000)
RANKS = (8, 32, 128)
_LARGEST_RANK = 1000  # rank d only up to here


class Study(NamedTuple):
    """options: target -> what is compared on it, None first, where the library chooses. scheme, budget: (option,
    target) -> those of a run. targets: their names."""

    options: Callable
    scheme: Callable
    budget: Callable
    targets: list[str]


def _ranks(target):
    """Fixed ranks below d, and d, unless it is what the library chooses."""
    dim = dimension(target)
    chosen = jax.eval_shape(hm.two_ended().init, np.zeros((1, dim), np.float32)).corrections.size
    fixed = {rank for rank in RANKS if rank < dim} | ({dim} if dim <= _LARGEST_RANK else set())
    return [None, *sorted(fixed - {chosen})]


STUDIES = {
    "lengths": Study(
        options=lambda target: list(LENGTHS),
        scheme=lambda length: hm.two_ended(),
        budget=lambda length, target: Budget(warmup=length),
        targets=[name for name in PROBLEMS if name not in HARD],
    ),
    "ranks": Study(
        options=_ranks,
        scheme=hm.two_ended,
        budget=lambda rank, target: budget(target),
        targets=[name for name in PROBLEMS if len(_ranks(name)) > 1],
    ),
}


def timed(adapt: Callable, seconds: list) -> Callable:
    """The warm-up, which also appends the processor's seconds that it takes."""

    def run(*args):
        started = time.process_time()
        result = jax.block_until_ready(adapt(*args))
        seconds.append(time.process_time() - started)
        return result

    return run


def run(study: str, target: str, num_seeds: int) -> list[dict]:
    """Rows of results, one for each option and seed. warmup_seconds: of the first seed with the compilation."""
    rows, commit, chosen = [], environment.commit(), STUDIES[study]
    with jax.enable_x64(True):
        problem = PROBLEMS[target]()
        for option in chosen.options(target):
            seconds = []
            method = trajectories(hm.hmc, timed(together(chosen.scheme(option)), seconds))
            for seed in range(num_seeds):
                budget = chosen.budget(option, target)
                sample = method(problem.logdensity, problem.starts(seed, 4), jax.random.key(seed), budget)
                row = {"target": target, "option": option or 0, "seed": seed, "commit": commit}
                row |= {"num_warmup_gradients": sample.num_warmup_gradients, "warmup_seconds": seconds[-1]}
                rows.append(row | judge(problem, sample))
                print(f"{target} | {option} | {rows[-1]['min_ess']:.3g} | {seconds[-1]:.2g} s", flush=True)
    return rows


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """By target and option, medians over the seeds of `worst_ess`, the same without the warm-up's gradients (alone),
    the warm-up's gradients, and the least of its seconds."""
    rows = rows.assign(worst=worst_ess(rows))
    rows["alone"] = rows["worst"] * rows["num_gradients"] / (rows["num_gradients"] - rows["num_warmup_gradients"])
    groups = rows.groupby(["target", "option"], sort=False)
    return groups[["worst", "alone", "num_warmup_gradients"]].median().join(groups["warmup_seconds"].min())


def table_of_lengths(rows: pd.DataFrame) -> str:
    """Markdown: `worst_ess`, with the warm-up's gradients and without, and what the warm-up costs.

    The best length is the one of the highest ESS, the warm-up's gradients included.
    """
    head = ["target", *(f"ESS, {length or 'by itself'}" for length in LENGTHS), "alone: by itself", "best of all"]
    head += ["gradients: by itself", "best length", "ratio"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for target, of_target in summarise(rows).groupby(level=0, sort=False):
        of_target = of_target.droplevel(0)
        best, gradients = of_target["worst"].drop(0).idxmax(), of_target["num_warmup_gradients"]
        cells = [f"{value:.3g}" for value in of_target["worst"]]
        cells += [f"{of_target['alone'][0]:.3g}", f"{of_target['alone'].max():.3g}"]
        cells += [f"{gradients[0]:,.0f}", f"{gradients[best]:,.0f} ({best})", f"{gradients[0] / gradients[best]:.2f}"]
        lines.append(f"| {target} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_ranks(rows: pd.DataFrame) -> str:
    """Markdown: `worst_ess` and seconds of the warm-up; the chosen rank beside the best of all.

    The ratio of seconds is to those of the rank with the highest ESS.
    """
    head = [
        "target",
        "chosen",
        *(f"rank {rank}" for rank in RANKS),
        "rank d",
        "chosen / best",
        "seconds / those of best",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for target, of_target in summarise(rows).groupby(level=0, sort=False):
        of_target, dim = of_target.droplevel(0), dimension(target)
        cells = [
            f"{of_target['worst'][option]:.3g}; {of_target['warmup_seconds'][option]:.2g} s"
            if option in of_target.index
            else ""
            for option in (0, *RANKS, dim)
        ]
        best, chosen = of_target.loc[of_target["worst"].idxmax()], of_target.loc[0]
        cells += [
            f"{chosen['worst'] / best['worst']:.2f}",
            f"{chosen['warmup_seconds'] / best['warmup_seconds']:.2f}",
        ]
        lines.append(f"| {target} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {"lengths": table_of_lengths, "ranks": table_of_ranks}


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.posteriors.choices", description=__doc__.split("\n")[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--targets", default="", help="part of the targets' names, a regular expression")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results", help="folder of the results")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    targets = [name for name in STUDIES[options.study].targets if re.search(options.targets, name)]
    with environment.pool() as pool:
        runs = [pool.submit(run, options.study, name, options.seeds) for name in targets]
        rows = pd.DataFrame([row for each in runs for row in each.result()])
    path = options.out / options.study
    rows.to_csv(path.with_suffix(".csv"), index=False, float_format="%.4g")
    path.with_suffix(".md").write_text(TABLES[options.study](rows) + "\n")
    print(TABLES[options.study](rows))


if __name__ == "__main__":
    main()
