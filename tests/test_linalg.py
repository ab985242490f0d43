"""The small eliminations and long products, in the forms of every platform, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from householder_mcmc.learners.scheme import only_if
from householder_mcmc.linalg import inverse_cholesky, project
from householder_mcmc.preconditioners import reflections


@pytest.fixture(params=["cpu", "default"])
def platform(request, monkeypatch):
    """Take the branches of a platform, whichever runs the tests."""
    monkeypatch.setattr(lax, "platform_dependent", lambda *args, **branches: branches[request.param](*args))


@pytest.mark.parametrize("rank", [1, 3, 40])
def test_inverse_cholesky(rank, platform):
    rows = np.random.default_rng(rank).normal(size=(rank, 2 * rank))
    gram = rows @ rows.T / rank
    result = inverse_cholesky(jnp.asarray(gram, jnp.float32))
    np.testing.assert_allclose(result, np.linalg.inv(np.linalg.cholesky(gram)), atol=1e-4)
    assert np.all(np.triu(result, 1) == 0)


@pytest.mark.parametrize("gram", [np.ones((3, 3)), -np.eye(3), np.diag([1, 0, 1])])
def test_inverse_cholesky_shows_what_is_not_positive_definite(gram):
    assert not np.isfinite(inverse_cholesky(jnp.asarray(gram, jnp.float32))).all()


def test_the_compact_form(platform):
    eigenvectors = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 35)))[0].T
    rotation = reflections.compact(jnp.asarray(eigenvectors, jnp.float32))
    matrix = rotation.to_dense()
    np.testing.assert_allclose(matrix[:, :35], eigenvectors.T, atol=1e-5)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(50), atol=1e-5)


@pytest.mark.parametrize("num", [2, 70])
@pytest.mark.parametrize("dim", [7, 17_000, 17_001])
def test_project(dim, num, platform):
    """Chunks of 1000 divide 17,000 and nothing divides 17,001; 70 vectors of that length fit no cache."""
    rng = np.random.default_rng(0)
    rows, x = (rng.normal(size=(n, dim)).astype(np.float32) for n in (3, num))
    expected = rows.astype(float) @ x.T
    np.testing.assert_allclose(project(rows, jnp.asarray(x)), expected, atol=1e-3)
    np.testing.assert_allclose(jax.vmap(lambda x: project(rows, x))(jnp.asarray(x)).T, expected, atol=1e-3)


def test_only_if_updates_what_is_due():
    is_due = jnp.array([True, False, True])
    result = jax.vmap(lambda is_due, x: only_if(is_due, lambda x: x + 1, x))(is_due, jnp.zeros(3))
    np.testing.assert_array_equal(result, is_due)
