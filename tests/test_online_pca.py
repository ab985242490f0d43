"""Oja's rule: one step against NumPy, convergence to known eigenvectors, one huge step in float32."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import householder_mcmc as hm
from householder_mcmc import online_pca


def gram_schmidt(rows):
    rows = np.array(rows, np.float64)
    for i in range(len(rows)):
        for j in range(i):
            rows[i] -= (rows[j] @ rows[i]) * rows[j]
        rows[i] /= np.linalg.norm(rows[i])
    return rows


def step(optimiser, eigenvectors, increment):
    updates, _ = optimiser.update(increment, optimiser.init(eigenvectors), eigenvectors)
    return optax.apply_updates(eigenvectors, updates)


def problem(dtype, num_chains=2, rank=3, dim=8, size=1.0):
    rng = np.random.default_rng(0)
    eigenvectors = jnp.asarray(gram_schmidt(rng.normal(size=(rank, dim))), dtype)
    centred = jnp.asarray(size * rng.normal(size=(num_chains, dim)), dtype)
    return eigenvectors, centred, centred @ eigenvectors.T


def test_absolute_step_is_the_papers(dtype):
    eigenvectors, centred, projections = problem(dtype)
    new = step(online_pca.oja(0.3), eigenvectors, online_pca.oja_increment(projections, centred))
    v, dx = np.asarray(eigenvectors, np.float64).T, np.asarray(centred, np.float64)
    expected = gram_schmidt((v + 0.3 * (dx.T @ dx / len(dx)) @ v).T)
    assert new.dtype == dtype
    np.testing.assert_allclose(new, expected, rtol=0, atol=50 * jnp.finfo(dtype).eps)


def test_relative_step(dtype):
    eigenvectors, centred, projections = problem(dtype)
    variances = jnp.asarray([4.0, 0.01, 1.0], dtype)  # the second is below the current mean square
    increment = online_pca.relative_increment(eigenvectors, projections, centred, variances)
    new = step(online_pca.oja(0.3), eigenvectors, increment)
    v, dx, w = (np.asarray(a, np.float64) for a in (eigenvectors, centred, projections))
    floor = np.maximum(variances, (w**2).mean(0))
    expected = gram_schmidt(0.7 * v + 0.3 * (w.T @ dx / len(dx)) / floor[:, None])
    np.testing.assert_allclose(new, expected, rtol=0, atol=50 * jnp.finfo(dtype).eps)


def test_relative_step_has_no_scale():
    eigenvectors, centred, projections = problem(jnp.float32)
    variances = jnp.asarray([4.0, 0.01, 1.0])
    increment = online_pca.relative_increment(eigenvectors, projections, centred, variances)
    rescaled = online_pca.relative_increment(eigenvectors, 1024 * projections, 1024 * centred, 1024**2 * variances)
    np.testing.assert_array_equal(increment, rescaled)


def test_relative_step_without_variance_stays_finite():
    eigenvectors, centred, projections = problem(jnp.float32, size=0.0)
    increment = online_pca.relative_increment(eigenvectors, projections, centred, jnp.zeros(3))
    assert jnp.all(jnp.isfinite(step(online_pca.oja(1.0), eigenvectors, increment)))


@pytest.mark.parametrize("size", [1e0, 1e2, 1e3, 1e4, 1e6, 1e12, 1e18])
@pytest.mark.parametrize("num_chains", [1, 2, 8])
def test_one_huge_step_keeps_orthonormal_rows_and_their_span(size, num_chains):
    """float32, |x - mean| up to 1e18: the new rows lie in the span of the old rows and the draws."""
    rank, dim = 5, 40
    eigenvectors, centred, projections = problem(jnp.float32, num_chains, rank, dim, size / np.sqrt(dim))
    new = step(online_pca.oja(1.0), eigenvectors, online_pca.oja_increment(projections, centred))
    np.testing.assert_allclose(new @ new.T, np.eye(rank), atol=1e-5)
    allowed = np.linalg.qr(np.concatenate([eigenvectors, centred / size]).T.astype(np.float64))[0]
    outside = new - (new @ allowed) @ allowed.T
    assert np.abs(outside).max() < 2e-3  # about eps^(1/2): rounding of a sum eps^(-1/2) longer than its shorter term


def test_shortening_leaves_ordinary_steps_alone():
    eigenvectors, centred, projections = problem(jnp.float32, size=10.0)
    increment = online_pca.oja_increment(projections, centred)
    assert jnp.linalg.norm(increment) < jnp.finfo(jnp.float32).eps ** -0.5
    exact = online_pca.orthonormalize(eigenvectors + increment)
    np.testing.assert_allclose(step(online_pca.oja(1.0), eigenvectors, increment), exact, atol=1e-6)


@pytest.mark.parametrize("relative", [True, False])
def test_finds_leading_eigenvectors_of_independent_draws(relative):
    """sin^2 of each of three separated eigenvectors after 4000 draws; the planted start is a wrong subspace."""
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    variances = np.r_[9.0, 5.0, 2.5, np.full(17, 0.5)]
    draws = jnp.asarray((rng.normal(size=(4000, 1, 20)) * np.sqrt(variances)) @ basis.T, jnp.float32)
    optimiser = online_pca.oja(hm.power_decay(0.8, 1.0 if relative else 0.3))

    def learn(carry, centred):
        eigenvectors, learnt, state = carry
        projections = centred @ eigenvectors.T
        learnt = learnt + 0.01 * (jnp.mean(projections**2, 0) - learnt)
        increment = (
            online_pca.relative_increment(eigenvectors, projections, centred, learnt)
            if relative
            else online_pca.oja_increment(projections, centred)
        )
        updates, state = optimiser.update(increment, state, eigenvectors)
        return (optax.apply_updates(eigenvectors, updates), learnt, state), None

    start = jnp.eye(3, 20, dtype=jnp.float32)
    (eigenvectors, _, _), _ = jax.lax.scan(learn, (start, jnp.ones(3), optimiser.init(start)), draws)
    overlap = np.sum((eigenvectors @ basis[:, :3]) ** 2, axis=1)
    assert np.all(1 - overlap < 0.05)
    assert 1 - np.dot(eigenvectors[0], basis[:, 0]) ** 2 < 0.05


def test_orthonormalizes_every_third_update():
    eigenvectors, centred, projections = problem(jnp.float32, size=3.0)
    increment = online_pca.oja_increment(projections, centred)
    optimiser = online_pca.oja(0.5, orthonormalize_every=3)
    state, gaps = optimiser.init(eigenvectors), []
    for _ in range(6):
        updates, state = optimiser.update(increment, state, eigenvectors)
        eigenvectors = optax.apply_updates(eigenvectors, updates)
        np.testing.assert_allclose(jnp.linalg.norm(eigenvectors, axis=1), 1, atol=1e-5)
        gaps.append(float(jnp.abs(eigenvectors @ eigenvectors.T - jnp.eye(3)).max()))
    assert [gap < 1e-5 for gap in gaps] == [False, False, True, False, False, True]


def test_orthonormalize_keeps_the_first_direction_and_dependent_rows_stay_orthonormal():
    rows = jnp.asarray([[-2.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]])
    new = online_pca.orthonormalize(rows)
    np.testing.assert_allclose(new[:2], [[-1, 0, 0, 0], [0, 1, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(new @ new.T, np.eye(3), atol=1e-6)


def test_rows_of_length_zero_are_no_trouble():
    optimiser = online_pca.oja(1.0, orthonormalize_every=2)
    eigenvectors = jnp.eye(2, 4)
    assert jnp.all(jnp.isfinite(step(optimiser, eigenvectors, -eigenvectors)))


def test_is_a_compiled_optax_chain():
    eigenvectors, centred, projections = problem(jnp.float32)
    optimiser = online_pca.oja(optax.exponential_decay(0.1, 10, 0.9))
    update = jax.jit(chex.assert_max_traces(optimiser.update, n=1))
    state = optimiser.init(eigenvectors)
    for _ in range(3):
        updates, state = update(online_pca.oja_increment(projections, centred), state, eigenvectors)
    assert updates.shape == eigenvectors.shape


def test_bad_input():
    with pytest.raises(ValueError, match="pass them as `params`"):
        optimiser = online_pca.oja(0.1)
        optimiser.update(jnp.zeros((1, 2)), optimiser.init(jnp.zeros((1, 2))))
    with pytest.raises(ValueError, match="positive integer, got 0"):
        online_pca.oja(0.1, orthonormalize_every=0)
