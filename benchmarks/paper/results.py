"""Results of the study as CSV files: one row per replicate, in the columns of the authors' `reference.csv`."""

import itertools
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd

from benchmarks.paper.experiments import NUM_REPLICATES, Experiment, experiments
from benchmarks.paper.study import RECORD_EVERY, build, measure, sample, stack

_COLUMNS = (
    "experiment,d,scheme,m,replicate,iterations,chains,medESS,minESS,seconds,us_per_iter,cpu_seconds,us_per_iter_wall,"
    "acc_2nd_half,setup_seconds,sigma_final,medESS_mod2pi,medESS_cos,variant,blas,reason,"
    "medESS_sin,bulkESS,rhat,exploration_1,exploration_2,exploration_3,compile_seconds"
).split(",")
_NUM_RECOVERY = 3  # replicates whose distance along the run is kept


class Part(NamedTuple):
    """Rows of the results of one experiment in one dimension: what is measured, recovery along the run, and draws."""

    measured: list[dict]
    recovery: list[dict]
    draws: list[dict]


def load_experiment(name: str, settings: str, is_quick: bool) -> tuple[Experiment, int]:
    """One of `experiments(settings)` and its replicates; quick: its smallest dimension, 3 replicates, a fifth of the
    steps.
    """
    experiment = experiments(settings)[name]
    if is_quick:
        return experiment._replace(dims=experiment.dims[:1], steps=experiment.steps // 5), 3
    return experiment, NUM_REPLICATES


def run_by_name(name: str, settings: str, is_quick: bool, dim: int) -> Part:
    """`run_dimension` for another process."""
    return run_dimension(name, *load_experiment(name, settings, is_quick), dim, is_quick)


def run(name: str, experiment: Experiment, num_replicates: int, folder: Path, is_quick: bool = False) -> None:
    """Run an experiment in all its dimensions and save it."""
    save(name, [run_dimension(name, experiment, num_replicates, dim, is_quick) for dim in experiment.dims], folder)


def run_dimension(name: str, experiment: Experiment, num_replicates: int, dim: int, is_quick: bool = False) -> Part:
    """Run all configurations in one dimension."""
    part = Part([], [], [])
    for labels, sampled, targets in _of_dimension(name, experiment, dim, num_replicates, is_quick):
        measured = [labels | row for row in measure(experiment, dim, sampled, targets)]
        part.measured.extend(measured)
        _print(measured, sampled.timing)
        if experiment.records_recovery:
            part.recovery.extend(_recovery_rows(labels, sampled.recovery))
        if experiment.keeps_draws:
            part.draws.extend(_draw_rows(labels, sampled.draws[0]))
    return part


def save(name: str, parts: list[Part], folder: Path) -> None:
    """Write `<name>.csv`, and `<name>_recovery.csv` or `<name>_draws.csv` where there are any."""
    measured, recovery, draws = (list(itertools.chain(*rows)) for rows in zip(*parts, strict=True))
    _save(pd.DataFrame(measured).reindex(columns=_COLUMNS), folder / f"{name}.csv")
    for suffix, table in (("recovery", recovery), ("draws", draws)):
        if table:
            _save(pd.DataFrame(table).drop(columns=["m", "blas", "reason"]), folder / f"{name}_{suffix}.csv")


def _of_dimension(name, experiment, dim, num_replicates, is_quick):
    """Labels, sample and targets of each configuration; all are compiled first, on all cores."""
    targets = [experiment.target(dim, _generator(experiment, dim, r)) for r in range(num_replicates)]
    stacked = stack(targets)
    configurations = []
    for variant_name, variant in experiment.variants.items():
        generators = [_generator(experiment, dim, r, 1) for r in range(num_replicates)]
        starts = map(variant.start, targets, generators, [variant.num_chains] * num_replicates)
        positions = np.stack(list(starts))
        for scheme, learner in variant.learners.items():
            if scheme in experiment.schemes:
                configurations.append((variant_name, scheme, learner, positions))

    def compile_one(configuration):
        *_, learner, positions = configuration
        return build(stacked, positions, learner, experiment.num_steps(dim), experiment.records_recovery, is_quick)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = list(pool.map(compile_one, configurations))
    for (variant_name, scheme, learner, positions), program in zip(configurations, programs, strict=True):
        key = jax.random.key(zlib.crc32(f"{name} {dim} {variant_name} {scheme}".encode()))
        labels = {"experiment": experiment.name, "d": dim, "scheme": scheme, "m": learner.rank}
        labels |= {"variant": variant_name, "blas": "xla-cpu-float64", "reason": ""}
        yield labels, sample(key, program, stacked, positions), targets


def load(folder: Path) -> pd.DataFrame:
    """All results of a folder; the column `source` has the name of the file."""
    files = sorted(path for path in folder.glob("*.csv") if not path.stem.endswith(("_recovery", "_draws")))
    return pd.concat([pd.read_csv(path).assign(source=path.stem) for path in files], ignore_index=True)


def _save(table, path):
    table.to_csv(path, index=False, float_format="%.5g")


def _generator(experiment, *numbers):
    return np.random.default_rng([zlib.crc32(experiment.name.encode()), *numbers])


def _recovery_rows(labels, recovery):
    return [
        labels | {"replicate": replicate + 1, "iteration": RECORD_EVERY * (record + 1), "sin2_leading": value}
        for record, values in enumerate(recovery)
        for replicate, value in enumerate(values[:_NUM_RECOVERY])
    ]


def _draw_rows(labels, draws):
    return [
        labels | {"chain": number + 1} | {f"x{k + 1}": value for k, value in enumerate(state)}
        for number, chain in enumerate(draws)
        for state in chain
    ]


def _print(rows, timing):
    table = pd.DataFrame(rows)
    first, middle = rows[0], table.select_dtypes("number").median()
    ratios = " ".join(f"{middle[column]:.3f}" for column in table if column.startswith("exploration"))
    print(
        f"{first['experiment']:10} d={first['d']:<4}{first['variant']:16}{first['scheme']:18}"
        f"ESS {middle['medESS']:<8.1f}us/iteration {middle['us_per_iter']:<8.1f}explored {ratios:20}"
        f"R-hat {middle['rhat']:.2f}  {timing.chain:.1f} s, compiled in {timing.compilation:.1f} s",
        flush=True,
    )
