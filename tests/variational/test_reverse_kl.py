"""Reverse KL: its gradient against that of the exact divergence, and what optax optimisers make of it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from programs import assert_full_precision, largest_array

import householder_mcmc as hm

DIM, RANK = 6, 2
FAMILIES = {"covariance": hm.variational.LowRankGaussian, "scale": hm.variational.LowRankScaleGaussian}


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def gaussian(family, seed=0, dtype=None):
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=DIM), rng.uniform(0.3, 1, size=DIM), 0.7 * rng.normal(size=(RANK, DIM))
    return family(*(jnp.asarray(part, dtype) for part in parts))


def covariance_of(params):
    root = np.diag(params.diagonal) + np.asarray(params.factor).T @ params.factor
    return root if isinstance(params, hm.variational.LowRankGaussian) else root @ root.T


def sigma_points(params):
    """Points with the mean and covariance of a Gaussian: averages of quadratics over them are expectations."""
    root = np.sqrt(DIM) * np.linalg.cholesky(covariance_of(params)).T
    return jnp.asarray(np.concatenate([params.mean + root, params.mean - root]))


def test_gradient_is_that_of_the_exact_divergence_in_expectation(family, x64):
    """For a Gaussian target the estimate is quadratic in the samples, so that there is no Monte Carlo error."""
    params, target = gaussian(family), gaussian(FAMILIES["covariance"], seed=1)
    samples = sigma_points(params)
    estimate = jax.jit(hm.variational.reverse_kl_gradient)(params, samples, jax.vmap(target.score)(samples))
    exact = jax.jit(jax.grad(lambda p: p.kl_divergence(target)))(params)
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-11), estimate, exact)


def test_gradient_has_no_noise_at_the_target(family, x64):
    params = gaussian(family)
    samples = 3 * jax.random.normal(jax.random.key(0), (4, DIM))
    gradient = jax.jit(hm.variational.reverse_kl_gradient)(params, samples, jax.vmap(params.score)(samples))
    jax.tree.map(lambda part: np.testing.assert_allclose(part, 0, atol=1e-12), gradient)


def rates(mean, diagonal, factor):
    parts = {"mean": optax.sgd(mean), "diagonal": optax.sgd(diagonal), "factor": optax.sgd(factor)}
    return optax.partition(parts, hm.variational.LowRankGaussian("mean", "diagonal", "factor"))


@pytest.mark.parametrize(
    "name, optimiser, num_steps",
    [
        ("covariance", optax.adam(optax.cosine_decay_schedule(0.05, 2000)), 2000),
        ("scale", optax.adam(optax.cosine_decay_schedule(0.05, 2000)), 2000),
        ("covariance", rates(0.05, 0.05, 0.03), 3000),
    ],
    ids=["adam", "adam of the root", "a rate for each part"],
)
def test_converges_to_the_covariance_of_the_target(name, optimiser, num_steps, x64):
    target = gaussian(FAMILIES[name], seed=1)
    fitted, _ = hm.variational.fit(
        hm.variational.reverse_kl(optimiser),
        target.log_density,
        FAMILIES[name].start(jnp.zeros(DIM), RANK),
        jax.random.key(0),
        num_steps,
        batch_size=16,
    )
    np.testing.assert_allclose(covariance_of(fitted), covariance_of(target), rtol=0, atol=1e-3)
    np.testing.assert_allclose(fitted.mean, target.mean, atol=1e-3)


def updates_of(optimiser, params, samples, scores):
    optimiser = hm.variational.reverse_kl(optimiser)
    state = optimiser.init(params)
    return *jax.jit(optimiser.update)(params, state, params, samples=samples, scores=scores), state


def test_rates_of_parts_and_the_logarithm_of_the_diagonal(dtype):
    params, target = gaussian(FAMILIES["covariance"], dtype=dtype), gaussian(FAMILIES["covariance"], 1, dtype)
    samples = jnp.asarray(np.random.default_rng(0).normal(size=(4, DIM)), dtype)
    scores = jax.vmap(target.score)(samples)
    updates, *_ = updates_of(rates(0.0, 0.1, 2.0), params, samples, scores)
    gradient = jax.jit(hm.variational.reverse_kl_gradient)(params, samples, scores)
    assert all(part.dtype == dtype for part in updates)
    assert (updates.mean == 0).all()
    tol = 100 * jnp.finfo(dtype).eps
    np.testing.assert_allclose(updates.factor, -2 * gradient.factor, rtol=tol, atol=tol)
    grown = params.diagonal * jnp.exp(-0.1 * gradient.diagonal * params.diagonal)
    np.testing.assert_allclose(params.diagonal + updates.diagonal, grown, rtol=tol)


def test_a_huge_step_keeps_the_diagonal_positive(family, dtype):
    params = gaussian(family, dtype=dtype)
    samples = jnp.asarray(np.random.default_rng(0).normal(size=(4, DIM)), dtype)
    for sign in (1e4, -1e4):
        updates, *_ = updates_of(optax.sgd(sign), params, samples, -samples)
        diagonal = optax.apply_updates(params, updates).diagonal
        assert (diagonal > 0).all() and np.isfinite(diagonal).all()


def test_bad_scores_are_dropped_and_a_batch_without_use_changes_nothing(family):
    params = gaussian(family)
    samples = jnp.asarray(np.random.default_rng(0).normal(size=(4, DIM)), jnp.float32)
    scores = -(samples**3)
    spoilt = scores.at[1, 3].set(jnp.nan).at[2, 0].set(jnp.inf)
    kept = jnp.array([0, 3])
    updates, *_ = updates_of(optax.sgd(1.0), params, samples, spoilt)
    expected, *_ = updates_of(optax.sgd(1.0), params, samples[kept], scores[kept])
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5), updates, expected)

    optimiser = hm.variational.reverse_kl(optax.adam(0.1))
    update = jax.jit(optimiser.update)
    _, moved = update(params, optimiser.init(params), params, samples=samples, scores=scores)
    updates, state = update(params, moved, params, samples=samples, scores=jnp.full_like(scores, jnp.nan))
    assert all((part == 0).all() for part in updates)
    jax.tree.map(np.testing.assert_array_equal, state, moved)


def test_positions_are_pytrees(family):
    params = gaussian(family)
    samples = jnp.asarray(np.random.default_rng(0).normal(size=(4, DIM)), jnp.float32)

    def split(rows):
        return {"a": rows[..., :2], "b": rows[..., 2:]}

    optimiser = optax.adam(0.1)
    expected, *_ = updates_of(optimiser, params, samples, -(samples**3))
    updates, *_ = updates_of(optimiser, params._replace(mean=split(params.mean)), split(samples), split(-(samples**3)))
    np.testing.assert_allclose(updates.mean["b"], expected.mean[2:], rtol=1e-4)
    np.testing.assert_allclose(updates.factor, expected.factor, rtol=1e-4)


def test_nothing_is_dense_and_products_have_full_precision(family):
    dim, num = 4096, 8
    params = jax.eval_shape(lambda: family.start(jnp.zeros(dim), RANK))
    rows = jax.ShapeDtypeStruct((num, dim), jnp.float32)
    jaxpr = jax.make_jaxpr(hm.variational.reverse_kl_gradient)(params, rows, rows)
    assert largest_array(jaxpr.jaxpr) <= num * dim
    assert_full_precision(jaxpr.jaxpr)


def test_other_parameters_are_refused():
    with pytest.raises(ValueError, match="got tuple"):
        hm.variational.reverse_kl(optax.sgd(1.0)).init(tuple(gaussian(FAMILIES["covariance"])))
