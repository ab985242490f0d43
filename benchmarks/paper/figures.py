"""The paper's figures from stored results: left as in the paper, right with our gains, latest eigenvectors.

A filled box is an ESS that counts (`tables.counts`); a hollow one is of chains that explored a part of the target, or
that disagree.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.paper import results, tables
from benchmarks.paper.experiments import experiments

_BOXES = {  # figure number -> results file, title
    2: ("gaussian1", "first Gaussian"),
    4: ("gaussian2", "second Gaussian"),
    5: ("logistic", "logistic regression"),
    7: ("xy", "XY model"),
}
_COLOURS = {
    "none": "tab:gray",
    "diagonal": "tab:olive",
    "dense": "tab:red",
    "eigen": "tab:blue",
    "eigen_identity": "tab:cyan",
    "diagonal_plus_LR": "tab:green",
    "pBaM": "tab:purple",
    "exact": "black",
}
_RIGHT = ("latest", "corrected")  # variants on the right


def draw(folder: Path) -> None:
    """Draw every figure whose results are in the folder."""
    table = results.load(folder)
    for number, (source, title) in _BOXES.items():
        if source in set(table["source"]):
            _save(box_plots(table[table["source"] == source], title), folder, number)
    if (folder / "recovery_recovery.csv").exists():
        _save(
            recovery(pd.read_csv(folder / "recovery_recovery.csv"), tables.authors("eigenvector_recovery")), folder, 1
        )
    if (folder / "xy2_draws.csv").exists():
        _save(two_angles(pd.read_csv(folder / "xy2_draws.csv")), folder, 6)
    _save(spectrum(), folder, 3)


def box_plots(table: pd.DataFrame, title: str) -> Figure:
    """Raw and per-second median ESS of one experiment, log10, over dimensions; one box a scheme.

    On the right the ESS of all chains is scaled to two, as many as on the left.
    """
    figure = Figure(figsize=(12, 7), layout="constrained")
    grid = figure.subplots(2, 2, sharey="row")
    for column, (is_shown, name) in enumerate(_sides(table)):
        side = table[is_shown]
        ess = "medESS_cos" if column == 1 and side["medESS_cos"].notna().any() else "medESS"
        raw = side[ess] * 2 / side["chains"]
        for axes, values, label in (
            (grid[0, column], raw, "median ESS"),
            (grid[1, column], tables.ess_per_second(side, ess), "median ESS per second"),
        ):
            _boxes(axes, side.assign(value=np.log10(values.clip(lower=1e-3))))
            axes.set(xlabel="dimension", ylabel=f"log10 {label}" if column == 0 else "")
        grid[0, column].set_title(f"{title}, {name}{', ESS of the cosines' if ess == 'medESS_cos' else ''}")
    schemes = [scheme for scheme in _COLOURS if scheme in set(table["scheme"])]
    handles = [Patch(facecolor=_COLOURS[scheme], label=scheme) for scheme in schemes]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _boxes(axes, table):
    dims = sorted(table["d"].unique())
    schemes = [scheme for scheme in _COLOURS if scheme in set(table["scheme"])]
    width = 0.8 / max(len(schemes), 1)
    for scheme_number, scheme in enumerate(schemes):
        for dim_number, dim in enumerate(dims):
            of_box = table[(table["scheme"] == scheme) & (table["d"] == dim)]
            if of_box.empty:
                continue
            centre = dim_number + (scheme_number - (len(schemes) - 1) / 2) * width
            box = axes.boxplot([of_box["value"]], positions=[centre], widths=0.8 * width, patch_artist=True, sym=".")
            colour = _COLOURS[scheme]
            box["boxes"][0].set(edgecolor=colour, facecolor=colour if tables.counts(of_box) else "none")
            box["medians"][0].set_color("black")
            for line in box["whiskers"] + box["caps"]:
                line.set_color(colour)
    axes.set_xticks(range(len(dims)), [str(dim) for dim in dims])
    axes.grid(axis="y", alpha=0.3)


def _sides(table):
    """Which rows are shown left and right, with titles."""
    is_right = table["variant"].isin(_RIGHT)
    return (~tables.is_ours(table), "as in the paper"), (is_right, "our gains, latest eigenvectors")


def recovery(distances: pd.DataFrame, authors: pd.DataFrame) -> Figure:
    """sin^2 between the leading eigenvectors of L L^T and of the target along the run; dotted: the authors' program."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    grid = figure.subplots(1, 2, sharey=True)
    for axes, (is_shown, title) in zip(grid, _sides(distances), strict=True):
        side = distances[is_shown]
        for scheme, runs in side.groupby("scheme", sort=False):
            for replicate, run in runs.groupby("replicate"):
                label = scheme if replicate == 1 else None
                axes.plot(run["iteration"], run["sin2_leading"], color=_COLOURS[scheme], label=label, alpha=0.7)
        axes.set(yscale="log", xlabel="iteration", title=title)
        axes.grid(alpha=0.3)
    for scheme, run in authors[authors["scheme"].isin(list(_COLOURS))].groupby("scheme"):
        run = run[run["replicate"] == run["replicate"].min()]
        grid[0].plot(run["iteration"], run["sin2_leading"], ":", color=_COLOURS[scheme])
    grid[0].set_ylabel("sin^2 to the leading eigenvector")
    grid[0].legend(frameon=False, fontsize="small")
    return figure


def spectrum(dim: int = 200) -> Figure:
    """Eigenvalues of one covariance of the second Gaussian."""
    target = experiments("program")["gaussian2"].target(dim, np.random.default_rng(0))
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(np.arange(1, dim + 1), 1 / np.linalg.eigvalsh(target.precision), ".")
    axes.set(yscale="log", xlabel="eigenvalue", ylabel="variance", title=f"second Gaussian, d = {dim}")
    return figure


def two_angles(draws: pd.DataFrame) -> Figure:
    """States of an unpreconditioned chain on two angles."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    for chain, states in draws[~tables.is_ours(draws)].groupby("chain"):
        axes.plot(states["x1"], states["x2"], ".", markersize=3, label=f"chain {chain}")
    axes.set(xlabel="first angle", ylabel="second angle", title="XY model, d = 2, no preconditioner", aspect="equal")
    axes.legend(frameon=False)
    return figure


def _save(figure, folder, number):
    figure.savefig(folder / f"figure{number}.png", dpi=100)
