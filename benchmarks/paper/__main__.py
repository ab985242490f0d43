"""Rerun the paper's experiments: `python -m benchmarks.paper [--quick] [--settings program|text] [--only NAME]`."""

import argparse
import time
from concurrent.futures import as_completed
from pathlib import Path

from benchmarks import environment
from benchmarks.paper import figures, results, tables
from benchmarks.paper.experiments import experiments


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
    names = options.only or list(entries)
    folder = options.out / ("quick" if options.quick else "") / options.settings
    folder.mkdir(parents=True, exist_ok=True)

    started = time.perf_counter()
    dims = {name: results.load_experiment(name, options.settings, options.quick)[0].dims for name in names}
    tasks = sorted(((dim, name) for name in names for dim in dims[name]), reverse=True)  # the dearest first
    with environment.pool() as pool:
        runs = {
            pool.submit(results.run_by_name, name, options.settings, options.quick, dim): (name, dim)
            for dim, name in tasks
        }
        parts = {}
        for each in as_completed(runs):
            name, dim = runs[each]
            parts[name, dim] = each.result()
            if all((name, dim) in parts for dim in dims[name]):
                results.save(name, [parts[name, dim] for dim in dims[name]], folder)
    print(f"{time.perf_counter() - started:.0f} s")
    figures.draw(folder)
    page = options.out.parent / "RESULTS.md"
    tables.report(folder, None if options.quick or not page.exists() else page)


if __name__ == "__main__":
    main()
