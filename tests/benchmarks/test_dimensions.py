"""A miniature of the benchmark of trajectories against d, and its targets."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import dimensions


@pytest.mark.usefixtures("x64")
def test_the_gaussian_is_what_its_map_makes_of_a_standard_one():
    """Its log-density at L z is -|z|^2 / 2, and its variances are those of L L^T, from 0.01^2 to 100^2."""
    logdensity, spread = dimensions.gaussian(20, np.random.default_rng(0))
    z = jax.random.normal(jax.random.key(0), (20,))
    np.testing.assert_allclose(logdensity(spread(z)), -jnp.sum(z**2) / 2, rtol=1e-9)
    root = jax.jacobian(spread)(z)
    np.testing.assert_allclose(-jax.hessian(logdensity)(z) @ root @ root.T, np.eye(20), atol=1e-6)
    assert jnp.sqrt(jnp.diag(root @ root.T)).min() >= 0.01 and np.linalg.cond(root) > 1e3


@pytest.mark.usefixtures("x64")
def test_the_logistic_regression_is_that_of_its_groups():
    """Each group has a posterior of its own, so second derivatives across groups vanish; within one they do not."""
    logdensity, spread = dimensions.logistic(20, np.random.default_rng(0))
    x = spread(jax.random.normal(jax.random.key(0), (20,)))
    hessian = np.array(-jax.hessian(logdensity)(x))
    assert np.linalg.eigvalsh(hessian).min() >= 1  # the prior's, and what the data add
    np.testing.assert_array_equal(hessian[:10, 10:], 0)
    assert np.all(np.abs(hessian[:10, :10]) > 0)
    np.testing.assert_allclose(logdensity(jnp.zeros(20)), -2 * 50 * np.log(2))


def test_a_miniature_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(dimensions, "NUM_DRAWS", 20)
    monkeypatch.setattr(dimensions, "DIMS", (10, 100))
    monkeypatch.setattr(dimensions, "TARGETS", {"Gaussian": dimensions.gaussian})
    shapes, judge = [], dimensions.diagnostics.ess_and_rhat
    monkeypatch.setattr(
        dimensions.diagnostics, "ess_and_rhat", lambda draws: shapes.append(draws.shape) or judge(draws)
    )
    dimensions.main(["--largest", "10", "--out", str(tmp_path)])
    assert set(shapes) == {(4, 20, 10)}
    with (tmp_path / "dimensions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["dim"], row["trajectories"]) for row in rows] == [("10", "leapfrog"), ("10", "exact")]
    assert float(rows[1]["gradients_per_draw"]) < 1.5 < float(rows[0]["gradients_per_draw"])
    assert all(0 < float(row["ess_per_1000_gradients"]) < 5000 and row["commit"] for row in rows)
