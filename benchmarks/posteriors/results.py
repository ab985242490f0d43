"""What a sample is worth, and tables of it."""

import numpy as np
import pandas as pd

from benchmarks.posteriors.methods import METHODS, OURS, Sample
from benchmarks.posteriors.problems import PROBLEMS, Problem
from householder_mcmc.results import diagnostics

# What the README compares: targets from which a reader can tell where the library helps and where it does not, and the
# methods that its reader knows. All rows are in `posteriors.md`.
README_TARGETS = (
    "German credit, d = 25",
    "breast cancer, d = 31",
    "kidiq, d = 4",
    "diamonds, d = 26",
    "Gaussian process, d = 13",
    "log-Gaussian Cox process, d = 102",
    "Cox process, squared exponential, d = 256",
    "item response, d = 501",
    "second Gaussian, d = 1000",
    "stochastic volatility, d = 2519",
)
README_METHODS = {
    "HMC, two_ended": "HMC, `two_ended`",
    "NUTS, BlackJAX diagonal": "NUTS, diagonal",
    "NUTS, BlackJAX dense": "NUTS, dense",
    "NUTS, nutpie low rank": "nutpie, low rank",
    "MCLMC, BlackJAX": "MCLMC",
}

# Where an ESS counts. In a thousand dimensions an ESS of squares of 400 is needed for the noise to stay within.
EXPLORED, LARGEST_RHAT = (0.8, 1.25), 1.05
_MEASURED = (
    "min_ess median_ess min_ess_of_squares worst_per_second max_rhat min_explored max_explored max_error"
).split()


def judge(problem: Problem, sample: Sample) -> dict:
    """One row of results: NaN, and `counts` False, where a draw is not finite."""
    x = np.moveaxis(np.asarray(problem.statistics(sample.draws)), 0, 1)
    row = {"num_gradients": sample.num_gradients, "seconds": sample.seconds} | dict.fromkeys(_MEASURED, np.nan)
    if not np.isfinite(x).all():
        return row | {"counts": False}
    ess, _, rhat = diagnostics.ess_and_rhat(x)
    ess_of_squares, _, _ = diagnostics.ess_and_rhat((x - x.mean(axis=(0, 1))) ** 2)
    explored = x.var(axis=(0, 1)) / problem.variances
    errors = (x.mean(axis=(0, 1)) - problem.means) / np.sqrt(problem.variances)
    per_gradient = 1e3 / sample.num_gradients
    is_explored = EXPLORED[0] < explored.min() and explored.max() < EXPLORED[1]
    return row | {
        "min_ess": per_gradient * ess.min(),
        "median_ess": per_gradient * np.median(ess),
        "min_ess_of_squares": per_gradient * ess_of_squares.min(),
        "worst_per_second": min(ess.min(), ess_of_squares.min()) / sample.seconds,
        "max_rhat": rhat.max(),
        "min_explored": explored.min(),
        "max_explored": explored.max(),
        "max_error": np.abs(errors).max(),
        "counts": bool(is_explored and rhat.max() < LARGEST_RHAT),
    }


def replace_rows(rows: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """The rows with all those of a target and a method that has new ones replaced, in the order of the study."""
    if len(rows):
        pairs = ["target", "method"]
        is_old = pd.MultiIndex.from_frame(rows[pairs]).isin(pd.MultiIndex.from_frame(new[pairs]))
        new = pd.concat([rows[~is_old], new], ignore_index=True)
    order = {name: place for place, name in enumerate([*PROBLEMS, *METHODS])}
    return new.sort_values(["target", "method", "seed"], key=lambda column: column.replace(order), ignore_index=True)


def worst_ess(rows: pd.DataFrame) -> pd.Series:
    """The smaller of the smallest ESS of x and of (x - mean)^2, per 1000 gradients; 0 for a row that does not count."""
    return rows[["min_ess", "min_ess_of_squares"]].min(axis=1).where(rows["counts"].astype(bool), 0.0)


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Medians over the seeds by target and method; an ESS counts if it does for more than half of them.

    worst: `worst_ess`.
    """
    rows = rows.assign(counts=rows["counts"].astype(float), worst=worst_ess(rows))
    medians = rows.groupby(["target", "method"], sort=False).median(numeric_only=True).reset_index()
    return medians.assign(counts=medians["counts"] > 0.5)


def table(rows: pd.DataFrame) -> str:
    """Markdown: one row a target and a method."""
    lines = [
        "| target | method | ESS of x, min / median | of squares, min | worse of both, per second | explored | R-hat "
        "| largest error, sd | gradients |",
        "|" + "---|" * 9,
    ]
    for row in summarise(rows).itertuples():
        if np.isnan(row.min_ess):
            lines.append(f"| {row.target} | {row.method} | not finite | | | | | | |")
            continue
        mark = "" if row.counts else " (does not count)"
        lines.append(
            f"| {row.target} | {row.method} | {row.min_ess:.3g} / {row.median_ess:.3g}{mark} "
            f"| {row.min_ess_of_squares:.3g} | {row.worst_per_second:.3g} "
            f"| {row.min_explored:.2f}-{row.max_explored:.2f} | {row.max_rhat:.2f} | {row.max_error:.2f} "
            f"| {row.num_gradients:,.0f} |"
        )
    return "\n".join(lines)


def verdicts(rows: pd.DataFrame) -> str:
    """Markdown: by target, the worse of x and x^2 of our best method and of the best other one."""
    lines = [
        "| target | ours, best | others, best | ratio | two_ended / diagonal, min ESS of x: MALA | HMC |",
        "|" + "---|" * 6,
    ]
    for target, of_target in summarise(rows).groupby("target", sort=False):
        of_target = of_target.set_index("method")
        is_ours = of_target.index.isin(OURS)
        ours, others = (_best(of_target[chosen]) for chosen in (is_ours, ~is_ours))
        ratio = f"{ours[1] / others[1]:.2f}" if others[1] > 0 else "-"
        cells = [f"{value:.3g} ({name})" if name else "none counts" for name, value in (ours, others)]
        cells += [ratio, *(_over_diagonal(of_target, sampler) for sampler in ("MALA", "HMC"))]
        lines.append(f"| {target} | {' | '.join(cells)} |")
    return "\n".join(lines)


def familiar(rows: pd.DataFrame) -> str:
    """Markdown: `worst` of our HMC and of what users know, and under it the seeds and commits of these rows."""
    rows = rows[rows["target"].isin(README_TARGETS) & rows["method"].isin(README_METHODS)]
    worst = summarise(rows).pivot(index="target", columns="method", values="worst")
    worst = worst.reindex(index=README_TARGETS, columns=README_METHODS)
    lines = [f"| target | {' | '.join(README_METHODS.values())} |", "|---" + "|---:" * len(README_METHODS) + "|"]
    for target, values in zip(README_TARGETS, worst.to_numpy(float), strict=True):
        cells = [
            "not run" if np.isnan(value) else f"{value:.2g}" if value < 100 else f"{value:.0f}" for value in values
        ]
        lines.append(f"| {target} | {' | '.join('no' if cell == '0' else cell for cell in cells)} |")
    return "\n".join([*lines, "", provenance(rows)])


def provenance(rows: pd.DataFrame) -> str:
    """One sentence: how many seeds the rows have, and the commits that they are of."""
    seeds = rows.groupby(["target", "method"])["seed"].nunique()
    number = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    commits = rows.get("commit", pd.Series(index=rows.index, dtype=object)).fillna("older code").unique()
    return f"Medians over {number} seed{'s' * (number != '1')}; commit {', '.join(map(str, commits))}."


def _over_diagonal(methods, sampler):
    """Ratio of the smallest ESS of x, if both count."""
    pair = methods.reindex([f"{sampler}, two_ended", f"{sampler}, diagonal"])
    ours, diagonal = pair["min_ess"]
    return f"{ours / diagonal:.2f}" if pair["counts"].eq(True).all() else "-"


def _best(methods):
    if not len(methods) or methods["worst"].max() == 0:
        return "", 0.0
    return methods["worst"].idxmax(), methods["worst"].max()
