"""A table that sums up draws: a row for each number of each variable."""

from typing import NamedTuple

import numpy as np

from householder_mcmc.results import arviz, diagnostics

__all__ = ["Row", "Summary", "summarise"]

# Most rows that are printed. The table has all.
_MOST_PRINTED = 60

_QUANTILES = (0.05, 0.5, 0.95)


class Row(NamedTuple):
    """mean, sd and quantiles; mcse: standard error of the mean; ESS of the bulk and of the tails; R-hat."""

    mean: float
    sd: float
    q5: float
    median: float
    q95: float
    mcse: float
    ess_bulk: float
    ess_tail: float
    rhat: float


class Summary(dict):
    """Name of a number, such as `tau` or `theta[3]`, -> its `Row`. Printed it is a table."""

    def __str__(self):
        names = list(self)[:_MOST_PRINTED]
        width = max(map(len, names), default=0)
        lines = [" " * width + "".join(f"{field:>11}" for field in Row._fields)]
        lines += [f"{name:<{width}}" + "".join(map(_cell, Row._fields, self[name])) for name in names]
        if len(self) > len(names):
            lines.append(f"... and {len(self) - len(names)} more")
        return "\n".join(lines)

    __repr__ = __str__


def _cell(field, value):
    form = {"ess_bulk": ".0f", "ess_tail": ".0f", "rhat": ".3f"}.get(field, ".4g")
    return f"{value:>11{form}}"


def summarise(draws: dict[str, np.ndarray], superchains: np.ndarray) -> Summary:
    """The table of draws by name, (num_chains, num_draws, ...). Holds one variable in memory at a time.

    superchains: as for `diagnostics.ess_and_rhat`.
    """
    table = Summary()
    for name, variable in draws.items():
        x = np.asarray(variable).reshape(*variable.shape[:2], -1).astype(np.float64)
        bulk, ess, rhat = diagnostics.ess_and_rhat(x, superchains)
        tail, sd = diagnostics.tail_ess(x), x.std(axis=(0, 1), ddof=1)
        mcse = np.where(sd == 0, 0.0, sd / np.sqrt(np.where(ess > 0, ess, np.nan)))
        columns = [x.mean(axis=(0, 1)), sd, *np.quantile(x, _QUANTILES, axis=(0, 1)), mcse, bulk, tail, rhat]
        for i, values in enumerate(zip(*columns, strict=True)):
            table[arviz.label({name: variable[0, 0]}, i)] = Row(*map(float, values))
    return table
