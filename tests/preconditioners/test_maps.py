"""Every preconditioner against its dense twin, and its covariance against BlackJAX's."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.metrics import LowRankInverseMassMatrix

import householder_mcmc as hm

DIM, RANK = 9, 3


def numbers(dtype):
    rng = np.random.default_rng(0)
    scales = jnp.asarray(np.exp(rng.normal(size=DIM)), dtype)
    eigenvectors = jnp.asarray(np.linalg.qr(rng.normal(size=(DIM, RANK)))[0].T, dtype)
    eigenvalues = jnp.asarray(np.exp(rng.normal(size=RANK)), dtype)
    triangle = jnp.asarray(np.tril(rng.normal(size=(DIM, DIM))) + 2 * np.eye(DIM), dtype)
    return scales, eigenvectors, eigenvalues, triangle


def preconditioners(dtype):
    """(preconditioner, L written out in float64) by name."""
    scales, eigenvectors, eigenvalues, triangle = numbers(dtype)
    v = np.asarray(eigenvectors, np.float64)
    root = np.eye(DIM) + v.T @ np.diag(np.sqrt(np.asarray(eigenvalues, np.float64)) - 1) @ v
    q = hm.reflections.compact(eigenvectors)
    return {
        "diagonal": (hm.Diagonal(scales), np.diag(scales)),
        "dense": (hm.Dense(triangle), np.asarray(triangle)),
        "low_rank": (hm.LowRank(scales, eigenvectors, eigenvalues), np.asarray(scales)[:, None] * root),
        "householder": (hm.Householder(q, scales), np.asarray(q.to_dense()) * np.asarray(scales)),
        "householder_sequential": (
            hm.Householder(hm.reflections.sequential(eigenvectors), scales),
            np.asarray(q.to_dense()) * np.asarray(scales),
        ),
    }


@pytest.mark.parametrize("name", ["diagonal", "dense", "low_rank", "householder", "householder_sequential"])
def test_products_agree_with_dense(name, transform, dtype):
    preconditioner, dense = preconditioners(dtype)[name]
    x = jnp.asarray(np.random.default_rng(1).normal(size=DIM), dtype)
    tol = 100 * jnp.finfo(dtype).eps
    assert isinstance(preconditioner, hm.Preconditioner)
    np.testing.assert_allclose(preconditioner.to_dense(), dense, rtol=tol, atol=tol)
    image = transform(lambda p, y: p.apply(y))(preconditioner, x)
    transposed = transform(lambda p, y: p.apply_transpose(y))(preconditioner, x)
    assert image.dtype == transposed.dtype == dtype
    np.testing.assert_allclose(image, dense @ x, rtol=tol, atol=tol)
    np.testing.assert_allclose(transposed, dense.T @ x, rtol=tol, atol=tol)


@pytest.mark.parametrize("name", ["diagonal", "dense", "low_rank", "householder", "householder_sequential"])
def test_inverses_agree_with_dense(name, transform, x64):
    preconditioner, dense = preconditioners(jnp.float64)[name]
    x = jnp.asarray(np.random.default_rng(1).normal(size=DIM))
    np.testing.assert_allclose(
        transform(lambda p, y: p.solve(y))(preconditioner, x), np.linalg.solve(dense, x), rtol=1e-8
    )
    transposed = transform(lambda p, y: p.solve_transpose(y))(preconditioner, x)
    np.testing.assert_allclose(transposed, np.linalg.solve(dense.T, x), rtol=1e-8)


@pytest.mark.parametrize("name", ["diagonal", "dense", "low_rank"])
def test_to_inverse_mass_matrix_is_the_covariance_in_blackjaxs_types(name, x64):
    preconditioner, dense = preconditioners(jnp.float64)[name]
    root = hm.as_preconditioner(preconditioner.to_inverse_mass_matrix()).to_dense()
    np.testing.assert_allclose(root @ root.T, dense @ dense.T, rtol=1e-10, atol=1e-12)


def test_householder_has_no_blackjax_type():
    with pytest.raises(TypeError, match="use hm.to_metric"):
        preconditioners(jnp.float32)["householder"][0].to_inverse_mass_matrix()


def test_low_rank_from_covariance(dtype):
    rng = np.random.default_rng(2)
    diagonal, factor = np.exp(rng.normal(size=DIM)), 3 * rng.normal(size=(RANK, DIM))
    root = hm.LowRank.from_covariance(jnp.asarray(diagonal, dtype), jnp.asarray(factor, dtype)).to_dense()
    covariance = np.diag(diagonal) + factor.T @ factor
    np.testing.assert_allclose(root @ root.T, covariance, rtol=0, atol=100 * jnp.finfo(dtype).eps * covariance.max())


@pytest.mark.parametrize("shapes", [((3,), (4, 3)), ((3,), (1, 4)), ((3, 3), (1, 3)), ((3,), (3,)), ((3,), (0, 3))])
def test_low_rank_rejects_wrong_shapes(shapes):
    with pytest.raises(ValueError, match="diagonal must have shape"):
        hm.LowRank.from_covariance(*(jnp.ones(shape) for shape in shapes))


def inverse_mass_matrices(dtype):
    scales, eigenvectors, eigenvalues, triangle = numbers(dtype)
    return {
        "vector": scales**2,
        "matrix": triangle @ triangle.T + jnp.eye(DIM, dtype=dtype),
        "low rank": LowRankInverseMassMatrix(scales, eigenvectors.T, eigenvalues),
    }


@pytest.mark.parametrize("name", ["vector", "matrix", "low rank"])
def test_covariance_is_blackjaxs_inverse_mass_matrix(name):
    """L L^T p is the velocity that BlackJAX's metric gives momentum p."""
    with jax.enable_x64(True):
        inverse_mass_matrix = inverse_mass_matrices(jnp.float64)[name]
        root = hm.as_preconditioner(inverse_mass_matrix).to_dense()
        metric = blackjax.mcmc.metrics.default_metric(inverse_mass_matrix)
        velocity = jax.vmap(jax.grad(metric.kinetic_energy))(jnp.eye(DIM))
        np.testing.assert_allclose(root @ root.T, velocity, rtol=1e-12, atol=1e-12)


def test_as_preconditioner_keeps_preconditioners():
    for preconditioner, _ in preconditioners(jnp.float32).values():
        assert hm.as_preconditioner(preconditioner) is preconditioner


@pytest.mark.parametrize("shape", [(), (1,), (DIM + 1,), (DIM, DIM)])
def test_products_reject_other_shapes(shape):
    for preconditioner, _ in preconditioners(jnp.float32).values():
        for product in (preconditioner.apply, preconditioner.apply_transpose):
            with pytest.raises(ValueError, match=r"expected a vector of shape \(9,\)"):
                product(jnp.ones(shape))


@pytest.mark.parametrize("variances", [[1.0, 0.0], [1.0, -1.0], [[1.0, 0.0], [0.0, 0.0]], [1.0, np.nan], [1.0, np.inf]])
def test_as_preconditioner_rejects_variances_that_are_not_positive(variances):
    with pytest.raises(ValueError, match="must have positive and finite variances"):
        hm.as_preconditioner(jnp.asarray(variances))


def test_as_preconditioner_rejects_what_is_not_positive_definite():
    with pytest.raises(ValueError, match="must be positive definite"):
        hm.as_preconditioner([[1.0, 2.0], [2.0, 1.0]])
    for wrong, name in (
        (hm.LowRank(jnp.ones(3), jnp.eye(1, 3), -jnp.ones(1)), "eigenvalues"),
        (LowRankInverseMassMatrix(jnp.zeros(3), jnp.eye(3, 1), jnp.ones(1)), "scales"),
    ):
        with pytest.raises(ValueError, match=f"must have positive and finite {name}"):
            hm.as_preconditioner(wrong)


@pytest.mark.parametrize("shape", [(), (2, 3), (2, 2, 2)])
def test_as_preconditioner_rejects_wrong_shapes(shape):
    with pytest.raises(ValueError, match="must have shape"):
        hm.as_preconditioner(jnp.ones(shape))


@pytest.mark.parametrize("thing", ["identity", None, object(), {"a": 1}])
def test_as_preconditioner_rejects_other_types(thing):
    with pytest.raises(TypeError, match="inverse_mass_matrix must be"):
        hm.as_preconditioner(thing)


def test_as_preconditioner_rejects_maps_that_are_no_pytree():
    class Own:
        apply = apply_transpose = to_dense = lambda self, x=None: x

    for thing in (Own(), hm.Diagonal):
        with pytest.raises(TypeError, match="must be a pytree of arrays, such as a NamedTuple, got"):
            hm.as_preconditioner(thing)


def half_precision(rows):
    return jnp.asarray(rows, jnp.bfloat16).astype(jnp.float32)


def rows_of(seed=0, rank=3, dim=2000):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, rank)))[0].T


WRONG_MAPS = {
    "twice the same row": lambda: hm.LowRank(jnp.ones(3), jnp.full((2, 3), 3**-0.5), jnp.full(2, 4.0)),
    "a row that is not normalised": lambda: hm.LowRank(jnp.ones(3), 2 * jnp.eye(1, 3), jnp.full(1, 4.0)),
    "a row of NaN": lambda: hm.LowRank(jnp.ones(3), jnp.full((1, 3), jnp.nan), jnp.full(1, 4.0)),
    "zero scales": lambda: hm.Diagonal(jnp.zeros(3)),
    "scales that are NaN": lambda: hm.Diagonal(jnp.full(3, jnp.nan)),
    "negative scales": lambda: hm.Householder(hm.reflections.compact(jnp.eye(1, 3)), -jnp.ones(3)),
    "a matrix of zeros": lambda: hm.Dense(jnp.zeros((3, 3))),
    "a matrix that is NaN": lambda: hm.Dense(jnp.full((3, 3), jnp.nan)),
    "a matrix that is not triangular": lambda: hm.Dense(jnp.ones((3, 3)) + jnp.eye(3)),
    "reflections of zeros": lambda: hm.reflections.compact(jnp.zeros((1, 3))),
    "reflections of the same row": lambda: hm.reflections.sequential(jnp.full((2, 3), 3**-0.5)),
    "reflections put in by hand": lambda: hm.Householder(
        hm.reflections.compact(jnp.eye(2, 3))._replace(eigenvectors=jnp.ones((2, 3))), jnp.ones(3)
    ),
}
ENTRANCES = {
    "as_preconditioner": hm.as_preconditioner,
    "to_metric": hm.to_metric,
    "fixed": hm.fixed,
    "mala": lambda p: hm.mala(lambda x: 0.0, 0.1, p),
    "hmc": lambda p: hm.hmc(lambda x: 0.0, 0.1, p),
}


@pytest.mark.parametrize("enter", ENTRANCES.values(), ids=ENTRANCES)
@pytest.mark.parametrize("make", WRONG_MAPS.values(), ids=WRONG_MAPS)
def test_maps_that_are_not_what_they_claim_are_refused(make, enter):
    """Every function that takes a map raises, before anything is sampled."""
    with pytest.raises(ValueError, match="orthonormal rows|positive and finite scales|lower triangular and have"):
        enter(make())


def test_rows_of_half_precision_are_made_orthonormal():
    """They stay near the rows before rounding, and `solve` inverts `apply`."""
    rows, eigenvalues = half_precision(rows_of()), jnp.array([1e6, 1e-6, 4.0])
    assert 1e-4 < np.abs(rows @ rows.T - np.eye(3)).max() < 0.1
    checked = hm.as_preconditioner(hm.LowRank(jnp.ones(2000), rows, eigenvalues))
    np.testing.assert_allclose(checked.eigenvectors @ checked.eigenvectors.T, np.eye(3), atol=1e-5)
    assert np.all(np.sum(checked.eigenvectors * rows_of(), axis=1) > 0.99)
    x = jnp.linspace(-1, 1, 2000)
    np.testing.assert_allclose(checked.apply(checked.solve(x)), x, atol=1e-3)  # 1000 units of rounding
    rotation = hm.reflections.compact(rows)
    np.testing.assert_allclose(rotation.apply(rotation.apply_transpose(x)), x, atol=1e-4)


def test_what_is_orthonormal_to_rounding_stays_as_it_is():
    """Rows that are not used may be zero, as those of a learner at its start are."""
    rows = jnp.asarray(np.r_[rows_of(), np.zeros((2, 2000))], jnp.float32)
    preconditioner = hm.LowRank(jnp.ones(2000), rows, jnp.array([9.0, 0.1, 4.0, 1.0, 7.0]))
    assert hm.as_preconditioner(preconditioner) is preconditioner


def test_maps_from_a_file():
    """A map whose arrays are NumPy's, as a file gives them."""
    rotation = hm.reflections.compact(jnp.asarray(rows_of(dim=8), jnp.float32))
    preconditioner = hm.Householder(rotation, jnp.linspace(0.5, 2, 8))
    loaded = jax.tree.map(np.asarray, preconditioner)
    x = jnp.linspace(-1, 1, 8)
    for one, other in (
        (loaded.apply(x), preconditioner.apply(x)),
        (loaded.solve(x), preconditioner.solve(x)),
        (hm.to_metric(loaded).scale(x, x, inv=True, trans=False), preconditioner.apply(x)),
        (hm.fixed(loaded).init(x[None]).apply_transpose(x), preconditioner.apply_transpose(x)),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_compress_drops_what_does_nothing():
    rows = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (9, 5)))[0].T
    full = hm.LowRank(jnp.arange(1.0, 10.0), rows, jnp.array([1.0, 4.0, 1.0, 0.25, 1.0]))
    x = jax.random.normal(jax.random.key(1), (9,))
    for multiple, rank in ((1, 2), (2, 2), (3, 3), (4, 4), (8, 5)):
        small = full.compress(multiple)
        assert small.eigenvectors.shape == (rank, 9) and small.effective_rank() == full.effective_rank() == 2
        for name in ("apply", "apply_transpose", "solve", "solve_transpose"):
            np.testing.assert_array_equal(getattr(small, name)(x), getattr(full, name)(x))
    assert jax.jit(lambda full: full.compress())(full).eigenvectors.shape == (5, 9)
    identity = full._replace(eigenvalues=jnp.ones(5)).compress()
    assert identity.eigenvectors.shape == (1, 9)
    np.testing.assert_array_equal(identity.apply(x), full.scales * x)
    with pytest.raises(ValueError, match="multiple must be at least 1"):
        full.compress(0)


@pytest.mark.parametrize("form", [hm.reflections.compact, hm.reflections.sequential])
def test_compress_keeps_the_eigenvectors_that_stand_out(form):
    """Of five eigenvectors two stand out; with the rest alike the map is the same."""
    rows = jnp.linalg.qr(jax.random.normal(jax.random.key(0), (9, 5)))[0].T
    scales = jnp.ones(9).at[jnp.array([1, 3])].set(jnp.array([10.0, 3.0]))
    full = hm.Householder(form(rows), scales)
    assert full.effective_rank() == 2 and full.effective_rank(20.0) == 1
    small = full.compress()
    assert type(small.rotation) is type(full.rotation) and len(small.rotation.signs) == 2
    covariances = [root @ root.T for root in (small.to_dense(), full.to_dense())]
    np.testing.assert_allclose(*covariances, rtol=1e-5, atol=1e-4)
    assert len(full._replace(scales=jnp.ones(9)).compress().rotation.signs) == 1
    assert len(jax.jit(lambda full: full.compress())(full).rotation.signs) == 5
    assert int(jax.jit(lambda full: full.effective_rank())(full)) == 2
