"""Both Gaussian families against their dense twins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import assert_full_precision, largest_array
from scipy.stats import chi2, multivariate_normal

import householder_mcmc as hm

DIM, RANK = 7, 3
FAMILIES = {"covariance": hm.variational.LowRankGaussian, "scale": hm.variational.LowRankScaleGaussian}


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def gaussian(family, dtype=None, rank=RANK, seed=0):
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=DIM), np.exp(rng.normal(size=DIM)), rng.normal(size=(rank, DIM))
    return family(*(jnp.asarray(part, dtype) for part in parts))


def dense(params):
    """Mean and covariance in float64."""
    mean, diagonal, factor = (np.asarray(part, np.float64) for part in params)
    root = np.diag(diagonal) + factor.T @ factor
    return mean, root if isinstance(params, hm.variational.LowRankGaussian) else root @ root.T


def dense_kl(params, target):
    (mean, covariance), (target_mean, target_covariance) = dense(params), dense(target)
    ratio = np.linalg.solve(target_covariance, covariance)
    shift = target_mean - mean
    distance = shift @ np.linalg.solve(target_covariance, shift)
    return 0.5 * (np.trace(ratio) - len(mean) - np.linalg.slogdet(ratio)[1] + distance)


def test_log_density_and_score_agree_with_dense(family, dtype):
    params = gaussian(family, dtype)
    mean, covariance = dense(params)
    x = jnp.asarray(np.random.default_rng(1).normal(size=DIM), dtype)
    tol = 1e3 * jnp.finfo(dtype).eps  # the covariance's condition number is below 1e4, its root's below 1e2
    log_density, score = jax.jit(lambda p, y: (p.log_density(y), p.score(y)))(params, x)
    assert log_density.dtype == score.dtype == dtype
    np.testing.assert_allclose(log_density, multivariate_normal.logpdf(x, mean, covariance), rtol=tol)
    expected = -np.linalg.solve(covariance, x - mean)
    np.testing.assert_allclose(score, expected, rtol=tol, atol=tol * np.abs(expected).max())


def test_distance_does_not_cancel_in_float32():
    """A position 1e4 units out along a wide direction: a difference of squares would lose the distance in float32."""
    rng = np.random.default_rng(0)
    parts = np.zeros(100), np.full(100, 1e-4), rng.normal(size=(2, 100))
    params = hm.variational.LowRankGaussian(*(jnp.asarray(part, jnp.float32) for part in parts))
    positions = (rng.normal(size=(20, 2)) @ parts[2]).astype(np.float32)
    expected = multivariate_normal.logpdf(positions.astype(float), *dense(params))
    ours = jax.jit(lambda p, xs: jax.vmap(p.log_density)(xs))(params, positions)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-3)


def test_kl_divergence_agrees_with_dense(family, dtype):
    params, target = gaussian(family, dtype), gaussian(FAMILIES["covariance"], dtype, rank=DIM, seed=1)
    divergence = jax.jit(lambda p, q: p.kl_divergence(q))
    np.testing.assert_allclose(divergence(params, target), dense_kl(params, target), rtol=1e3 * jnp.finfo(dtype).eps)
    if family is FAMILIES["covariance"]:
        np.testing.assert_allclose(divergence(target, target), 0, atol=20 * DIM * jnp.finfo(dtype).eps)


@pytest.mark.parametrize("rank", [RANK, 5])  # twice 5 is more than d
def test_to_preconditioner_is_a_root_of_the_covariance(family, dtype, rank):
    params = gaussian(family, dtype, rank=rank)
    preconditioner = jax.jit(lambda p: p.to_preconditioner())(params)
    assert isinstance(preconditioner, hm.LowRank)
    root, covariance = np.asarray(jax.jit(lambda p: p.to_dense())(preconditioner), np.float64), dense(params)[1]
    np.testing.assert_allclose(root @ root.T, covariance, rtol=0, atol=100 * jnp.finfo(dtype).eps * covariance.max())


def test_scale_root_survives_equal_diagonal_and_factor_without_direction(x64):
    """With diagonal 1 the factor equals the whitened factor, so their span has half the rows; one row is zero."""
    factor = jnp.zeros((2, 4)).at[0].set(jnp.arange(4.0))
    params = hm.variational.LowRankScaleGaussian(jnp.zeros(4), jnp.ones(4), factor)
    root = jax.jit(lambda p: p.to_preconditioner().to_dense())(params)
    np.testing.assert_allclose(root @ root.T, dense(params)[1], rtol=1e-13, atol=1e-12)


def test_samples_have_the_mean_and_covariance(family):
    """Mahalanobis distance of the mean, and z scores of the covariance's entries, two-sided; error rate below 1e-4."""
    num = 20_000
    params = gaussian(family)
    mean, covariance = dense(params)
    centred = np.asarray(params.sample(jax.random.key(0), num), np.float64) - mean
    distance = num * centred.mean(0) @ np.linalg.solve(covariance, centred.mean(0))
    assert distance < chi2.ppf(1 - 5e-5, DIM)
    variances = np.diag(covariance)
    z = (centred.T @ centred / num - covariance) / np.sqrt((np.outer(variances, variances) + covariance**2) / num)
    assert np.abs(z).max() < 5.0  # 28 entries, each beyond 5 with probability 6e-7


def test_pullback_is_the_gradient_of_the_samples(family, x64):
    """`pullback` equals jax.vjp of x(parameters), with noise and latent at their expectations given x."""
    params = gaussian(family)
    rng = np.random.default_rng(1)
    samples, cotangents = rng.normal(size=(2, 5, DIM))
    mean, covariance = dense(params)
    if family is FAMILIES["covariance"]:
        solved = (samples - mean) @ np.linalg.inv(covariance)
        noise, latent = solved * np.sqrt(params.diagonal), solved @ params.factor.T

        def positions(p):
            return p.mean + jnp.sqrt(p.diagonal) * noise + latent @ p.factor
    else:
        noise = np.linalg.solve(np.diag(params.diagonal) + params.factor.T @ params.factor, (samples - mean).T).T

        def positions(p):
            return p.mean + noise @ (jnp.diag(p.diagonal) + p.factor.T @ p.factor)

    there, vjp = jax.vjp(positions, params)
    np.testing.assert_allclose(there, samples, rtol=1e-10, atol=1e-10)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10),
        jax.jit(lambda p, x, c: p.pullback(x, c))(params, samples, cotangents),
        *vjp(jnp.asarray(cotangents)),
    )


def test_positions_are_pytrees(family):
    position = {"a": jnp.arange(4.0).reshape(2, 2), "b": jnp.ones(3)}
    tree, flat = family.start(position, RANK), family.start(jnp.r_[jnp.arange(4.0), jnp.ones(3)], RANK)

    @jax.jit
    def everything(params):
        samples = params.sample(jax.random.key(0), 2)
        return samples, jax.vmap(params.log_density)(samples), jax.vmap(params.score)(samples)

    (samples, log_densities, scores), (rows, expected, flat_scores) = everything(tree), everything(flat)
    assert samples["a"].shape == (2, 2, 2)
    np.testing.assert_array_equal(samples["b"], rows[:, 4:])
    np.testing.assert_allclose(log_densities, expected, rtol=1e-6)  # another program, summed in another order
    np.testing.assert_allclose(scores["a"].reshape(2, 4), flat_scores[:, :4], rtol=1e-5, atol=1e-6)


def test_start_has_orthogonal_rows_that_miss_no_coordinate(family, dtype):
    params = family.start(jnp.ones(DIM, dtype), DIM)
    assert all(part.dtype == dtype for part in params)
    np.testing.assert_allclose(params.factor @ params.factor.T, 0.01 * np.eye(DIM), atol=jnp.finfo(dtype).eps)
    assert np.abs(params.factor).min() > 1e-3


def test_nothing_is_dense_and_products_have_full_precision(family):
    dim, num = 4096, 8
    params = jax.eval_shape(lambda: family.start(jnp.zeros(dim), RANK))
    target = jax.eval_shape(lambda: hm.variational.LowRankGaussian.start(jnp.zeros(dim), RANK))
    rows = jax.ShapeDtypeStruct((num, dim), jnp.float32)

    def everything(params, target, rows, key):
        results = jax.vmap(params.log_density)(rows), jax.vmap(params.score)(rows), params.pullback(rows, rows)
        return results, params.sample(key, num), params.kl_divergence(target), params.to_preconditioner()

    jaxpr = jax.make_jaxpr(everything)(params, target, rows, jax.random.key(0))
    assert largest_array(jaxpr.jaxpr) <= num * (dim + RANK)
    assert_full_precision(jaxpr.jaxpr)


def replaced(**parts):
    return hm.variational.LowRankGaussian(jnp.zeros(4), jnp.ones(4), jnp.ones((2, 4)))._replace(**parts)


@pytest.mark.parametrize(
    "params, match",
    [
        (replaced(diagonal=jnp.ones(3)), r"diagonal must have shape \(d,\).*got \(3,\)"),
        (replaced(factor=jnp.ones((2, 3))), r"got \(4,\) and \(2, 3\)"),
        (replaced(factor=jnp.ones(4)), r"got \(4,\) and \(4,\)"),
        (replaced(factor=jnp.ones((5, 4))), "at most d = 4, got 5"),
        (replaced(factor=jnp.ones((0, 4))), "at least 1 and at most d = 4, got 0"),
        (replaced(diagonal=jnp.array([1.0, -2.0, 1.0, 1.0])), r"diagonal must be positive, got \[ 1. -2."),
        (replaced(diagonal=jnp.array([1.0, jnp.nan, 1.0, 1.0])), "diagonal must be positive"),
        (replaced(mean=jnp.full(4, jnp.inf)), "mean must be finite"),
        (replaced(factor=jnp.full((2, 4), jnp.nan)), "factor must be finite"),
        (replaced(diagonal=jnp.ones(4, int)), "one floating point dtype"),
        (replaced(mean=jnp.zeros(4, jnp.float16)), "one floating point dtype"),
    ],
)
def test_bad_parameters_are_refused(params, match):
    for method in (
        params.to_preconditioner,
        lambda: hm.variational.pbam().init(params),
        lambda: hm.variational.fit(hm.variational.pbam(), lambda x: -x @ x, params, jax.random.key(0), 1),
    ):
        with pytest.raises(ValueError, match=match):
            method()


@pytest.mark.parametrize("rank", [0, 5])
def test_start_refuses_a_rank_out_of_range(family, rank):
    with pytest.raises(ValueError, match=f"at most d = 4, got {rank}"):
        family.start(jnp.zeros(4), rank)


def test_a_position_of_another_shape_or_structure_is_refused(family):
    vector, tree = family.start(jnp.zeros(3), 1), family.start({"a": jnp.zeros(2), "b": jnp.zeros(())}, 1)
    wrong = [(vector, 0.5), (vector, jnp.zeros((1, 3))), (vector, [0.0, 0.0, 0.0]), (vector, jnp.zeros((5, 3)))]
    wrong += [(tree, jnp.zeros(3)), (tree, {"b": jnp.zeros(()), "c": jnp.zeros(2)}), (tree, {"a": 0.0, "b": 0.0})]
    for params, position in wrong:
        for function in (params.log_density, params.score):
            with pytest.raises(ValueError, match="must have the structure and shapes of the mean, .*, got"):
                function(position)
    assert (
        tree.kl_divergence(hm.variational.LowRankGaussian.start(jnp.zeros(3), 1)).shape == ()
    )  # that is of ravelled means


def test_a_rank_must_be_an_integer(family):
    with pytest.raises(TypeError, match="rank must be an integer, got 2.5"):
        family.start(jnp.zeros(4), 2.5)
