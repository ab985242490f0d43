"""Oja's rule: one step against NumPy, convergence to known eigenvectors, one huge step in float32."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.learners import online_pca


def gram_schmidt(rows):
    rows = np.array(rows, np.float64)
    for i in range(len(rows)):
        for j in range(i):
            rows[i] -= (rows[j] @ rows[i]) * rows[j]
        rows[i] /= np.linalg.norm(rows[i])
    return rows


def step(optimiser, eigenvectors, centred, increment_of=online_pca.oja_increment, is_due=False):
    """New eigenvectors, and the projections on them."""
    projections = eigenvectors @ centred.T
    state = optimiser.init(eigenvectors)
    increment = increment_of(projections)
    return online_pca.step(optimiser, increment, state, eigenvectors, projections, centred, is_due)[:2]


def problem(dtype, num_chains=2, rank=3, dim=8, size=1.0):
    rng = np.random.default_rng(0)
    eigenvectors = jnp.asarray(gram_schmidt(rng.normal(size=(rank, dim))), dtype)
    centred = jnp.asarray(size * rng.normal(size=(num_chains, dim)), dtype)
    return eigenvectors, centred


@pytest.mark.parametrize("num_chains", [2, 7])  # fewer and more than rows
@pytest.mark.parametrize("is_due", [False, True])
@pytest.mark.parametrize("learning_rate", [0.01, 0.3, 1.0, 5.0])
def test_absolute_step_is_the_papers(dtype, learning_rate, is_due, num_chains):
    """Small steps are orthonormalised by products alone, large or due ones in full. Both give NumPy's rows."""
    eigenvectors, centred = problem(dtype, num_chains)
    new, projections = step(online_pca.oja(learning_rate), eigenvectors, centred, is_due=is_due)
    v, dx = np.asarray(eigenvectors, np.float64).T, np.asarray(centred, np.float64)
    expected = gram_schmidt((v + learning_rate * (dx.T @ dx / len(dx)) @ v).T)
    tol = 50 * jnp.finfo(dtype).eps
    assert new.dtype == projections.dtype == dtype
    np.testing.assert_allclose(new, expected, rtol=0, atol=tol)
    np.testing.assert_allclose(projections, expected @ dx.T, rtol=0, atol=tol * np.linalg.norm(dx))


@pytest.mark.parametrize("learning_rate", [0.01, 0.3])
def test_relative_step(dtype, learning_rate):
    eigenvectors, centred = problem(dtype)
    variances = jnp.asarray([4.0, 0.01, 1.0], dtype)  # the second is below the current mean square
    new, projections = step(
        online_pca.oja(learning_rate),
        eigenvectors,
        centred,
        lambda projections: online_pca.relative_increment(projections, variances),
    )
    v, dx = (np.asarray(a, np.float64) for a in (eigenvectors, centred))
    w = dx @ v.T
    floor = np.maximum(variances, (w**2).mean(0))
    expected = gram_schmidt((1 - learning_rate) * v + learning_rate * (w.T @ dx / len(dx)) / floor[:, None])
    tol = 50 * jnp.finfo(dtype).eps
    np.testing.assert_allclose(new, expected, rtol=0, atol=tol)
    np.testing.assert_allclose(projections, expected @ dx.T, rtol=0, atol=tol * np.linalg.norm(dx))


@pytest.mark.parametrize("learning_rate, low, high", [(0.02, 1, 4), (5.0, 4, 8e4), (1e3, 8e4, np.inf)])
def test_condition_tells_how_large_a_step_is(learning_rate, low, high):
    """In float32 the condition number chooses one of three ways: rows as they are, by their Gram matrix, by QR."""
    eigenvectors, centred = problem(jnp.float32)
    optimiser = online_pca.oja(learning_rate)
    projections = eigenvectors @ centred.T
    update, _ = optimiser.update(
        online_pca.oja_increment(projections),
        optimiser.init(eigenvectors),
        projections=projections,
        gram=centred @ centred.T,
    )
    assert low <= update.condition <= high
    rows = update.of_rows @ eigenvectors + update.of_draws @ centred
    gap = jnp.max(jnp.abs(rows @ rows.T - jnp.eye(3)))
    assert gap < 1e-6 if high == 4 else gap < 0.01 if np.isfinite(high) else gap > 1
    np.testing.assert_allclose(*(v @ v.T for v in (step(optimiser, eigenvectors, centred)[0], jnp.eye(3))), atol=1e-6)


def test_relative_step_has_no_scale():
    eigenvectors, centred = problem(jnp.float32)
    variances = jnp.asarray([4.0, 0.01, 1.0])
    new, _ = step(online_pca.oja(0.1), eigenvectors, centred, lambda w: online_pca.relative_increment(w, variances))
    rescaled, _ = step(
        online_pca.oja(0.1),
        eigenvectors,
        1024 * centred,
        lambda w: online_pca.relative_increment(w, 1024**2 * variances),
    )
    np.testing.assert_array_equal(new, rescaled)


def test_relative_step_without_variance_stays_finite():
    eigenvectors, centred = problem(jnp.float32, size=0.0)
    new, _ = step(online_pca.oja(1.0), eigenvectors, centred, lambda w: online_pca.relative_increment(w, jnp.zeros(3)))
    assert jnp.all(jnp.isfinite(new))


@pytest.mark.parametrize("size", [1e0, 1e2, 1e3, 1e4, 1e6, 1e12, 1e18])
@pytest.mark.parametrize("num_chains", [1, 2, 8])
def test_one_huge_step_keeps_orthonormal_rows_and_their_span(size, num_chains):
    """float32, |x - mean| up to 1e18: the new rows lie in the span of the old rows and the draws."""
    rank, dim = 5, 40
    eigenvectors, centred = problem(jnp.float32, num_chains, rank, dim, size / np.sqrt(dim))
    new, projections = step(online_pca.oja(1.0), eigenvectors, centred)
    np.testing.assert_allclose(new @ new.T, np.eye(rank), atol=1e-5)
    np.testing.assert_allclose(projections, new @ centred.T, atol=1e-5 * size)
    allowed = np.linalg.qr(np.concatenate([eigenvectors, centred / size]).T.astype(np.float64))[0]
    outside = new - (new @ allowed) @ allowed.T
    assert np.abs(outside).max() < 2e-3  # about eps^(1/2): rounding of a sum eps^(-1/2) longer than its shorter term


def test_shortening_leaves_ordinary_steps_alone():
    """An increment of length 2000, below the limit of 2896, gives the orthonormalised sum of rows and increment."""
    eigenvectors, centred = problem(jnp.float32, size=10.0)
    increment = centred @ eigenvectors.T
    increment = increment.T @ centred / 2
    learning_rate = 2000.0 / jnp.linalg.norm(increment)
    exact = online_pca.orthonormalize(eigenvectors + learning_rate * increment)
    np.testing.assert_allclose(step(online_pca.oja(learning_rate), eigenvectors, centred)[0], exact, atol=1e-3)


@pytest.mark.parametrize("num_chains", [1, 4, 40])
def test_rounding_does_not_add_up(num_chains):
    """20,000 float32 steps with a constant gain, a full orthonormalisation at every 256th."""
    rank, dim = 8, 30
    optimiser = online_pca.oja(0.02)
    scales = jnp.linspace(3, 1, dim)

    def learn(carry, count):
        eigenvectors, state, worst = carry
        centred = scales * jax.random.normal(jax.random.fold_in(jax.random.key(0), count), (num_chains, dim))
        projections = eigenvectors @ centred.T
        increment = online_pca.relative_increment(projections, scales[:rank] ** 2)
        eigenvectors, _, state = online_pca.step(
            optimiser, increment, state, eigenvectors, projections, centred, count % 256 == 0
        )
        gap = jnp.max(jnp.abs(eigenvectors @ eigenvectors.T - jnp.eye(rank)))
        return (eigenvectors, state, jnp.maximum(worst, gap)), None

    start = jnp.eye(rank, dim)
    carry = (start, optimiser.init(start), 0.0)
    (_, _, worst), _ = jax.jit(lambda carry: jax.lax.scan(learn, carry, jnp.arange(20_000)))(carry)
    assert worst < 1e-5


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
        projections = eigenvectors @ centred.T
        learnt = learnt + 0.01 * (jnp.mean(projections**2, 1) - learnt)
        increment = (
            online_pca.relative_increment(projections, learnt) if relative else online_pca.oja_increment(projections)
        )
        eigenvectors, _, state = online_pca.step(optimiser, increment, state, eigenvectors, projections, centred)
        return (eigenvectors, learnt, state), None

    start = jnp.eye(3, 20, dtype=jnp.float32)
    (eigenvectors, _, _), _ = jax.lax.scan(learn, (start, jnp.ones(3), optimiser.init(start)), draws)
    overlap = np.sum((eigenvectors @ basis[:, :3]) ** 2, axis=1)
    assert np.all(1 - overlap < 0.05)
    assert 1 - np.dot(eigenvectors[0], basis[:, 0]) ** 2 < 0.05


def test_orthonormalize_keeps_the_first_direction_and_dependent_rows_stay_orthonormal():
    rows = jnp.asarray([[-2.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]])
    new = online_pca.orthonormalize(rows)
    np.testing.assert_allclose(new[:2], [[-1, 0, 0, 0], [0, 1, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(new @ new.T, np.eye(3), atol=1e-6)


def test_is_a_compiled_optax_chain():
    """The schedule counts updates; the step is traced once and changes shape and dtype of nothing."""
    eigenvectors, centred = problem(jnp.float32)
    optimiser = online_pca.oja(lambda count: 0.1 / (count + 1))
    state = optimiser.init(eigenvectors)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def update(eigenvectors, state):
        projections = eigenvectors @ centred.T
        increment = online_pca.oja_increment(projections)
        return online_pca.step(optimiser, increment, state, eigenvectors, projections, centred)

    expected = eigenvectors
    for count in range(3):
        eigenvectors, _, state = update(eigenvectors, state)
        expected, _ = step(online_pca.oja(0.1 / (count + 1)), expected, centred)
        np.testing.assert_allclose(eigenvectors, expected, atol=1e-6)
