"""Rerun the paper's experiments: `python -m benchmarks.paper [--quick] [--settings program|text] [--only NAME]`."""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads make a small Cholesky factor up to 50 times slower

from benchmarks.paper import figures, results, tables  # noqa: E402
from benchmarks.paper.experiments import NUM_REPLICATES, experiments  # noqa: E402


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
    num_replicates = NUM_REPLICATES
    if options.quick:
        num_replicates = 3
        entries = {name: entry._replace(dims=entry.dims[:1], steps=entry.steps // 5) for name, entry in entries.items()}

    started = time.perf_counter()
    for name in options.only or entries:
        results.run(name, entries[name], num_replicates, folder, options.quick)
    print(f"{time.perf_counter() - started:.0f} s")
    figures.draw(folder)
    page = options.out.parent / "RESULTS.md"
    tables.report(folder, None if options.quick or not page.exists() else page)


if __name__ == "__main__":
    main()
