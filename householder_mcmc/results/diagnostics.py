"""Diagnostics of draws of frozen chains, as numbers and as warnings."""

from warnings import catch_warnings

import jax
import numpy as np
from blackjax import diagnostics
from scipy.special import ndtri

__all__ = ["MANY_CHAINS", "ess_and_rhat", "nested_rhat", "tail_ess", "warnings", "summarise"]

# From this many chains on, if they have fewer than `_LONG` draws each, ESS is found from the chains' means, and R-hat
# is that of superchains: neither needs long chains. The variance of 64 means is known to 18%. Plain R-hat and ESS need
# 100 effective draws of each chain. They see more, such as chains that each stay in a mode of their own. So they are
# used from 400 draws on, four for each of the 100. (Four is chosen, without a source.)
MANY_CHAINS = 64
_LONG = 400

# Vehtari, Gelman, Simpson, Carpenter & Buerkner (2021): trust no draws whose rank-normalised R-hat is larger, or whose
# bulk or tail ESS is smaller than 400 in four chains, 100 for each. Below that ESS its own estimate is unreliable.
_LARGEST_RHAT = 1.01
_SMALLEST_ESS = 100

# Smallest ESS of many short chains, all together, because it is not estimated from each of them.
_SMALLEST_ESS_OF_MANY = 400

# The share of many short chains that may be stuck, or reject nearly all, before they are named; and the number of draws
# below which no chain is called stuck. (By chance one of 1000 good chains often is.) Chosen, without a source: in 1% of
# the chains a bias of 5 standard deviations moves the mean by 5% of one, which is its error with an ESS of 400.
_FEW = 0.01
_FEWEST_DRAWS = 10

# A chain with a smaller mean acceptance rate is named. Chosen, without a source: about a third of what step sizes are
# tuned to, 0.574 (MALA) and 0.8 (HMC). The chains share the step size, and such a chain is where it is too long.
_SMALLEST_ACCEPTANCE = 0.2

# Pareto shape k of a tail. Moments of order 1 / k and up are infinite: from k = 1/2 on the variance, from k = 1/4 on
# the Monte Carlo error of the variance. Chosen between the two, without a source: it leaves moments up to order 3.3.
_HEAVIEST_TAIL = 0.3

# The estimated shape must also exceed 0 by this many standard deviations, or few draws of light tails would give a
# warning. By chance a normal number is that far up with a probability of 2 in 10,000.
_TAIL_SIGMAS = 3.5

# Share of the draws that the shape is fitted to: the default of `blackjax.diagnostics.pareto_khat`.
_TAIL = 0.1


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
    superchains=None,
    trouble=None,
):
    """Diagnostics of frozen chains.

    Parameters
    ----------
    draws
        (num_chains, num_draws, d).
    acceptance_rate
        Mean acceptance rate of each chain, (num_chains,), or of all, ().
    num_nonfinite
        Number of non-finite proposals.
    num_gradients, num_warmup_gradients
        Numbers of gradients that all chains took together: for the draws, and in the warm-up.
    warmup_seconds, sampling_seconds
        Wall time.
    reference
        Optional (mean, sd, mcse), each (d,): known moments, and the Monte Carlo standard error of the known mean. With
        it there are max_abs_z, the largest |mean of draws - mean| / sqrt(standard error^2 + mcse^2), infinite if a
        chain is stuck; and min_sd_ratio and median_sd_ratio, of sd of draws / sd.
    label
        Index of a parameter -> its name in the warnings.
    superchains
        As for `ess_and_rhat`.
    trouble
        Texts for `warnings`, by default what `warnings` finds in the draws.

    Returns
    -------
    A dict of floats and three lists: `ess` (bulk) and `rhat`, of length d, and `warnings`, of texts. ESS and R-hat are
    NaN where there are too few draws for them. R-hat of one chain is NaN.
    """
    ess_bulk, ess_mean, rhat = ess_and_rhat(draws, superchains)
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
        draws_mean, is_stuck = draws.mean(axis=(0, 1), dtype=np.float64), ess_mean == 0
        error = np.sqrt(draws_sd**2 / np.where(is_stuck, 1, ess_mean) + mcse**2)
        summary["max_abs_z"] = np.max(np.where(is_stuck, np.inf, np.abs(draws_mean - mean) / error))
        summary["min_sd_ratio"], summary["median_sd_ratio"] = np.min(draws_sd / sd), np.median(draws_sd / sd)
    summary = {name: float(value) for name, value in summary.items()}
    if trouble is None:
        trouble = warnings(draws, acceptance_rate, ess_bulk, rhat, label, superchains)
    return summary | {"ess": ess_bulk.tolist(), "rhat": rhat.tolist(), "warnings": trouble}


def warnings(draws, acceptance_rate, ess_bulk, rhat, label, superchains=None) -> list[str]:
    """Reasons to distrust the draws (num_chains, num_draws, d), one sentence each.

    acceptance_rate, label, superchains: as for `summarise`. ess_bulk, rhat (d,): as from `ess_and_rhat`.

    An empty list proves nothing: chains that all miss the same part of the target cannot show it. Start them apart.

    Good draws rarely give a warning. With 1000 independent draws of each of 4 chains, from tails that are exponential
    or lighter, that happens in fewer than one of 1000 runs. R-hat - 1 is about chi^2_7 / 7000 and exceeds 0.01 with a
    probability of 10^-12, each ESS is near 4000, and the Pareto shape is 6 standard deviations below its limit.
    """
    num_chains, num_draws, _ = draws.shape
    is_many, is_nested = _are_many_and_short(draws), _has_superchains(draws, superchains)
    if num_draws < 4 and not is_nested:
        return ["there are fewer than 4 draws of a chain: nothing can be said."]
    found, limit = [], _SMALLEST_ESS_OF_MANY if is_many else _SMALLEST_ESS * num_chains
    few = _FEW * num_chains if is_many else 0  # so many chains may be bad without being named
    infinite = np.argwhere(~np.isfinite(draws))
    if len(infinite):
        found.append(f"numbers that are not finite: {len(infinite)}, the first of {label(int(infinite[0, 2]))}.")
    stuck = _stuck_chains(draws)
    if stuck.size > few:
        found.append(f"chains {stuck.tolist()} did not move in half of their draws or more.")
    low = np.flatnonzero(np.broadcast_to(acceptance_rate, num_chains) < _SMALLEST_ACCEPTANCE)
    if low.size > few:
        found.append(f"chains {low.tolist()} accepted less than {_SMALLEST_ACCEPTANCE:.0%} of their proposals.")
    if num_chains == 1:
        found.append("there is one chain: R-hat, which compares chains, is not defined.")
    elif not np.all(rhat <= _LARGEST_RHAT):
        name, differ = "R-hat", "the chains differ."
        if is_nested:
            # Without a difference R-hat is about sqrt(1 + 1 / ESS), above 1.01 for an ESS below 50: here that of a
            # superchain, in the next text that of half a chain.
            name, differ = (
                "nested R-hat",
                "chains remember their start, or the superchains have fewer than 50 effective draws.",
            )
        elif is_many:
            differ = (
                "the chains differ, or have fewer than 100 effective draws each. Chains that share starts would say."
            )
        above = "." if np.isnan(rhat).any() else f", above {_LARGEST_RHAT}: {differ}"
        found.append(f"{name} is {_worst(rhat, np.max, '.3f', label)}{above}")
    for name, ess in (("bulk", ess_bulk), ("tail", tail_ess(draws))):
        if not np.all(ess >= limit):
            found.append(f"{name} ESS is {_worst(ess, np.min, '.0f', label)}, below {limit}: draw more.")
    if stuck.size <= few and np.all(np.isfinite(draws)):
        distances = _distances(draws)
        ess = min(ess_and_rhat(distances, superchains)[0][0], tail_ess(distances)[0])
        if not ess >= limit:
            found.append(
                f"the ESS of the distance from the medians is {ess:.0f}, below {limit}: tails are seen too rarely."
            )
        shape = float(diagnostics.pareto_khat(distances, "upper", _TAIL))
        if shape > max(_HEAVIEST_TAIL, _TAIL_SIGMAS / np.sqrt(max(_TAIL * ess, 1))):
            order = f"{1 / shape:.1f}"
            found.append(
                f"the tails are heavy (Pareto shape {shape:.2f}): moments of order {order} and up may not exist."
            )
    return found


def _worst(values, worst, form, label):
    """The worst value and the name of its parameter, as a text. worst: np.min or np.max. form: of the value."""
    if np.isnan(values).any():
        return f"not defined for {np.isnan(values).sum()} of {len(values)} parameters"
    return f"{worst(values):{form}} ({label(int(np.argmax(values == worst(values))))})"


def _distances(draws):
    """Distance of each draw from the medians, (num_chains, num_draws, 1): the largest of its coordinates.

    A coordinate's unit is the median of its distances. A standard deviation would be large where the tail is heavy, and
    hide it. The result has the tail of the heaviest coordinate.

    From n draws in an exponential tail the estimated Pareto shape is about normal, with mean 0 and standard deviation
    n^(-1/2) (Smith 1987). BlackJAX's estimate has a prior that pulls it towards 1/2. So it is 3.5 standard deviations
    up in 0.3% of the runs with n = 20, in 0.1% with n = 100 (4000 simulated runs each).
    """
    x = draws.astype(np.float64)
    distances = np.abs(x - np.median(x, axis=(0, 1)))
    unit = np.median(distances, axis=(0, 1))
    return np.max(distances / np.where(unit > 0, unit, np.inf), axis=2, keepdims=True)


def ess_and_rhat(draws, superchains=None):
    """Bulk ESS, ESS of the mean and R-hat, each (d,), of draws (num_chains, num_draws, d).

    By ArviZ if installed, else by BlackJAX, which is slower. For 64 chains and more with fewer than 400 draws each, the
    ESS is num_chains times the variance of the draws over that of the chains' means, which holds however short chains
    are. This takes chains for independent, which they are once they have forgotten their start. R-hat judges whether
    they have. For such chains it is `nested_rhat`, if superchains (num_chains,) say which of them started at the same
    place.

    If a half of a chain is constant, the ESS is 0 and R-hat infinite. If every half is, R-hat is NaN. R-hat of one
    chain is NaN. For fewer than 4 draws of each chain all three are NaN, because halves of them have no variance; the
    nested R-hat and the ESS beside it are defined even then.
    """
    is_nested = _has_superchains(draws, superchains)
    if draws.shape[1] < 4 and not is_nested:
        return np.full((3, draws.shape[2]), np.nan)
    x = draws - np.median(draws.astype(np.float64), axis=(0, 1))  # a large mean costs digits in float32
    if is_nested:
        return _ess_of_means(_normal_scores(x)), _ess_of_means(x), nested_rhat(x, superchains)
    bulk, mean, rhat = _diagnose(
        x,
        lambda arviz, data: (arviz.ess(data), arviz.ess(data, method="mean"), arviz.rhat(data)),
        lambda x: (diagnostics.ess_bulk(x), diagnostics.effective_sample_size(x), diagnostics.rhat(x)),
    )
    if _are_many_and_short(draws):
        return _ess_of_means(_normal_scores(x)), _ess_of_means(x), rhat
    is_stuck = _is_stuck(draws)
    bulk, mean = (np.where(is_stuck.any(axis=0), 0.0, ess) for ess in (bulk, mean))
    rhat = np.where(is_stuck.any(axis=0), np.inf, rhat)
    return bulk, mean, np.where(is_stuck.all(axis=0) | (len(draws) == 1), np.nan, rhat)


def tail_ess(draws):
    """The smaller ESS of the 5% and 95% quantiles, (d,), of draws (num_chains, num_draws, d).

    Many short chains, too few draws (NaN) and constant halves (0) are treated as in `ess_and_rhat`.
    """
    if _are_many_and_short(draws):
        limits = np.quantile(draws, (0.05, 0.95), axis=(0, 1))
        return np.minimum(*(_ess_of_means((draws <= limit).astype(float)) for limit in limits))
    if draws.shape[1] < 4:
        return np.full(draws.shape[2], np.nan)
    (tail,) = _diagnose(
        draws, lambda arviz, data: [arviz.ess(data, method="tail")], lambda x: [diagnostics.ess_tail(x)]
    )
    return np.where(_is_stuck(draws).any(axis=0), 0.0, tail)


def nested_rhat(draws, superchains):
    """R-hat of many chains that may be short, several of which started at each of some places.

    The chains of a place are a superchain. Nested R-hat is sqrt(1 + B / W). B is the variance of the superchains'
    means. W is a mean over superchains, of the variance of their chains' means plus the mean variance within a chain.

    It is near 1 once chains have forgotten their place, because a superchain's mean is that of many chains. Plain R-hat
    compares the means of single chains. Unless draws are independent, it stays above 1.01 until each chain has 100
    effective draws.

    Parameters
    ----------
    draws
        (num_chains, num_draws, ...), from one draw on.
    superchains
        (num_chains,), a number for each place, such as `np.repeat(np.arange(16), 8)`.

    Returns
    -------
    An array of shape (...). It is the larger of two values: that of ranks, in which heavy tails hide no difference, and
    that of the ranks of distances from the median, in which differences of scale show. NaN for a constant.

    Raises
    ------
    ValueError
        If `superchains` is of another number of chains, or there are fewer than two.

    Source: Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari & Gelman (2024), Nested R-hat; ranks as in Vehtari et
    al. (2021).
    """
    x, (_, labels) = np.asarray(draws, np.float64), np.unique(superchains, return_inverse=True)
    if labels.shape != x.shape[:1] or labels.max() == 0:
        raise ValueError(f"superchains must be at least two numbers for {len(x)} chains, got {superchains!r}.")
    shape, x = x.shape[2:], x.reshape(*x.shape[:2], -1)
    folded = np.abs(x - np.median(x, axis=(0, 1)))
    return np.maximum(*(_nested_rhat(_normal_scores(each), labels) for each in (x, folded))).reshape(shape)


def _nested_rhat(x, labels):
    """Nested R-hat as it is, without ranks, (d,), of x (num_chains, num_draws, d). labels: 0, 1, ... of superchains."""
    means = x.mean(axis=1)
    within = x.var(axis=1, ddof=1) if x.shape[1] > 1 else np.zeros_like(means)
    each = [labels == label for label in range(labels.max() + 1)]
    between = np.var([means[chains].mean(axis=0) for chains in each], axis=0, ddof=1)
    within = np.mean(
        [
            within[chains].mean(axis=0) + (means[chains].var(axis=0, ddof=1) if chains.sum() > 1 else 0)
            for chains in each
        ],
        axis=0,
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(1 + between / within)


def _are_many_and_short(draws):
    return draws.shape[0] >= MANY_CHAINS and draws.shape[1] < _LONG


def _has_superchains(draws, superchains):
    """Whether R-hat of these draws is the nested one: there are many short chains, and some share their start."""
    return _are_many_and_short(draws) and superchains is not None and 1 < len(np.unique(superchains)) < len(draws)


def _normal_scores(x):
    """Draws (num_chains, num_draws, d) as normal quantiles of their ranks."""
    from scipy.stats import rankdata  # here: it takes a fifth of the time that the package is imported in

    ranks = rankdata(x.reshape(-1, x.shape[2]), axis=0)
    return ndtri((ranks - 3 / 8) / (len(ranks) + 1 / 4)).reshape(x.shape)


def _ess_of_means(x):
    """num_chains times the variance of draws over that of chains' means, (d,)."""
    total, of_means = x.var(axis=(0, 1), ddof=1), x.mean(axis=1).var(axis=0, ddof=1)
    return np.where(of_means == 0, 0.0, len(x) * total / np.where(of_means == 0, 1, of_means))


def _stuck_chains(draws):
    """Indices of chains of which a half is constant in a coordinate; of many short chains, of which the whole is."""
    num_chains, num_draws, _ = draws.shape
    if not _are_many_and_short(draws):
        return np.flatnonzero(_is_stuck(draws).reshape(2, num_chains, -1).any(axis=(0, 2)))
    is_stuck = np.all(draws == draws[:, :1], axis=1).any(axis=1)
    return np.flatnonzero(is_stuck & (num_draws >= _FEWEST_DRAWS))


def _is_stuck(draws):
    """Whether a half of a chain is constant, (2 num_chains, d): all first halves, then all second ones."""
    half = draws.shape[1] // 2
    halves = np.concatenate([draws[:, :half], draws[:, -half:]])
    return np.all(halves == halves[:, :1], axis=1)


def _diagnose(draws, by_arviz, by_blackjax):
    """A list of diagnostics, each (d,), of draws (num_chains, num_draws, d), by ArviZ if installed.

    by_arviz: (arviz, dataset) -> datasets. by_blackjax: draws (num_chains, num_draws) of one parameter -> numbers.
    """
    try:
        with catch_warnings(action="ignore"):  # ArviZ warns of its coming versions
            import arviz
    except ImportError:
        results = jax.jit(lambda xs: jax.lax.map(by_blackjax, xs))(np.moveaxis(draws, 2, 0))
        return [np.asarray(result) for result in results]
    with np.errstate(invalid="ignore", divide="ignore"):
        data = arviz.convert_to_dataset({"x": np.ascontiguousarray(draws)})
        return [result["x"].values for result in by_arviz(arviz, data)]
