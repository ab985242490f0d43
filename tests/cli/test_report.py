"""Tables and figures: every number in its row, every variance in its place."""

import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.cli import report


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
