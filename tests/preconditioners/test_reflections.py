"""Q against the dense product of the paper's reflections, with our signs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm

BUILDERS = {"sequential": hm.reflections.sequential, "compact": hm.reflections.compact}
SIZES = [(1, 1), (2, 1), (3, 2), (5, 5), (30, 4), (200, 1), (200, 32), (200, 200)]
STARTS = ["random", "axes", "permuted", "negative"] + [
    f"near {distance}" for distance in (1e-1, 1e-2, 1e-4, 1e-6, 1e-8)
]


@pytest.fixture(params=BUILDERS)
def build(request):
    return BUILDERS[request.param]


def orthonormal_rows(kind, rank, dim, seed=0):
    rng = np.random.default_rng(seed)
    axes = np.eye(dim)[:rank]
    rows = {
        "random": lambda: rng.normal(size=(rank, dim)),
        "axes": lambda: axes,
        "permuted": lambda: np.eye(dim)[rng.permutation(dim)[:rank]],
        "negative": lambda: -axes,
    }.get(kind, lambda: axes + float(kind.removeprefix("near ")) * rng.normal(size=(rank, dim)) / np.sqrt(dim))()
    q, r = np.linalg.qr(rows.T)
    return q.T * np.sign(np.diag(r))[:, None]


def dense_product(eigenvectors):
    """H_m ... H_1 diag(signs, 1) in float64, from Definition 3; signs make every normal long."""
    rank, dim = eigenvectors.shape
    q, signs = np.eye(dim), np.ones(dim)
    for k, v in enumerate(eigenvectors):
        signs[k] = -1 if q[:, k] @ v > 1e-12 else 1
        u = q[:, k] - signs[k] * v
        q = q - 2 * np.outer(u, u @ q) / (u @ u)
    return q * signs


def tolerance(dtype, rank):
    # each of the `rank` reflections rounds a few times; the elimination amplifies by a small power of rank
    return 20 * (1 + rank) ** 0.5 * jnp.finfo(dtype).eps


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("dim, rank", SIZES)
def test_equals_dense_product(build, kind, dim, rank, dtype):
    eigenvectors = orthonormal_rows(kind, rank, dim)
    q = np.asarray(build(jnp.asarray(eigenvectors, dtype)).to_dense())
    assert q.dtype == dtype
    np.testing.assert_allclose(q, dense_product(eigenvectors), rtol=0, atol=tolerance(dtype, rank))
    np.testing.assert_allclose(q[:, :rank].T, eigenvectors, rtol=0, atol=tolerance(dtype, rank))
    np.testing.assert_allclose(q.T @ q, np.eye(dim), rtol=0, atol=tolerance(dtype, rank))


def test_products_agree_with_dense_under_transformations(build, transform, dtype):
    rotation = build(jnp.asarray(orthonormal_rows("random", 4, 30), dtype))
    dense, x = np.asarray(rotation.to_dense()), jnp.asarray(np.random.default_rng(1).normal(size=30), dtype)
    tol = 50 * jnp.finfo(dtype).eps
    np.testing.assert_allclose(transform(lambda q, y: q.apply(y))(rotation, x), dense @ x, atol=tol)
    np.testing.assert_allclose(transform(lambda q, y: q.apply_transpose(y))(rotation, x), dense.T @ x, atol=tol)


def test_gradients_of_both_forms_agree(x64):
    """The gradients agree along the manifold of orthonormal rows, on which both forms are the same function."""
    rng = np.random.default_rng(2)
    raw, x, weights = rng.normal(size=(3, 12)), rng.normal(size=12), rng.normal(size=12)

    def loss(raw, build):
        return jnp.vdot(weights, build(hm.online_pca.orthonormalize(raw)).apply(x))

    gradients = [jax.grad(loss)(jnp.asarray(raw), build) for build in BUILDERS.values()]
    np.testing.assert_allclose(*gradients, rtol=1e-10, atol=1e-12)
    step = 1e-6 * rng.normal(size=raw.shape)
    difference = loss(raw + step, BUILDERS["compact"]) - loss(raw - step, BUILDERS["compact"])
    np.testing.assert_allclose(difference / 2, np.vdot(gradients[0], step), rtol=1e-6)


def test_builds_under_vmap(build):
    batch = jnp.stack([jnp.asarray(orthonormal_rows("random", 3, 9, seed), jnp.float32) for seed in range(4)])
    together = jax.vmap(lambda v: build(v).to_dense())(batch)
    np.testing.assert_allclose(together, jnp.stack([build(v).to_dense() for v in batch]), atol=1e-6)


@pytest.mark.parametrize("shape", [(3,), (0, 3), (4, 3), (1, 2, 3)])
def test_rejects_wrong_shapes(build, shape):
    with pytest.raises(ValueError, match="1 <= rank <= d"):
        build(jnp.zeros(shape))


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 3)])
def test_products_reject_other_shapes(build, shape):
    rotation = build(jnp.eye(2, 3))
    for product in (rotation.apply, rotation.apply_transpose):
        with pytest.raises(ValueError, match=r"expected a vector of shape \(3,\)"):
            product(jnp.ones(shape))


def test_rejects_integers(build):
    with pytest.raises(ValueError, match="floating point"):
        build(jnp.eye(2, 3, dtype=jnp.int32))
