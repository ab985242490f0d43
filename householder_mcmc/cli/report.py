"""What the command line shows: a table of diagnostics, and a figure of the learnt spectrum and the ESS."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from householder_mcmc.preconditioners.maps import Dense, LowRank

__all__ = ["table", "figure", "spectrum"]

# The largest d for which a figure builds a (d, d) matrix of a `LowRank` map. It has 16 MB in float32, and its singular
# values take seconds, which is little beside the run. A round number, without another source.
_MOST_DENSE = 2000

# Number of a summary -> its label and format, in the order of the table.
_ROWS = {
    "min_ess": ("bulk ESS, min over parameters", "{:.0f}"),
    "median_ess": ("bulk ESS, median", "{:.0f}"),
    "min_ess_per_second": ("min ESS per second of sampling", "{:.2f}"),
    "median_ess_per_second": ("median ESS per second of sampling", "{:.1f}"),
    "min_ess_per_1000_gradients": ("min ESS per 1000 gradients", "{:.2f}"),
    "median_ess_per_1000_gradients": ("median ESS per 1000 gradients", "{:.2f}"),
    "min_ess_per_1000_gradients_with_warmup": ("min ESS per 1000 gradients, warm-up included", "{:.2f}"),
    "median_ess_per_1000_gradients_with_warmup": ("median ESS per 1000 gradients, warm-up included", "{:.2f}"),
    "acceptance_rate": ("acceptance rate", "{:.3f}"),
    "max_rhat": ("max R-hat", "{:.3f}"),
    "max_abs_z": ("max |z| of the means", "{:.2f}"),
    "min_sd_ratio": ("sd / reference sd, min", "{:.3f}"),
    "median_sd_ratio": ("sd / reference sd, median", "{:.3f}"),
    "num_nonfinite": ("non-finite proposals", "{:.0f}"),
    "warmup_seconds": ("warm-up seconds, with compilation", "{:.1f}"),
    "sampling_seconds": ("sampling seconds", "{:.1f}"),
}


def table(summaries: Mapping[str, dict]) -> str:
    """A text with a column for each scheme, and a row for each number that a summary has.

    summaries: name of a scheme -> its summary, as from `diagnostics.summarise`.
    """
    lines = [("", *summaries)]
    for name, (label, form) in _ROWS.items():
        if any(name in summary for summary in summaries.values()):
            lines.append((label, *(form.format(summary[name]) for summary in summaries.values())))
    label_width = max(len(label) for label, *_ in lines)
    width = max(len(cell) for _, *cells in lines for cell in cells)
    return "\n".join(
        "  ".join([label.ljust(label_width), *(f"{cell:>{width}}" for cell in cells)]) for label, *cells in lines
    )


def figure(summaries: Mapping[str, dict], spectra: Mapping[str, np.ndarray], path) -> None:
    """Save a picture of the learnt spectrum and of the ESS of every parameter, at `path`. Needs matplotlib.

    spectra: name of a scheme -> its learnt variances, as from `spectrum`. summaries: as for `table`.
    """
    from matplotlib.figure import Figure

    plot = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = plot.subplots(1, 2)
    for name, variances in spectra.items():
        left.plot(np.arange(1, len(variances) + 1), np.sort(variances)[::-1], ".-", markersize=3, label=name)
    left.set(xscale="log", yscale="log", xlabel="direction", ylabel="learnt variance", title="learnt spectrum")
    for name, summary in summaries.items():
        right.plot(np.sort(summary["ess"]), label=name)
    right.set(yscale="log", xlabel="parameter, sorted", ylabel="bulk ESS", title="effective sample size")
    for axes in (left, right):
        axes.legend(frameon=False)
    plot.savefig(path, dpi=150)


def spectrum(preconditioner: Any) -> np.ndarray:
    """The learnt variances, (d,): the eigenvalues of L L^T, in no order.

    Costs O(d^3) for `Dense`, and for `LowRank` with unequal scales. Above d = 2000 the result for such a `LowRank` is
    the diagonal of L L^T instead: the variances of the coordinates.
    """
    is_low_rank = isinstance(preconditioner, LowRank)
    is_scaled = is_low_rank and np.ptp(preconditioner.scales) > 0
    if is_scaled and len(preconditioner.scales) > _MOST_DENSE:
        scales, eigenvectors, eigenvalues = map(np.asarray, preconditioner)
        return scales**2 * (1 + (eigenvalues - 1) @ eigenvectors**2)
    if is_scaled or isinstance(preconditioner, Dense):
        return np.linalg.svd(preconditioner.to_dense(), compute_uv=False) ** 2
    variances = np.asarray(preconditioner.scales) ** 2
    if is_low_rank:
        variances[: preconditioner.eigenvalues.shape[0]] *= np.asarray(preconditioner.eigenvalues)
    return variances
