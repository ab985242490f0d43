"""What a user waits for: from the start of a process to 1000 draws of each of 4 chains after 500 warm-up steps.

    python -m benchmarks.first_answer [--models MODEL] [--samplers SAMPLER] [--repeats N] [--limit SECONDS] [--out DIR]

Every measurement is a fresh process on one core: the interpreter, the imports of the sampler, compilation, warm-up and
draws. Not counted is the code of the model, whose imports and data are the same for all. The samplers have their
defaults, hence JAX's float32, but for nutpie, which is in double precision. The posterior of a model is the same for
all samplers, and so are the starts, but for nutpie with PyMC.

Each repeat has its own seed; the table has medians. "Cached" is with all compiled programs on disk from an earlier run:
JAX's persistent compilation cache, and for PyMC the folders of PyTensor and Numba. ESS is the smallest bulk ESS of the
parameters. CPU seconds, in the CSV, are what the process used; it waits for longer where others use its core. A sampler
that takes longer than the limit is not run again on that model. Writes `first_answer.csv` and `first_answer.md`.
"""

import argparse
import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks import environment
from benchmarks.first_answer.child import MODELS, SAMPLERS
from householder_mcmc.results import diagnostics

ROOT = Path(__file__).parents[2]
_PACKAGES = ("jax", "jaxlib", "blackjax", "numpyro", "nutpie", "pymc")
_NUMBERS = ("seconds", "model_seconds", "import_seconds", "cpu_seconds", "min_ess", "ess_per_second", "max_rhat")


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_answer", description=__doc__.split("\n")[0])
    parser.add_argument("--models", action="append", choices=MODELS, help="run only these; may be repeated")
    parser.add_argument("--samplers", action="append", choices=SAMPLERS, help="run only these; may be repeated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--limit", type=float, default=300, help="seconds that one process may take")
    parser.add_argument("--out", type=Path, help="folder of the results; benchmarks/results, if all run")
    options = parser.parse_args(arguments)
    if options.out is None:
        if options.models or options.samplers:
            parser.error("a part of the benchmark needs --out, for its results would replace those of all.")
        options.out = ROOT / "benchmarks" / "results"
    options.out.mkdir(parents=True, exist_ok=True)
    rows, origin = [], _origin()
    for model in options.models or MODELS:
        for sampler in options.samplers or SAMPLERS:
            for row in measure(model, sampler, options):
                rows.append({"model": model, "sampler": sampler} | row | origin)
                print(*(str(value) for value in list(rows[-1].values())[:6]), file=sys.stderr, flush=True)
            _write(rows, options.out / "first_answer.csv")
    page = table(rows)
    (options.out / "first_answer.md").write_text(page + "\n")
    print(page)


def measure(model: str, sampler: str, options):
    """Rows without a cache, then with one that a run before them has filled. Stops at the first without draws."""
    with tempfile.TemporaryDirectory() as cache:
        for is_cached in (False, True):
            if is_cached:
                run(model, sampler, 0, options, cache)
            for seed in range(options.repeats):
                row = run(model, sampler, seed, options, cache if is_cached else None)
                yield {"cached": is_cached, "seed": seed} | row
                if row["outcome"] != "ok":
                    return


def run(model: str, sampler: str, seed: int, options, cache: str | None) -> dict:
    """One process. cache: the folder of programs compiled by earlier ones."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "JAX_ENABLE_COMPILATION_CACHE": str(cache is not None),
            "JAX_COMPILATION_CACHE_DIR": f"{cache}/jax",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "PYTENSOR_FLAGS": f"base_compiledir={cache or folder}/pytensor",
            "NUMBA_CACHE_DIR": f"{cache or folder}/numba",
        }
        file = Path(folder) / "draws.npy"
        sizes = (str(size) for size in (seed, options.warmup, options.draws))
        command = [sys.executable, "-m", "benchmarks.first_answer.child", model, sampler, *sizes, str(file)]
        began, cpu_began = time.perf_counter(), _cpu_seconds_of_children()
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=options.limit,
                cwd=ROOT,
                env=os.environ | environment.ONE_THREAD | variables,
            )
        except subprocess.TimeoutExpired:
            return {"outcome": f"> {options.limit:g} s"} | dict.fromkeys(_NUMBERS, float("nan"))
        seconds, cpu_seconds = time.perf_counter() - began, _cpu_seconds_of_children() - cpu_began
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            return {"outcome": "failed"} | dict.fromkeys(_NUMBERS, float("nan"))
        parts = json.loads(done.stdout.splitlines()[-1])
        ess, _, rhat = diagnostics.ess_and_rhat(np.load(file))
    seconds -= parts["model_seconds"]
    row = {"seconds": seconds, "cpu_seconds": cpu_seconds, "min_ess": ess.min(), "max_rhat": rhat.max()} | parts
    row["ess_per_second"] = row["min_ess"] / seconds
    return {"outcome": "ok"} | {name: float(row[name]) for name in _NUMBERS}


def _cpu_seconds_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _origin() -> dict:
    """The commit and the versions that the numbers are of."""
    return {"commit": environment.commit()} | {package: version(package) for package in _PACKAGES}


def _write(rows, path):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({name: f"{v:.4g}" if isinstance(v, float) else v for name, v in row.items()} for row in rows)


def table(rows: list[dict]) -> str:
    """Markdown: medians over the seeds of every sampler on every model."""
    columns = ("model", "sampler", "seconds", "cached", "smallest ESS", "ESS/s", "cached", "largest R-hat")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for model, sampler in dict.fromkeys((row["model"], row["sampler"]) for row in rows):
        fresh, cached = (
            [row for row in rows if (row["model"], row["sampler"], row["cached"]) == (model, sampler, is_cached)]
            for is_cached in (False, True)
        )
        cells = [
            _median(fresh, "seconds", ".1f"),
            _median(cached, "seconds", ".1f"),
            _median(fresh, "min_ess", ".0f"),
            _median(fresh, "ess_per_second", ".3g"),
            _median(cached, "ess_per_second", ".3g"),
            _median(fresh, "max_rhat", ".3f"),
        ]
        lines.append(f"| {model} | {sampler} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _median(rows, name, form):
    """Median over the rows, or how a run ended that has no draws; empty without rows."""
    ends = [row["outcome"] for row in rows if row["outcome"] != "ok"]
    if ends or not rows:
        return ends[0] if ends else ""
    return format(statistics.median(row[name] for row in rows), form)


if __name__ == "__main__":
    main()
