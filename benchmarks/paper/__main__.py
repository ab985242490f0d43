"""Rerun the paper's experiments: `python -m benchmarks.paper [--quick] [--settings program|text] [--only NAME]`."""

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

# One experiment a core. OpenBLAS's threads make a small Cholesky factor up to 50 times slower, and XLA's gain nothing
# at these sizes. But its pool must be larger than the number of batched LAPACK calls that a program makes at once: each
# blocks a thread until others have done its batch, and where none is left the program never returns.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("NPROC", "8")

from benchmarks.paper import figures, results, tables  # noqa: E402
from benchmarks.paper.experiments import experiments  # noqa: E402


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smallest dimensions, 3 replicates, a fifth of the steps")
    parser.add_argument("--settings", choices=("program", "text"), default="program", help="which to run")
    parser.add_argument("--only", action="append", metavar="EXPERIMENT", help="run only these; may be repeated")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results", help="folder of the results")
    options = parser.parse_args(arguments)

    entries = experiments(options.settings)
    unknown = set(options.only or ()) - set(entries)
    if unknown:
        parser.error(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(entries)}.")
    folder = options.out / ("quick" if options.quick else "") / options.settings
    folder.mkdir(parents=True, exist_ok=True)

    started = time.perf_counter()
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        names = options.only or entries
        runs = [pool.submit(results.run_by_name, name, options.settings, options.quick, folder) for name in names]
        for each in runs:
            each.result()
    print(f"{time.perf_counter() - started:.0f} s")
    figures.draw(folder)
    page = options.out.parent / "RESULTS.md"
    tables.report(folder, None if options.quick or not page.exists() else page)


if __name__ == "__main__":
    main()
