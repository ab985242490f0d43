"""Samplers at about equal numbers of gradients, warm-up included, on the paper's targets and on real posteriors.

    python -m benchmarks.posteriors [--only TARGET] [--methods METHOD] [--seeds N] [--out FOLDER]

Four chains in double precision, 100,000 gradients in all, or 1,000,000 on the three targets of `study.HARD`;
NUTS uses more where its warm-up does. All warm-ups take 500 draws a chain, on the hard targets 2000, and so does each
phase of MCLMC's tuning; MALA, HMC, or NUTS with HMC's step size, is then frozen on our map. NUTS and HMC draw until the
gradients are used up, 300 a chain at least. ESS is ArviZ's bulk ESS per 1000 gradients of warm-up and sampling
together, of x and of (x - mean)^2, over all parameters. Explored is the range of the variance over the reference; an
ESS counts if that is in 0.8-1.25 and R-hat below 1.05. Seconds are of the processor, for sampling alone, with one
thread. Left out are a dense metric from d = 500 on, on the Gaussians of d = 1000 NUTS with a diagonal metric and our
map learnt in each chain, and nutpie on stochastic volatility.

Writes `posteriors.csv` and `posteriors.md`, where the rows of other methods and targets stay. A row has the commit that
it is of. `--tables` runs nothing and writes the tables of the rows that there are. If the rows are those of the
repository, both also fill the marked tables of README.md and RESULTS.md.
"""

import argparse
from concurrent.futures import as_completed
from pathlib import Path

import pandas as pd

from benchmarks import environment
from benchmarks.paper.tables import fill
from benchmarks.posteriors import results, study
from benchmarks.posteriors.methods import METHODS
from benchmarks.posteriors.problems import PROBLEMS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "RESULTS.md")


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.posteriors", description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=PROBLEMS, help="run only these; may be repeated")
    parser.add_argument("--methods", action="append", choices=METHODS, help="run only these; may be repeated")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--tables", action="store_true", help="run nothing: write the tables of the rows that there are"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(arguments)
    names, methods = options.only or list(PROBLEMS), options.methods or list(METHODS)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "posteriors.csv"
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame()
    if not options.tables:
        with environment.pool() as pool:
            runs = [pool.submit(study.run, name, methods, options.seeds) for name in names]
            for each in as_completed(runs):
                if not each.result():
                    continue
                rows = results.replace_rows(rows, pd.DataFrame(each.result()))
                rows.to_csv(file, index=False, float_format="%.4g")
                write_tables(rows, file)
    print(write_tables(rows, file))


def write_tables(rows: pd.DataFrame, file: Path) -> str:
    """Write the tables of the rows of a CSV file beside it, and into `PAGES` if it is the repository's; return them."""
    verdicts = f"{results.verdicts(rows)}\n\n{results.provenance(rows)}"
    page = f"{verdicts}\n\n{results.table(rows)}\n"
    file.with_suffix(".md").write_text(page)
    if file.parent.resolve() == RESULTS.resolve():
        blocks = {"posteriors familiar": results.familiar(rows), "posteriors verdicts": verdicts}
        for each in PAGES:
            each.write_text(fill(each.read_text(), blocks))
    return page


if __name__ == "__main__":
    main()
