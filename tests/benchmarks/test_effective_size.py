"""Against R 4.3, coda's `effectiveSize` and stats' `ar`: series and results from running them."""

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks import effective_size as module
from benchmarks.effective_size import effective_size

DATA = Path(__file__).parent / "data"


def read():
    """Name -> (series, effective size, order of the autoregression)."""
    with open(DATA / "effective_size_series.csv") as file:
        names, *rows = csv.reader(file)
    with open(DATA / "effective_size.csv") as file:
        results = {row["series"]: row for row in csv.DictReader(file)}
    columns = {name: [float(row[k]) for row in rows if row[k] not in ("", "NA")] for k, name in enumerate(names)}
    return {
        name: (np.array(column), float(results[name]["effective_size"]), results[name]["ar_order"])
        for name, column in columns.items()
    }


REFERENCE = read()


@pytest.mark.parametrize("name", REFERENCE)
def test_agrees_with_coda(name):
    series, expected_size, expected_order = REFERENCE[name]
    size, order = effective_size(series)
    np.testing.assert_allclose(size, expected_size, rtol=1e-8)
    assert int(order) == (0 if expected_order == "NA" else int(expected_order))


def test_many_series_in_blocks_are_each_alone(monkeypatch):
    series = np.stack([series for series, _, _ in REFERENCE.values() if len(series) == 1000]).reshape(3, -1, 1000)
    monkeypatch.setattr(module, "_BLOCK", 2500)
    sizes, orders = effective_size(series)
    assert sizes.shape == orders.shape == series.shape[:2]
    for index in np.ndindex(sizes.shape):
        size, order = effective_size(series[index])
        np.testing.assert_allclose(sizes[index], size, rtol=1e-10)
        assert orders[index] == order


@pytest.mark.parametrize("lag, order", [(29, 29), (32, None)])
def test_orders_go_up_to_ten_log10_n(lag, order):
    """A series that depends on one distant value: R tries orders up to floor(10 log10 1000) = 30."""
    noise = np.random.default_rng(0).normal(size=1000)
    series = noise.copy()
    for t in range(lag, 1000):
        series[t] += 0.9 * series[t - lag]
    found = int(effective_size(series)[1])
    assert found == order if order else found <= 30


def test_a_straight_line_has_size_zero():
    """coda takes the residuals of a line; their spread is rounding."""
    np.testing.assert_array_equal(effective_size(np.outer([1.0, -3.0], np.arange(200)) + 7)[0], 0)


def test_does_not_depend_on_scale_and_level():
    series = REFERENCE["ar2"][0]
    np.testing.assert_allclose(effective_size(1e3 * series - 40)[0], effective_size(series)[0], rtol=1e-9)
