"""Each scheme's update against NumPy, its map against the covariance of independent draws, and its input checks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import equations, num_products_with

import householder_mcmc as hm
from benchmarks.targets import gaussian

DIM, RANK, NUM_CHAINS = 6, 2, 3
TAILS = ["free", "isotropic", "unit"]
CONSTANT = hm.Gains(moments=lambda count: 0.3, oja=lambda count: 0.2, relative=False)


def draws(num=4, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(num, NUM_CHAINS, DIM)) * np.linspace(3, 1, DIM) + 1, dtype)


def run(scheme, positions):
    state = scheme.init(positions[0])
    return jax.lax.scan(lambda state, x: (scheme.update(state, x), None), state, positions)[0]


def covariance(scheme, state):
    root = scheme.preconditioner(state).to_dense()
    return root @ root.T


def test_diagonal_and_dense_updates(dtype):
    """The mean moves first; the second moment is about the new mean, averaged over chains."""
    positions = draws(dtype=dtype)
    mean, second = np.asarray(positions[0], np.float64).mean(0), np.eye(DIM)
    for x in np.asarray(positions, np.float64):
        mean = mean + 0.3 * (x.mean(0) - mean)
        second = second + 0.3 * ((x - mean).T @ (x - mean) / NUM_CHAINS - second)
    tol = 100 * jnp.finfo(dtype).eps * np.trace(second)
    dense, diagonal = hm.dense(CONSTANT), hm.diagonal(CONSTANT)
    np.testing.assert_allclose(covariance(dense, run(dense, positions)), second, rtol=0, atol=tol)
    expected = np.diag(np.diag(second))
    np.testing.assert_allclose(covariance(diagonal, run(diagonal, positions)), expected, rtol=0, atol=tol)


@pytest.mark.parametrize("tail", TAILS)
def test_eigen_update_is_algorithm_2(tail, dtype):
    """Mean, eigenvectors, then variances along the columns of the new Q."""
    positions = draws(dtype=dtype)
    scheme = hm.eigen(RANK, tail, CONSTANT)
    mean, v, variances = np.asarray(positions[0], np.float64).mean(0), np.eye(RANK, DIM), np.ones(DIM)
    for x in np.asarray(positions, np.float64):
        mean = mean + 0.3 * (x.mean(0) - mean)
        dx = x - mean
        q, r = np.linalg.qr((v + 0.2 * v @ dx.T @ dx / NUM_CHAINS).T)
        v = (q * np.sign(np.diag(r))).T
        rotation = np.asarray(hm.reflections.sequential(jnp.asarray(v, dtype)).to_dense(), np.float64)
        new = ((dx @ rotation) ** 2).mean(0)
        if tail == "isotropic":
            new[RANK:] = new[RANK:].mean()
        variances = variances + 0.3 * (new - variances)
    if tail == "unit":
        variances[RANK:] = 1
    expected = (rotation * variances) @ rotation.T
    tol = 200 * jnp.finfo(dtype).eps * variances.max()
    np.testing.assert_allclose(covariance(scheme, run(scheme, positions)), expected, rtol=0, atol=tol)


@pytest.mark.parametrize("refresh_every", [1, 2])
def test_averaged_map_is_built_on_the_running_mean_of_ojas_eigenvectors(refresh_every):
    """With a raw gain Oja's eigenvectors do not depend on the map, so those of `eigen` without average serve."""
    positions = draws(4)
    latest = hm.eigen(RANK, gains=CONSTANT)
    averaged = hm.eigen(RANK, gains=CONSTANT._replace(average=lambda count: 0.25), refresh_every=refresh_every)
    state, averaged_state, mean = latest.init(positions[0]), averaged.init(positions[0]), np.eye(RANK, DIM)
    for x in positions:
        state, averaged_state = latest.update(state, x), averaged.update(averaged_state, x)
        mean = mean + 0.25 * (np.asarray(state.basis.eigenvectors) - mean)
    q, r = np.linalg.qr(mean.T)
    expected = (q * np.sign(np.diag(r))).T
    np.testing.assert_allclose(averaged.preconditioner(averaged_state).rotation.eigenvectors, expected, atol=1e-5)


@pytest.mark.parametrize("gains, more", [(hm.LATEST_GAINS, 0), (hm.DEFAULT_GAINS, 1)], ids=["latest", "default"])
@pytest.mark.parametrize("tail, num_reads", [("free", 3), ("isotropic", 3), ("unit", 2)])
def test_update_reads_the_eigenvectors_three_times_and_has_no_qr(tail, num_reads, gains, more):
    """But for the branches of large and of due steps: their projections, the new rows, the tail. Averaged eigenvectors
    have projections of their own."""
    scheme = hm.eigen(RANK, tail, gains)
    positions = draws()[0][:1]
    program = jax.make_jaxpr(scheme.update)(scheme.init(positions), positions)
    assert num_products_with((RANK, DIM), program.jaxpr) == num_reads + more
    always = {equation.primitive.name for equation in equations(program.jaxpr, in_branches=False)}
    assert not always & {"qr", "geqrf", "householder_product", "eigh", "svd"}


def test_eigen_identity_is_the_unit_tail():
    positions = draws()
    unit, identity = hm.eigen(RANK, "unit", CONSTANT), hm.eigen_identity(RANK, CONSTANT)
    np.testing.assert_array_equal(
        covariance(unit, run(unit, positions)), covariance(identity, run(identity, positions))
    )


@pytest.mark.parametrize("gains", [hm.DEFAULT_GAINS, hm.LATEST_GAINS], ids=["default", "latest"])
@pytest.mark.parametrize("tail", TAILS)
def test_eigen_learns_a_spiked_covariance_from_independent_draws(tail, gains):
    """3 chains of 4000 independent draws: whitened eigenvalues within 35% of 1. The bound is about five
    standard errors of a variance learnt with memory 4000/3 updates of 3 draws, plus the eigenvectors' error."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    target = gaussian(rng.normal(size=20), basis, np.r_[40.0, 20.0, np.ones(18)])
    positions = jnp.asarray(target.start(rng, 12000).reshape(4000, 3, 20), jnp.float32)
    scheme = hm.eigen(2, tail, gains)
    root = np.asarray(scheme.preconditioner(run(scheme, positions)).to_dense(), np.float64)
    whitened = 1 / np.linalg.eigvalsh(root.T @ target.precision @ root)  # of the covariance
    assert 0.65 < whitened.min() and whitened.max() < 1.35


@pytest.mark.parametrize("refresh_every, orthonormalize_every", [(1, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize("tail", TAILS)
def test_map_changes_only_when_refreshed_and_is_orthonormal(tail, refresh_every, orthonormalize_every):
    scheme = hm.eigen(RANK, tail, orthonormalize_every=orthonormalize_every, refresh_every=refresh_every)
    state, changes = scheme.init(draws()[0]), []

    def eigenvectors(state):
        preconditioner = scheme.preconditioner(state)
        return getattr(preconditioner, "eigenvectors", None) if tail != "free" else preconditioner.rotation.eigenvectors

    for x in draws(9):
        new = scheme.update(state, x)
        changes.append(bool(jnp.any(eigenvectors(new) != eigenvectors(state))))
        np.testing.assert_allclose(eigenvectors(new) @ eigenvectors(new).T, np.eye(RANK), atol=1e-5)
        state = new
    assert changes == [(t % refresh_every) == 0 for t in range(1, 10)]


def test_full_rank_isotropic_tail():
    scheme = hm.eigen(DIM, "isotropic")
    assert np.all(np.linalg.eigvalsh(covariance(scheme, run(scheme, draws(50)))) > 0)


def test_none_and_fixed_keep_their_map():
    positions = draws()
    np.testing.assert_array_equal(covariance(hm.none(), run(hm.none(), positions)), np.eye(DIM))
    scheme = hm.fixed(jnp.arange(1.0, DIM + 1))
    np.testing.assert_allclose(covariance(scheme, run(scheme, positions)), np.diag(np.arange(1.0, DIM + 1)), rtol=1e-6)


def test_gains():
    """Algorithm 2 counts steps from 1; the authors' program adds 1 for all gains but Oja's."""
    gains = hm.AUTHORS_GAINS
    np.testing.assert_allclose([gains.moments(0), gains.moments(9)], [2**-0.7, 11**-0.7])
    np.testing.assert_allclose([gains.oja(0), gains.oja(9)], [1, 10**-0.7])
    np.testing.assert_allclose([hm.growing_memory(3.0)(0), hm.growing_memory(3.0)(6)], [3 / 4, 3 / 10])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: hm.eigen(0), "rank must be at least 1, got 0"),
        (lambda: hm.eigen(2, "flat"), "tail must be one of"),
        (lambda: hm.eigen(2, refresh_every=0), "refresh_every must be a positive integer, got 0"),
        (lambda: hm.eigen(2, orthonormalize_every=0), "orthonormalize_every must be a positive integer, got 0"),
        (lambda: hm.eigen(DIM + 1).init(draws()[0]), "rank must be at most d = 6, got 7"),
        (lambda: hm.fixed(jnp.ones(DIM + 1)).init(draws()[0]), "does not act on positions with d = 6"),
        (lambda: hm.fixed(hm.Dense(jnp.ones((7, 7)))).init(draws()[0]), "does not act on positions with d = 6"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
