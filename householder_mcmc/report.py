"""What a run is worth: diagnostics of frozen chains as a dict, a table and a figure."""

from collections.abc import Mapping

import jax
import numpy as np
from blackjax import diagnostics

from householder_mcmc.preconditioners import Dense, LowRank, Preconditioner

__all__ = ["ess_and_rhat", "summarise", "table", "figure", "spectrum"]

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


def summarise(draws, acceptance_rate, num_nonfinite, num_warmup, warmup_seconds, sampling_seconds, reference=None):
    """Diagnostics of frozen chains.

    Parameters
    ----------
    draws
        (num_chains, num_draws, d).
    acceptance_rate, num_nonfinite
        Mean over the draws; count of non-finite proposals.
    num_warmup
        Warm-up steps of each chain; a step is one gradient.
    warmup_seconds, sampling_seconds
        Wall time.
    reference
        Optional (mean, sd, mcse), each (d,): z = (mean of draws - mean) / sqrt(standard error^2 + mcse^2).

    Returns
    -------
    dict of floats, and of `ess` and `rhat` as lists of length d; NaN where there are too few chains or draws.
    """
    num_chains, num_draws, _ = draws.shape
    ess_bulk, ess_mean, rhat = (np.asarray(values) for values in ess_and_rhat(draws))
    gradients = num_chains * num_draws
    summary = {}
    for name, ess in (("min", np.min(ess_bulk)), ("median", np.median(ess_bulk))):
        summary[f"{name}_ess"] = ess
        summary[f"{name}_ess_per_second"] = ess / sampling_seconds
        summary[f"{name}_ess_per_1000_gradients"] = 1e3 * ess / gradients
        summary[f"{name}_ess_per_1000_gradients_with_warmup"] = 1e3 * ess / (gradients + num_chains * num_warmup)
    summary |= {"acceptance_rate": acceptance_rate, "max_rhat": np.max(rhat), "num_nonfinite": num_nonfinite}
    summary |= {"warmup_seconds": warmup_seconds, "sampling_seconds": sampling_seconds}
    if reference is not None:
        mean, sd, mcse = reference
        draws_sd = draws.std(axis=(0, 1), dtype=np.float64)
        z = (draws.mean(axis=(0, 1), dtype=np.float64) - mean) / np.sqrt(draws_sd**2 / ess_mean + mcse**2)
        summary["max_abs_z"] = np.max(np.abs(z))
        summary["min_sd_ratio"], summary["median_sd_ratio"] = np.min(draws_sd / sd), np.median(draws_sd / sd)
    summary = {name: float(value) for name, value in summary.items()}
    return summary | {"ess": ess_bulk.tolist(), "rhat": rhat.tolist()}


def table(summaries: Mapping[str, dict]) -> str:
    """One column per scheme."""
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
    """Save the learnt spectrum and the ESS of every parameter as a picture. Needs matplotlib."""
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


def spectrum(preconditioner: Preconditioner) -> np.ndarray:
    """The learnt variances along the directions of a learner's map, (d,)."""
    if isinstance(preconditioner, Dense):
        return np.linalg.svd(preconditioner.cholesky, compute_uv=False) ** 2
    variances = np.asarray(preconditioner.scales) ** 2
    if isinstance(preconditioner, LowRank):  # a learner's scales are equal, so the eigenvectors are those of L L^T
        variances[: preconditioner.eigenvalues.shape[0]] *= np.asarray(preconditioner.eigenvalues)
    return variances


def ess_and_rhat(draws):
    """Bulk ESS, ESS of the mean and R-hat, each (d,): by ArviZ if installed, else by BlackJAX, which is slower."""
    if draws.shape[1] < 4:  # split in halves they have no variance
        return np.full((3, draws.shape[2]), np.nan)
    try:
        import arviz
    except ImportError:

        def of_one_parameter(x):
            return diagnostics.ess_bulk(x), diagnostics.effective_sample_size(x), diagnostics.rhat(x)

        return jax.jit(lambda xs: jax.lax.map(of_one_parameter, xs))(np.moveaxis(draws, 2, 0))
    dataset = arviz.convert_to_dataset({"x": np.ascontiguousarray(draws)})
    results = arviz.ess(dataset), arviz.ess(dataset, method="mean"), arviz.rhat(dataset)
    return tuple(result["x"].values for result in results)
