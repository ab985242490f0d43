"""Tables and figures: every number in its row, every variance in its place."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.cli import report


def test_table_has_every_number_in_its_row():
    """Two schemes whose numbers are all different."""
    rows = {
        "min_ess": (101.4, "bulk ESS, min over parameters", "101"),
        "median_ess": (102.6, "bulk ESS, median", "103"),
        "min_ess_per_second": (3.456, "min ESS per second of sampling", "3.46"),
        "median_ess_per_second": (104.26, "median ESS per second of sampling", "104.3"),
        "min_ess_per_1000_gradients": (5.004, "min ESS per 1000 gradients", "5.00"),
        "median_ess_per_1000_gradients": (106.0, "median ESS per 1000 gradients", "106.00"),
        "min_ess_per_1000_gradients_with_warmup": (0.071, "min ESS per 1000 gradients, warm-up included", "0.07"),
        "median_ess_per_1000_gradients_with_warmup": (8.12, "median ESS per 1000 gradients, warm-up included", "8.12"),
        "acceptance_rate": (0.6518, "acceptance rate", "0.652"),
        "max_rhat": (1.0104, "max R-hat", "1.010"),
        "max_abs_z": (2.718, "max |z| of the means", "2.72"),
        "min_sd_ratio": (0.8124, "sd / reference sd, min", "0.812"),
        "median_sd_ratio": (0.9936, "sd / reference sd, median", "0.994"),
        "num_nonfinite": (15.0, "non-finite proposals", "15"),
        "warmup_seconds": (16.24, "warm-up seconds, with compilation", "16.2"),
        "sampling_seconds": (7.5, "sampling seconds", "7.5"),
    }
    numbers = {name: value for name, (value, *_) in rows.items()}
    others = {name: 1000 + i for i, name in enumerate(rows)}
    lines = report.table({"eigen": numbers | {"ess": [1.0], "warnings": []}, "two_ended": others}).splitlines()
    header, *cells = [re.split(" {2,}", line) for line in lines]
    assert header == ["", "eigen", "two_ended"]
    assert [cell[:2] for cell in cells] == [row for _, *row in rows.values()]
    assert [float(cell[2]) for cell in cells] == list(others.values())
    assert len(set(map(len, lines))) == 1  # cells end below each other


def test_table_without_a_reference():
    """A model whose moments nobody knows has no rows that compare with them."""
    lines = report.table({"eigen": {"max_rhat": 1.5, "num_nonfinite": 0}}).splitlines()
    assert [line.split() for line in lines] == [["eigen"], ["max", "R-hat", "1.500"], ["non-finite", "proposals", "0"]]


def test_figure_draws_every_spectrum_and_every_ess(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn = []

    class Kept(Figure):
        def savefig(self, *args, **kwargs):
            drawn.extend({line.get_label(): line.get_ydata() for line in axes.lines} for axes in self.axes)
            super().savefig(*args, **kwargs)

    monkeypatch.setattr("matplotlib.figure.Figure", Kept)
    path = tmp_path / "plot.png"
    report.figure({"a": {"ess": [3.0, 1.0, 2.0]}}, {"a": np.array([1.0, 9.0, 4.0])}, path)
    spectrum, ess = drawn
    np.testing.assert_array_equal(spectrum["a"], [9, 4, 1])  # from the widest direction down
    np.testing.assert_array_equal(ess["a"], [1, 2, 3])  # from the worst parameter up
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["diagonal", "dense", "low_rank", "low_rank_scaled", "householder"])
def test_spectrum_is_that_of_the_covariance(name, monkeypatch):
    rows = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 2)))[0].T.astype(np.float32)
    scales = jnp.arange(1.0, 5.0)
    preconditioner = {
        "diagonal": hm.Diagonal(scales),
        "dense": hm.Dense(jnp.asarray(np.random.default_rng(1).normal(size=(4, 4)), jnp.float32)),
        "low_rank": hm.LowRank(jnp.full(4, 0.5), jnp.asarray(rows), jnp.array([3.0, 9.0])),
        "low_rank_scaled": hm.LowRank(scales, jnp.asarray(rows), jnp.array([3.0, 0.1])),
        "householder": hm.Householder(hm.reflections.compact(rows), scales),
    }[name]
    root = np.asarray(preconditioner.to_dense(), np.float64)
    expected = np.linalg.eigvalsh(root @ root.T)
    np.testing.assert_allclose(np.sort(report.spectrum(preconditioner)), expected, rtol=1e-4)
    if name == "low_rank_scaled":
        monkeypatch.setattr(report, "_MOST_DENSE", 3)
        np.testing.assert_allclose(report.spectrum(preconditioner), np.diag(root @ root.T), rtol=1e-4)
