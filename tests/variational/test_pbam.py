"""pBaM against a dense transcription of the published update, and what it converges to."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from programs import assert_full_precision, largest_array
from scipy.linalg import sqrtm

import householder_mcmc as hm
from householder_mcmc.variational.batches import clean
from householder_mcmc.variational.pbam import batch_and_match, patch

DIM, RANK = 12, 3
Gaussian = hm.variational.LowRankGaussian


def gaussian(seed=0, dim=DIM, dtype=None):
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=dim), rng.uniform(0.1, 1, size=dim), rng.normal(size=(RANK, dim))
    return Gaussian(*(jnp.asarray(part, dtype) for part in parts))


def covariance_of(params):
    factor = np.asarray(params.factor, np.float64)
    return np.diag(np.asarray(params.diagonal, np.float64)) + factor.T @ factor


def batch_of(params, num):
    """Samples, and scores of a target that is no Gaussian."""
    samples = np.random.default_rng(2).multivariate_normal(params.mean, covariance_of(params), size=num)
    scores = 0.5 - samples / (1 + 0.1 * samples**2) - 0.2 * np.diff(samples, axis=1, append=0)
    return jnp.asarray(samples, params.mean.dtype), jnp.asarray(scores, params.mean.dtype)


@jax.jit
def batch_and_match_of(params, samples, scores, regularisation):
    """Mean, root and dense covariance."""
    mean, root = batch_and_match(params, clean(samples, scores, params.mean), regularisation)
    return mean, root, jnp.matmul(root.to_dense(), root.to_dense().T, precision="highest")


patch_of = jax.jit(patch, static_argnums=1)
update = jax.jit(hm.variational.pbam(5.0, max_patch_steps=2).update)


def updates_of(params, samples, scores):
    """Updates of `pbam`; always 6 samples, so that it is compiled once."""
    state = hm.variational.PBaMState(jnp.asarray(3, jnp.int32))
    return update(params, state, params, samples=samples, scores=scores)


def published_batch_and_match(mean, covariance, samples, scores, regularisation):
    """Cai et al. (2024), Algorithm 1: the covariance C solves C U C + C = V."""
    lam, share = regularisation, regularisation / (1 + regularisation)
    x, g = samples.mean(0), scores.mean(0)
    u = lam * np.cov(scores.T, bias=True) + share * np.outer(g, g)
    v = covariance + lam * np.cov(samples.T, bias=True) + share * np.outer(mean - x, mean - x)
    new = 2 * v @ np.linalg.inv(np.eye(len(v)) + np.real(sqrtm(np.eye(len(v)) + 4 * u @ v)))
    return mean / (1 + lam) + share * (new @ g + x), new


def published_patch(covariance, diagonal, factor, num_steps):
    """EM of factor analysis, from the best factor for the diagonal; steps of 1.2, the diagonal in logarithms."""
    values, vectors = np.linalg.eigh(covariance / np.sqrt(np.outer(diagonal, diagonal)))
    values, vectors = values[::-1][: len(factor)], vectors[:, ::-1][:, : len(factor)]
    factor = np.sqrt(np.maximum(values - 1, 0))[:, None] * vectors.T * np.sqrt(diagonal)
    for _ in range(num_steps):
        beta = factor @ np.linalg.inv(np.diag(diagonal) + factor.T @ factor)
        second = np.eye(len(factor)) - beta @ factor.T + beta @ covariance @ beta.T
        new_factor = np.linalg.solve(second, beta @ covariance)
        new_diagonal = np.diag(covariance - new_factor.T @ beta @ covariance)
        diagonal = diagonal * (new_diagonal / diagonal) ** 1.2
        factor = factor + 1.2 * (new_factor - factor)
    return diagonal, factor


def divergence(log_diagonal, factor, covariance):
    """KL(N(0, covariance) || N(0, diagonal + factor^T factor)) up to a constant."""
    fitted = jnp.diag(jnp.exp(log_diagonal)) + factor.T @ factor
    return 0.5 * (jnp.trace(jnp.linalg.solve(fitted, covariance)) + jnp.linalg.slogdet(fitted)[1])


@pytest.mark.parametrize("num", [2, 3, 20])  # 2 to 12 directions beyond the diagonal, of 12
@pytest.mark.parametrize("regularisation", [0.1, 10.0, 100.0])
def test_batch_and_match_is_the_published_update(num, regularisation, x64):
    params = gaussian()
    samples, scores = batch_of(params, num)
    mean, _, covariance = batch_and_match_of(params, samples, scores, regularisation)
    expected_mean, expected = published_batch_and_match(
        np.asarray(params.mean), covariance_of(params), np.asarray(samples), np.asarray(scores), regularisation
    )
    tol = 1e-13 * (10 + regularisation) ** 2  # the published root is of a matrix this ill-conditioned
    np.testing.assert_allclose(covariance, expected, rtol=0, atol=tol * np.abs(expected).max())
    np.testing.assert_allclose(mean, expected_mean, rtol=0, atol=10 * tol * np.abs(expected_mean).max())


def test_batch_and_match_does_not_cancel_in_float32():
    """V is 1e4 times the solution here: the published form, which subtracts from V, is of no use in float32."""
    params, target = gaussian(dtype=jnp.float32), gaussian(1)
    samples, _ = batch_of(params, 40)
    precision = 1e2 * np.linalg.inv(covariance_of(target))
    scores = jnp.asarray((np.asarray(target.mean) - np.asarray(samples, np.float64)) @ precision, jnp.float32)
    arguments = params, samples, scores, jnp.float32(100)
    ours = np.asarray(batch_and_match_of(*arguments)[2], np.float64)
    with jax.enable_x64(True):
        arguments = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), arguments)
        expected = np.asarray(batch_and_match_of(*arguments)[2])
    np.testing.assert_allclose(np.linalg.eigvals(np.linalg.solve(expected, ours)), 1, atol=1e-3)


def test_update_is_the_published_update(x64):
    params = gaussian()
    samples, scores = batch_of(params, 20)
    optimiser = hm.variational.pbam(2.0, max_patch_steps=3, patch_tolerance=1e-300)
    updates, state = jax.jit(optimiser.update)(params, optimiser.init(params), params, samples=samples, scores=scores)
    new = optax.apply_updates(params, updates)

    arrays = [np.asarray(array) for array in (samples, scores)]
    mean, covariance = published_batch_and_match(np.asarray(params.mean), covariance_of(params), *arrays, 2.0)
    diagonal, factor = published_patch(covariance, np.asarray(params.diagonal), np.asarray(params.factor), 3)
    np.testing.assert_allclose(new.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(new.diagonal, diagonal, rtol=1e-9)
    np.testing.assert_allclose(new.factor.T @ new.factor, factor.T @ factor, rtol=1e-9, atol=1e-10)
    assert state.count == 1


def test_patch_converges_to_a_stationary_point(x64):
    params = gaussian()
    samples, scores = batch_of(params, 20)
    _, covariance, dense = batch_and_match_of(params, samples, scores, 1.0)
    diagonal, factor, num_steps = patch_of(covariance, RANK, 20_000, 1e-18)
    assert num_steps < 20_000
    gradient_of = jax.jit(jax.grad(divergence, (0, 1)))
    gradients = gradient_of(jnp.log(diagonal), factor, dense)
    nearby = gradient_of(jnp.log(diagonal) + 0.1, factor, dense)
    for gradient, reference in zip(gradients, nearby, strict=True):
        assert jnp.abs(gradient).max() < 1e-6 * jnp.abs(reference).max()


def test_patch_stops_at_its_tolerance(dtype):
    params = gaussian(dtype=dtype)
    samples, scores = batch_of(params, 20)
    _, covariance, _ = batch_and_match_of(params, samples, scores, jnp.ones((), dtype))
    few, more, capped = (patch_of(covariance, RANK, *limits)[2] for limits in ((99, 1e-1), (99, 1e-3), (2, 1e-9)))
    assert 1 <= few < more < 99
    assert capped == 2


def test_patch_keeps_the_diagonal_above_its_floor(dtype):
    """Coordinates 0 and 1 are almost equal: the factor explains all of their variance. The others are unchanged."""
    eigenvectors = np.zeros((RANK, DIM))
    eigenvectors[[0, 2], :2] = np.array([[1, 1], [1, -1]]) / np.sqrt(2)
    eigenvectors[1, 2] = 1
    covariance = hm.LowRank(*(jnp.asarray(part, dtype) for part in (np.ones(DIM), eigenvectors, [1e6, 1, 1e-12])))
    diagonal, factor, _ = patch_of(covariance, RANK, 100, 1e-7)
    floor = max(100 * float(jnp.finfo(dtype).eps) * 5e5, float(jnp.finfo(dtype).eps) ** 0.5)
    assert np.isfinite(factor).all()
    np.testing.assert_allclose(diagonal[2:], 1, rtol=1e-3)
    assert (diagonal[:2] >= 0.999 * floor).all()


def test_target_is_a_fixed_point(x64):
    """For any batch the update is zero: covariance, mean, and no rotation of the rows of the factor."""
    target = gaussian()
    samples = np.asarray(target.mean) + 3 * np.random.default_rng(0).normal(size=(6, DIM))
    scores = np.linalg.solve(covariance_of(target), (np.asarray(target.mean) - samples).T).T
    updates, _ = updates_of(target, samples, scores)
    jax.tree.map(lambda update: np.testing.assert_allclose(update, 0, atol=1e-9), updates)


def test_recovers_a_diagonal_plus_low_rank_gaussian(dtype):
    target = gaussian(dtype=dtype)
    start = Gaussian.start(jnp.zeros(DIM, dtype), RANK)
    fitted, trace = hm.variational.fit(
        hm.variational.pbam(), target.log_density, start, jax.random.key(0), 200, batch_size=10
    )
    assert trace.elbo.dtype == dtype and all(part.dtype == dtype for part in fitted)
    tol = 1e3 * jnp.finfo(dtype).eps
    divergence_of = jax.jit(lambda p: p.kl_divergence(target))
    assert divergence_of(start) > 10
    assert divergence_of(fitted) < tol
    np.testing.assert_allclose(fitted.mean, target.mean, atol=np.sqrt(tol))
    np.testing.assert_allclose(covariance_of(fitted), covariance_of(target), atol=np.sqrt(tol))


def test_finds_a_small_scale_from_a_large_start(x64):
    """The target has sizes 1e-2 and 1e2, the start 1. Floors of the diagonal are relative, so none stops the fit."""
    sizes = jnp.where(jnp.arange(DIM) % 2, 1e-2, 1e2)
    plain = gaussian()
    target = Gaussian(plain.mean * sizes, plain.diagonal * sizes**2, plain.factor * sizes)
    start = Gaussian.start(jnp.zeros(DIM), RANK)
    optimiser = hm.variational.pbam()

    @jax.jit
    def run(params, key):
        def step(params, key):
            samples = params.sample(key, 20)
            scores = jax.vmap(target.score)(samples)
            updates, _ = optimiser.update(params, optimiser.init(params), params, samples=samples, scores=scores)
            return optax.apply_updates(params, updates), None

        return jax.lax.scan(step, params, jax.random.split(key, 100))[0]

    assert jax.jit(lambda p: p.kl_divergence(target))(run(start, jax.random.key(0))) < 1e-6


@pytest.mark.parametrize("sd, offset", [(1e-3, 3.0), (1e-4, 3.0), (1e-4, 0.0)])
def test_a_mean_that_is_far_away_does_not_shrink_the_gaussian(sd, offset, dtype):
    """The target has standard deviation `sd` in one direction, the start 1. With lambda = 10 the fit collapses."""
    target = Gaussian(jnp.full(5, offset, dtype), jnp.ones(5, dtype).at[2].set(sd**2), jnp.zeros((2, 5), dtype))
    start = Gaussian.start(jnp.zeros(5, dtype), 2)

    def divergence(optimiser):
        fitted, _ = hm.variational.fit(optimiser, target.log_density, start, jax.random.key(0), 50)
        return fitted.kl_divergence(target)

    assert divergence(hm.variational.pbam()) < 1e-2
    if offset:
        assert divergence(hm.variational.pbam(10.0)) > 1e4


def test_noise_does_not_raise_the_default_lambda(x64):
    """Late in a fit an update is small: of 20 batches in 1000 dimensions none has a mean score that counts.

    One batch in 1e4 would by chance, if scores are Gaussian.
    """
    params = Gaussian(jnp.zeros(1000), jnp.full(1000, 1.44), 0.1 * jnp.eye(RANK, 1000))
    optimiser = hm.variational.pbam()

    @jax.jit
    def change(key):
        samples = params.sample(key, 32)
        state = hm.variational.PBaMState(jnp.asarray(10**6, jnp.int32))
        updates, _ = optimiser.update(params, state, params, samples=samples, scores=-samples)
        return jnp.max(jnp.abs(updates.diagonal))

    assert max(change(key) for key in jax.random.split(jax.random.key(0), 20)) < 1e-2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_with_a_bad_score_are_dropped(bad):
    params = gaussian()
    samples, scores = batch_of(params, 6)
    kept = jnp.array([0, 1, 3, 5])
    updates, state = updates_of(params, samples, scores.at[2, 1].set(bad).at[4].set(bad))
    expected, _ = update(params, state, params, samples=samples[kept], scores=scores[kept])
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4), updates, expected)
    assert state.count == 4


def test_a_batch_without_use_changes_nothing():
    params = gaussian()
    samples, scores = batch_of(params, 6)
    updates, state = updates_of(params, samples, jnp.full_like(scores, jnp.nan))
    assert all((part == 0).all() for part in updates) and state.count == 3


@pytest.mark.parametrize("size", [1e-30, 1e30])  # squares under- and overflow
def test_extreme_scores_leave_a_gaussian(size):
    params = gaussian()
    samples, scores = batch_of(params, 6)
    new = optax.apply_updates(params, updates_of(params, samples, size * scores)[0])
    assert all(np.isfinite(part).all() for part in new) and (new.diagonal > 0).all()


def test_schedules_chains_and_pytrees():
    params = gaussian()
    samples, scores = batch_of(params, 6)
    expected, _ = updates_of(params, samples, scores)

    scheduled = hm.variational.pbam(lambda count: 20 / (1 + count), max_patch_steps=2)
    optimiser = optax.chain(scheduled, optax.scale(0.5))
    state = hm.variational.PBaMState(jnp.asarray(3, jnp.int32)), optax.EmptyState()

    def split(rows):
        return {"a": rows[..., :5], "b": rows[..., 5:]}

    tree = params._replace(mean=split(params.mean))
    updates, _ = jax.jit(optimiser.update)(tree, state, tree, samples=split(samples), scores=split(scores))
    mean = jnp.concatenate([updates.mean["a"], updates.mean["b"]])
    for part, theirs in zip((mean, *updates[1:]), expected, strict=True):
        np.testing.assert_allclose(part, 0.5 * theirs, rtol=1e-4, atol=1e-5)


def test_nothing_is_dense_and_products_have_full_precision():
    dim, num = 4096, 8
    params = jax.eval_shape(lambda: Gaussian.start(jnp.zeros(dim), RANK))
    rows = jax.ShapeDtypeStruct((num, dim), jnp.float32)
    state = hm.variational.PBaMState(jnp.zeros((), jnp.int32))

    def update(params, samples, scores):
        return hm.variational.pbam().update(params, state, params, samples=samples, scores=scores)

    jaxpr = jax.make_jaxpr(update)(params, rows, rows)
    assert largest_array(jaxpr.jaxpr) <= (RANK + 2 * num + 2) * dim
    assert_full_precision(jaxpr.jaxpr)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"regularisation": 0.0}, "regularisation must be positive, got 0.0"),
        ({"regularisation": np.nan}, "regularisation must be positive, got nan"),
        ({"max_patch_steps": 0}, "max_patch_steps must be at least 1, got 0"),
        ({"patch_tolerance": -1.0}, "patch_tolerance must be positive, got -1.0"),
    ],
)
def test_bad_options_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        hm.variational.pbam(**options)


@pytest.mark.parametrize(
    "samples, scores, match",
    [
        ((1, DIM), (1, DIM), "samples of a batch must be at least 2, got 1"),
        ((4, DIM), (3, DIM), r"got \(4, 12\) and \(3, 12\)"),
        ((4, DIM + 1), (4, DIM + 1), r"d = 12, got \(4, 13\)"),
        ((), (), "leading batch axis"),
    ],
)
@pytest.mark.parametrize("optimiser", [hm.variational.pbam(), hm.variational.reverse_kl(optax.sgd(1.0))])
def test_bad_batches_are_refused(optimiser, samples, scores, match):
    params = gaussian()
    with pytest.raises(ValueError, match=match):
        optimiser.update(params, optimiser.init(params), params, samples=jnp.ones(samples), scores=jnp.ones(scores))


def test_other_families_are_refused():
    with pytest.raises(ValueError, match="pbam fits a LowRankGaussian.*got LowRankScaleGaussian"):
        hm.variational.pbam().init(hm.variational.LowRankScaleGaussian(*gaussian()))
