"""Ours against the authors' program: tables in Markdown, and the checks that the reproduction must pass."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.paper import results
from benchmarks.paper.experiments import ADAPTIVE

# Where an ESS counts: within-chain variance over the truth, and R-hat.
EXPLORED, LARGEST_RHAT = (0.8, 1.25), 1.05
_KEYS = ["source", "experiment", "variant", "d", "iterations", "scheme"]
_RATIOS = ["exploration_1", "exploration_2", "exploration_3"]
_CORRELATED = (
    "dense",
    "eigen",
    "diagonal_plus_LR",
    "pBaM",
    "exact",
)  # maps that see correlations, fully learnt or known
_SPEEDUP = 20  # of eigen at d = 200


def is_ours(table: pd.DataFrame) -> pd.Series:
    """Which rows have our settings: our gains, and baselines without the paper's faults."""
    return table["variant"].isin(["latest", "averaged", "averaged_m32", "corrected"])


def ess_per_second(rows: pd.DataFrame, ess: str = "medESS") -> pd.Series:
    """Over the fit before the chain and the CPU time of the chain, which other programs do not disturb."""
    return rows[ess] / (rows["setup_seconds"] + rows["cpu_seconds"])


def explored(rows: pd.DataFrame) -> bool:
    """Whether the median ratio over replicates is within `EXPLORED` along each leading direction."""
    ratios = rows[_RATIOS].median().dropna()
    return bool(ratios.between(*EXPLORED).all())


def counts(rows: pd.DataFrame) -> bool:
    """Whether the chains explored, and agree: the median of R-hat over replicates is below `LARGEST_RHAT`."""
    return explored(rows) and bool(rows["rhat"].median() < LARGEST_RHAT)


def authors(name: str) -> pd.DataFrame:
    """What the authors' program gave: "summary" (medians and ranges over replicates) or "eigenvector_recovery"."""
    return pd.read_csv(Path(__file__).parent / "authors" / f"{name}.csv")


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Medians over replicates, one row a configuration, beside the authors' where they have it."""
    rows = []
    for keys, runs in table.groupby(_KEYS, sort=False):
        middle = runs.median(numeric_only=True)
        ratios = middle[_RATIOS].dropna()
        rows.append(
            dict(zip(_KEYS, keys, strict=True))
            | {"chains": int(middle["chains"]), "ess": middle["medESS"], "ess_low": runs["medESS"].min()}
            | {"ess_high": runs["medESS"].max(), "ess_cos": middle["medESS_cos"], "ess_sin": middle["medESS_sin"]}
            | {"bulk": middle["bulkESS"], "rhat": middle["rhat"], "us": middle["us_per_iter"]}
            | {"ess_per_second": ess_per_second(runs).median()}
            | {"explored_low": ratios.min(), "explored_high": ratios.max(), "counts": counts(runs)}
        )
    theirs = authors("summary").rename(columns={"its": "iterations"})
    theirs["scheme"] = theirs["scheme"].replace({"pBaM_cov": "pBaM"})
    theirs["per_second"] = theirs["medESS"] / (theirs["setup_s"] + theirs["iterations"] * theirs["us"] * 1e-6)
    theirs = theirs[[*_KEYS[1:], "n", "medESS", "lo", "hi", "us", "per_second", "cos"]]
    return pd.DataFrame(rows).merge(theirs, on=_KEYS[1:], how="left", suffixes=("", "_authors"))


def check(summary: pd.DataFrame) -> pd.DataFrame:
    """The reproduction's conditions, one a row: what, ours, low, high, passes.

    Our median ESS lies in the authors' range widened by a quarter, or by half where that rests on one or two runs and
    for the XY model; `eigen` at d = 200 takes at most a twentieth of the authors' time.
    """
    known = summary[summary["medESS"].notna() & summary["scheme"].isin(ADAPTIVE) & ~is_ours(summary)]
    widening = np.where((known["n"] <= 2) | (known["experiment"] == "xy"), 0.5, 0.25)
    ess = pd.DataFrame(
        {
            "what": "ESS, " + _label(known) + ", " + known["iterations"].astype(str) + " steps",
            "ours": known["ess"],
            "low": known["lo"] * (1 - widening),
            "high": known["hi"] * (1 + widening),
        }
    )
    timed = known[(known["scheme"] == "eigen") & (known["d"] == 200)]
    speed = pd.DataFrame(
        {
            "what": "us per iteration, " + _label(timed),
            "ours": timed["us"],
            "low": 0,
            "high": timed["us_authors"] / _SPEEDUP,
        }
    )
    checks = pd.concat([ess, speed], ignore_index=True)
    return checks.assign(passes=checks["ours"].between(checks["low"], checks["high"]))


def _label(rows):
    return rows["experiment"] + " " + rows["variant"] + ", d = " + rows["d"].astype(str) + ", " + rows["scheme"]


def side_by_side(summary: pd.DataFrame) -> str:
    """Ours against the authors' program, with the authors' settings."""
    rows = summary[~is_ours(summary)]
    has_angles = rows["ess_cos"].notna().any()
    table = {
        "d": rows["d"],
        "scheme": rows["scheme"],
        "variant": rows["variant"],
        "median ESS (range)": _with_range(rows["ess"], rows["ess_low"], rows["ess_high"]),
        "authors' (range)": _with_range(rows["medESS"], rows["lo"], rows["hi"]),
    }
    if has_angles:
        table |= {"cos": _numbers(rows["ess_cos"]), "authors' cos": _numbers(rows["cos"])}
    table |= {
        "ESS/s": _numbers(rows["ess_per_second"]),
        "authors' ESS/s": _numbers(rows["per_second"]),
        "us/iteration": _numbers(rows["us"]),
        "authors' us/iteration": _numbers(rows["us_authors"]),
    } | _exploration(rows)
    return markdown(table)


def with_our_settings(summary: pd.DataFrame) -> str:
    """Authors' settings against ours, both run by us: ESS per 1000 gradients, so that numbers of chains compare."""
    summary = _in_order(summary).sort_values(["d", "scheme", "variant"], kind="stable")
    ess = summary["ess_cos"].fillna(summary["ess"])
    table = {
        "d": summary["d"],
        "scheme": summary["scheme"],
        "variant": summary["variant"],
        "chains": summary["chains"].astype(str),
        "ESS per 1000 gradients": _numbers(_per_gradient(summary)),
        "bulk ESS": _numbers(summary["bulk"]),
        "ESS/s": _numbers(ess / summary["ess"] * summary["ess_per_second"]),
    }
    return markdown(table | _exploration(summary))


def by_dimension(summary: pd.DataFrame) -> str:
    """ESS per 1000 gradients, a column for each d; in brackets what does not count."""
    ess = _numbers(_per_gradient(summary))
    cells = _in_order(summary).assign(cell=ess.where(summary["counts"], "(" + ess + ")"))
    rows = ["scheme", "variant", "chains"]
    wide = cells.pivot(index=rows, columns="d", values="cell").sort_index().fillna("").reset_index()
    return markdown({column if column in rows else f"d = {column}": wide[column] for column in wide})


def _in_order(summary):
    """Schemes sort as they first appear."""
    return summary.assign(scheme=pd.Categorical(summary["scheme"], summary["scheme"].unique()))


def _per_gradient(summary):
    """ESS of the second half per 1000 gradients, of the cosine where there are angles."""
    return 1000 * summary["ess_cos"].fillna(summary["ess"]) / (summary["chains"] * summary["iterations"] / 2)


def _exploration(rows):
    low, high = rows["explored_low"].map("{:.3f}".format), rows["explored_high"].map("{:.3f}".format)
    return {
        "variance explored": low + "-" + high,
        "R-hat": rows["rhat"].map("{:.3f}".format),
        "ESS counts": np.where(rows["counts"], "yes", "no"),
    }


def _numbers(column):
    return column.map(lambda value: "" if np.isnan(value) else f"{value:.0f}" if value >= 100 else f"{value:.3g}")


def _with_range(middle, low, high):
    return (_numbers(middle) + " (" + _numbers(low) + "-" + _numbers(high) + ")").where(middle.notna(), "")


def markdown(table: dict) -> str:
    """Columns as a Markdown table."""
    frame = pd.DataFrame(table).astype(str)
    lines = [list(frame.columns), ["---"] * frame.shape[1], *frame.values.tolist()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def report(folder: Path, page: Path | None = None) -> None:
    """Print the checks, write all tables to `tables.md`, and the short ones into the marked blocks of a page."""
    summary = summarise(results.load(folder))
    checks = check(summary)
    for _, row in checks.iterrows():
        outcome = "pass" if row["passes"] else "FAIL"
        print(f"{outcome}  {row['what']}: {row['ours']:.4g} in {row['low']:.4g}-{row['high']:.4g}")
    print(f"{checks['passes'].sum()} of {len(checks)} pass")
    blocks = {"checks": _checks_table(checks)}
    for source, rows in summary.groupby("source", sort=False):
        blocks[f"{source} authors"] = side_by_side(rows)
        blocks[f"{source} ours"] = with_our_settings(rows)
    text = "\n\n".join(f"## {name}\n\n{table}" for name, table in blocks.items())
    (folder / "tables.md").write_text(text + "\n")
    if page is not None:
        sources = summary[summary["scheme"].isin(_CORRELATED)].groupby("source", sort=False)
        short = {f"{folder.name} {source}": by_dimension(rows) for source, rows in sources}
        page.write_text(fill(page.read_text(), short))


def _checks_table(checks):
    columns = {name: _numbers(checks[name]) for name in ("ours", "low", "high")}
    return markdown({"what": checks["what"]} | columns | {"": np.where(checks["passes"], "pass", "**fail**")})


def fill(text: str, blocks: dict[str, str]) -> str:
    """Text with what stands between `<!-- NAME -->` and `<!-- end -->` replaced by the block of that name."""

    def replace(match):
        name = match[1]
        return f"<!-- {name} -->\n{blocks[name]}\n<!-- end -->" if name in blocks else match[0]

    return re.sub(r"<!-- ((?!end)[\w ]+) -->\n.*?<!-- end -->", replace, text, flags=re.DOTALL)
