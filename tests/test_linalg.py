"""The small eliminations and long products, in the forms of every platform, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from programs import equations

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


def test_gradients_of_a_projection(platform):
    """Of sum(sin(rows x)) in both: alone, of many, and of rows that differ too."""
    rng = np.random.default_rng(0)
    rows, x = jnp.asarray(rng.normal(size=(2, 3, 7))), jnp.asarray(rng.normal(size=(2, 4, 7)))

    def value(rows, x):
        return jnp.sum(jnp.sin(project(rows, x)))

    def values(rows, x):
        return jnp.sum(jax.vmap(jax.vmap(value, (None, 0)))(rows, x))

    found = jax.grad(values, (0, 1))(rows, x)
    cosines = np.cos(np.einsum("brd,bnd->brn", rows, x))
    np.testing.assert_allclose(found[0], np.einsum("brn,bnd->brd", cosines, x), atol=1e-4)
    np.testing.assert_allclose(found[1], np.einsum("brn,brd->bnd", cosines, rows), atol=1e-4)
    np.testing.assert_allclose(jax.grad(value, 1)(rows[0], x[0, 0]), found[1][0, 0], atol=1e-4)


@pytest.mark.parametrize("num, is_turned", [(70, True), (5, False)])
def test_many_long_vectors_are_projected_from_the_other_side(num, is_turned, monkeypatch):
    """Under `vmap` too: 70 vectors of a million numbers and more against 3 rows, and not 5."""
    monkeypatch.setattr(lax, "platform_dependent", lambda *args, cpu, default: cpu(*args))
    rows, x = (jax.ShapeDtypeStruct((n, 10**6), jnp.float32) for n in (3, num))
    program = jax.make_jaxpr(jax.vmap(project, (None, 0)))(rows, x)
    (product,) = [each for each in equations(program.jaxpr) if each.primitive.name == "dot_general"]
    assert (product.invars[0].aval.shape == (num, 10**6)) == is_turned


def test_only_if_updates_what_is_due():
    is_due = jnp.array([True, False, True])
    result = jax.vmap(lambda is_due, x: only_if(is_due, lambda x: x + 1, x))(is_due, jnp.zeros(3))
    np.testing.assert_array_equal(result, is_due)
