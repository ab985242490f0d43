"""What a run is worth: diagnostics of frozen chains, as numbers and as warnings.

Source of the limits on R-hat and ESS: Vehtari, Gelman, Simpson, Carpenter & Buerkner (2021).
"""

from warnings import catch_warnings

import jax
import numpy as np
from blackjax import diagnostics

__all__ = ["ess_and_rhat", "tail_ess", "warnings", "summarise"]

_LARGEST_RHAT = 1.01
_SMALLEST_ESS = 100  # for each chain
_SMALLEST_ACCEPTANCE = 0.2
_HEAVIEST_TAIL = 0.3  # Pareto shape; moments of order 1 / 0.3 and above do not exist
_TAIL = 0.1  # share of the draws


def summarise(
    draws,
    acceptance_rate,
    num_nonfinite,
    num_gradients,
    num_warmup_gradients,
    warmup_seconds,
    sampling_seconds,
    reference=None,
    label="parameter {}".format,
):
    """Diagnostics of frozen chains.

    Parameters
    ----------
    draws
        (num_chains, num_draws, d).
    acceptance_rate, num_nonfinite
        Mean over the draws, of each chain (num_chains,) or of all (); count of non-finite proposals.
    num_gradients, num_warmup_gradients
        Of all chains, for the draws and before them.
    warmup_seconds, sampling_seconds
        Wall time.
    reference
        Optional (mean, sd, mcse), each (d,): z = (mean of draws - mean) / sqrt(standard error^2 + mcse^2).
    label
        Index of a parameter -> its name in the warnings.

    Returns
    -------
    dict of floats, of `ess` and `rhat` as lists of length d, NaN where there are too few chains or draws, and of
    `warnings`, a list of texts.
    """
    ess_bulk, ess_mean, rhat = ess_and_rhat(draws)
    num_gradients, with_warmup = int(num_gradients), int(num_gradients) + int(num_warmup_gradients)
    summary = {}
    for name, ess in (("min", np.min(ess_bulk)), ("median", np.median(ess_bulk))):
        summary[f"{name}_ess"] = ess
        summary[f"{name}_ess_per_second"] = ess / sampling_seconds
        summary[f"{name}_ess_per_1000_gradients"] = 1e3 * ess / num_gradients
        summary[f"{name}_ess_per_1000_gradients_with_warmup"] = 1e3 * ess / with_warmup
    summary |= {"acceptance_rate": np.mean(acceptance_rate), "max_rhat": np.max(rhat), "num_nonfinite": num_nonfinite}
    summary |= {"warmup_seconds": warmup_seconds, "sampling_seconds": sampling_seconds}
    if reference is not None:
        mean, sd, mcse = reference
        draws_sd = draws.std(axis=(0, 1), dtype=np.float64)
        z = (draws.mean(axis=(0, 1), dtype=np.float64) - mean) / np.sqrt(draws_sd**2 / ess_mean + mcse**2)
        summary["max_abs_z"] = np.max(np.abs(z))
        summary["min_sd_ratio"], summary["median_sd_ratio"] = np.min(draws_sd / sd), np.median(draws_sd / sd)
    summary = {name: float(value) for name, value in summary.items()}
    trouble = warnings(draws, acceptance_rate, ess_bulk, tail_ess(draws), rhat, label)
    return summary | {"ess": ess_bulk.tolist(), "rhat": rhat.tolist(), "warnings": trouble}


def warnings(draws, acceptance_rate, ess_bulk, ess_tail, rhat, label) -> list[str]:
    """What speaks against trusting the draws (num_chains, num_draws, d), one sentence each; no sentence is no proof.

    Chains that all miss the same part of the target cannot tell: start them apart. Independent draws of a tail that is
    exponential or lighter, 1000 of each of 4 chains, give a warning with a probability below 10^-3: R-hat - 1 is about
    chi^2_7 / 7000, and above 0.01 with 10^-11; each ESS is near 4000; the Pareto shape is 3.5 sigma below its limit.

    acceptance_rate (num_chains,) or (); ess_bulk, ess_tail, rhat (d,): as from `ess_and_rhat` and `tail_ess`; label: as
    for `summarise`.
    """
    num_chains, num_draws, _ = draws.shape
    if num_draws < 4:
        return ["there are fewer than 4 draws of a chain: nothing can be said."]
    found, limit = [], _SMALLEST_ESS * num_chains
    infinite = np.argwhere(~np.isfinite(draws))
    if len(infinite):
        found.append(f"numbers that are not finite: {len(infinite)}, the first of {label(int(infinite[0, 2]))}.")
    stuck = np.flatnonzero(_is_stuck(draws).reshape(2, num_chains, -1).any(axis=(0, 2)))
    if stuck.size:
        found.append(f"chains {stuck.tolist()} did not move in half of their draws or more.")
    low = np.flatnonzero(np.broadcast_to(acceptance_rate, num_chains) < _SMALLEST_ACCEPTANCE)
    if low.size:
        found.append(f"chains {low.tolist()} accepted less than {_SMALLEST_ACCEPTANCE:.0%} of their proposals.")
    if num_chains == 1:
        found.append("there is one chain: R-hat, which compares chains, is not defined.")
    elif np.isnan(rhat).any():
        found.append(f"R-hat is {_worst(rhat, np.max, '.3f', label)}.")
    elif not np.all(rhat <= _LARGEST_RHAT):
        found.append(f"R-hat is {_worst(rhat, np.max, '.3f', label)}, above {_LARGEST_RHAT}: the chains differ.")
    for name, ess in (("bulk", ess_bulk), ("tail", ess_tail)):
        if not np.all(ess >= limit):
            found.append(f"{name} ESS is {_worst(ess, np.min, '.0f', label)}, below {limit}: draw more.")
    if not stuck.size and np.all(np.isfinite(draws)):
        distances = _distances(draws)
        ess = min(ess_and_rhat(distances)[0][0], tail_ess(distances)[0])
        if not ess >= limit:
            found.append(
                f"the ESS of the distance from the medians is {ess:.0f}, below {limit}: tails are seen too rarely."
            )
        shape = float(diagnostics.pareto_khat(distances, "upper", _TAIL))
        if shape > max(_HEAVIEST_TAIL, 3.5 / np.sqrt(max(_TAIL * ess, 1))):
            order = f"{1 / shape:.1f}"
            found.append(
                f"the tails are heavy (Pareto shape {shape:.2f}): moments of order {order} and up may not exist."
            )
    return found


def _worst(values, worst, form, label):
    if np.isnan(values).any():
        return f"not defined for {np.isnan(values).sum()} of {len(values)} parameters"
    return f"{worst(values):{form}} ({label(int(np.argmax(values == worst(values))))})"


def _distances(draws):
    """The largest distance of a coordinate from its median, in units of the median one, (num_chains, num_draws, 1).

    Its tail is that of the heaviest coordinate, and its Pareto shape from n independent draws in the tail of an
    exponential is normal with standard deviation n^(-1/2).
    """
    x = draws.astype(np.float64)
    distances = np.abs(x - np.median(x, axis=(0, 1)))
    unit = np.median(distances, axis=(0, 1))
    return np.max(distances / np.where(unit > 0, unit, np.inf), axis=2, keepdims=True)


def ess_and_rhat(draws):
    """Bulk ESS, ESS of the mean and R-hat, each (d,): by ArviZ if installed, else by BlackJAX, which is slower.

    Where a chain does not move in half of its draws, ESS is 0 and R-hat infinite, or NaN if no chain moves. One chain
    has R-hat NaN; fewer than 4 draws, whose halves have no variance, have all NaN.
    """
    if draws.shape[1] < 4:
        return np.full((3, draws.shape[2]), np.nan)
    bulk, mean, rhat = _diagnose(
        draws - np.median(draws.astype(np.float64), axis=(0, 1)),  # a large mean costs digits in float32
        lambda arviz, data: (arviz.ess(data), arviz.ess(data, method="mean"), arviz.rhat(data)),
        lambda x: (diagnostics.ess_bulk(x), diagnostics.effective_sample_size(x), diagnostics.rhat(x)),
    )
    is_stuck = _is_stuck(draws)
    bulk, mean = (np.where(is_stuck.any(axis=0), 0.0, ess) for ess in (bulk, mean))
    rhat = np.where(is_stuck.any(axis=0), np.inf, rhat)
    return bulk, mean, np.where(is_stuck.all(axis=0) | (len(draws) == 1), np.nan, rhat)


def tail_ess(draws):
    """The smaller ESS of the 5% and 95% quantiles, (d,), as `ess_and_rhat`."""
    if draws.shape[1] < 4:
        return np.full(draws.shape[2], np.nan)
    (tail,) = _diagnose(
        draws, lambda arviz, data: [arviz.ess(data, method="tail")], lambda x: [diagnostics.ess_tail(x)]
    )
    return np.where(_is_stuck(draws).any(axis=0), 0.0, tail)


def _is_stuck(draws):
    """Whether a half of a chain is constant, (2 num_chains, d)."""
    half = draws.shape[1] // 2
    halves = np.concatenate([draws[:, :half], draws[:, -half:]])
    return np.all(halves == halves[:, :1], axis=1)


def _diagnose(draws, by_arviz, by_blackjax):
    """Diagnostics of each parameter, as arrays (d,)."""
    try:
        with catch_warnings(action="ignore"):  # of versions to come
            import arviz
    except ImportError:
        results = jax.jit(lambda xs: jax.lax.map(by_blackjax, xs))(np.moveaxis(draws, 2, 0))
        return [np.asarray(result) for result in results]
    with np.errstate(invalid="ignore", divide="ignore"):
        data = arviz.convert_to_dataset({"x": np.ascontiguousarray(draws)})
        return [result["x"].values for result in by_arviz(arviz, data)]
