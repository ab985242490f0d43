"""Results of the study as CSV files: one row per replicate, in the columns of the authors' `reference.csv`."""

import zlib
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from benchmarks.paper.experiments import Experiment
from benchmarks.paper.study import RECORD_EVERY, measure, sample, stack

_COLUMNS = (
    "experiment,d,scheme,m,replicate,iterations,chains,medESS,minESS,seconds,us_per_iter,cpu_seconds,us_per_iter_wall,"
    "acc_2nd_half,setup_seconds,sigma_final,medESS_mod2pi,medESS_cos,variant,blas,reason,"
    "medESS_sin,bulkESS,rhat,exploration_1,exploration_2,exploration_3,compile_seconds"
).split(",")
_NUM_RECOVERY = 3  # replicates whose distance along the run is kept


def run(name: str, experiment: Experiment, num_replicates: int, folder: Path) -> None:
    """Run an experiment; write `<name>.csv`, and `<name>_recovery.csv` or `<name>_draws.csv` where it has them."""
    rows, recovery, draws = [], [], []
    for dim in experiment.dims:
        targets = [experiment.target(dim, _generator(experiment, dim, r)) for r in range(num_replicates)]
        stacked = stack(targets)
        for variant_name, variant in experiment.variants.items():
            positions = np.stack(
                [
                    variant.start(target, _generator(experiment, dim, r, 1), variant.num_chains)
                    for r, target in enumerate(targets)
                ]
            )
            for scheme in experiment.schemes:
                learner = variant.learners[scheme]
                key = jax.random.key(zlib.crc32(f"{name} {dim} {variant_name} {scheme}".encode()))
                num_steps = experiment.num_steps(dim)
                sampled = sample(key, stacked, positions, learner, num_steps, experiment.records_recovery)
                labels = {"experiment": experiment.name, "d": dim, "scheme": scheme, "m": learner.rank}
                labels |= {"variant": variant_name, "blas": "xla-cpu-float64", "reason": ""}
                measured = [labels | row for row in measure(experiment, dim, sampled, targets)]
                rows += measured
                _print(measured, sampled.timing)
                if experiment.records_recovery:
                    recovery += _recovery_rows(labels, sampled.recovery)
                if experiment.keeps_draws:
                    draws += _draw_rows(labels, sampled.draws[0])
    pd.DataFrame(rows).reindex(columns=_COLUMNS).to_csv(folder / f"{name}.csv", index=False, float_format="%.5g")
    for suffix, table in (("recovery", recovery), ("draws", draws)):
        if table:
            pd.DataFrame(table).drop(columns=["m", "blas", "reason"]).to_csv(
                folder / f"{name}_{suffix}.csv", index=False, float_format="%.5g"
            )


def load(folder: Path) -> pd.DataFrame:
    """All results of a folder; the column `source` has the name of the file."""
    files = sorted(path for path in folder.glob("*.csv") if not path.stem.endswith(("_recovery", "_draws")))
    return pd.concat([pd.read_csv(path).assign(source=path.stem) for path in files], ignore_index=True)


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
