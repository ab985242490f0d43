"""Each scheme's update against NumPy, its map against the covariance of independent draws, and its input checks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import equations, num_products_with

import householder_mcmc as hm
from benchmarks.targets import gaussian
from householder_mcmc.learners.moments import centre

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
def test_eigen_update_is_that_of_algorithm_1(tail, dtype):
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


@pytest.mark.parametrize("gains", [hm.DEFAULT_GAINS, hm.LATEST_GAINS], ids=["default", "latest"])
def test_a_scan_over_reflections_makes_the_same_draws(gains, x64):
    """30 adaptive steps, in which the map is rebuilt, repeat those with the closed form of Q on the same keys."""

    def run_with(form):
        scheme = hm.eigen(RANK, gains=gains, refresh_every=3, reflections=form)
        sampler = hm.adaptive_mala(lambda x: -0.5 * jnp.sum(x**2 / jnp.arange(1.0, DIM + 1)), scheme, NUM_CHAINS)
        state, positions = sampler.init(draws(1, jnp.float64)[0]), []
        for seed in range(30):
            state, _ = sampler.step(jax.random.key(seed), state)
            positions.append(state.position)
        return jnp.stack(positions), scheme.preconditioner(state.scheme)

    (compact, _), (sequential, preconditioner) = map(run_with, ("compact", "sequential"))
    assert isinstance(preconditioner.rotation, hm.reflections.SequentialReflections)
    assert not np.allclose(preconditioner.rotation.to_dense()[:RANK, :RANK], np.eye(RANK), atol=0.1)  # it has turned
    np.testing.assert_allclose(sequential, compact, rtol=0, atol=1e-9)


@pytest.mark.parametrize("tail, refresh_every", [("free", 2), ("isotropic", 1), ("unit", 3)])
@pytest.mark.parametrize("gains", [hm.DEFAULT_GAINS, hm.LATEST_GAINS], ids=["default", "latest"])
def test_relative_eigen_update(gains, tail, refresh_every, x64):
    """The recursion at the head of `learners/eigen.py`, in NumPy.

    The increment is divided by variances along Oja's own rows. Averages are means over chains, not sums.
    """
    positions = draws(8, jnp.float64)
    scheme = hm.eigen(RANK, tail, gains, refresh_every=refresh_every)
    num = {"free": DIM, "isotropic": RANK + 1, "unit": RANK}[tail]
    state, update = scheme.init(positions[0]), jax.jit(scheme.update)
    mean, v, weight = np.asarray(positions[0]).mean(0), np.eye(RANK, DIM), 1.0
    average, basis, variances, learnt = v, v, np.ones(num), np.ones(RANK)
    for t, x in enumerate(np.asarray(positions), start=1):
        gain, ojas = 3 / (t + 3), (t + 1) ** -0.7
        mean = mean + gain * (x.mean(0) - mean)
        dx = x - mean
        projections = dx @ v.T  # (NUM_CHAINS, RANK)
        known = learnt - (weight - weight * min(100 * weight, 1))  # the start, 1, is taken out below a weight of 1%
        relative = (projections.T @ dx / NUM_CHAINS) / np.maximum(known, (projections**2).mean(0))[:, None] - v
        q, r = np.linalg.qr((v + ojas * relative).T)
        v = (q * np.sign(np.diag(r))).T
        learnt = learnt + gain * (((dx @ v.T) ** 2).mean(0) - learnt)
        average = average + gain * (v - average)
        if t % refresh_every == 0:
            q, r = np.linalg.qr((v if gains.average is None else average).T)
            basis = (q * np.sign(np.diag(r))).T
        rotation = np.asarray(hm.reflections.sequential(jnp.asarray(basis)).to_dense())
        squares = ((dx @ rotation) ** 2).mean(0)
        if tail == "isotropic":
            squares[RANK:] = squares[RANK:].mean()
        variances = variances + gain * (squares[:num] - variances)
        weight = weight * (1 - gain)
        state = update(state, jnp.asarray(x))
        of_oja = state.variances[:RANK] if state.latest is None else state.latest.variances
        np.testing.assert_allclose(of_oja, learnt, rtol=1e-9)
        np.testing.assert_allclose(state.variances, variances, rtol=1e-9)
        np.testing.assert_allclose(state.mean, mean, rtol=1e-9)


@pytest.mark.parametrize("gains", [hm.DEFAULT_GAINS, hm.LATEST_GAINS], ids=["default", "latest"])
def test_rows_are_orthonormalised_in_full_at_every_pth_update(gains):
    """With p = 4, rows that are off by a thousandth, as rounding may leave them, are mended at updates 4, 8, ...

    Other updates take them for orthonormal and carry the error on.
    """
    scheme = hm.eigen(RANK, "unit", gains, orthonormalize_every=4)
    state, x, update = scheme.init(draws()[0]), draws()[1], jax.jit(scheme.update)
    off = jnp.eye(RANK, DIM).at[1, 0].set(1e-3)

    def rows(state):
        return state.basis if state.latest is None else state.latest.eigenvectors

    for count in range(9):
        latest = None if state.latest is None else state.latest._replace(eigenvectors=off)
        basis = off if latest is None else state.basis
        new = rows(update(state._replace(count=jnp.asarray(count), basis=basis, latest=latest), x))
        error = jnp.abs(new @ new.T - jnp.eye(RANK)).max()
        assert error < 1e-6 if count in (3, 7) else error > 1e-5


@pytest.mark.parametrize("refresh_every", [1, 2])
def test_averaged_map_is_built_on_the_running_mean_of_ojas_eigenvectors(refresh_every):
    """With raw increments Oja's eigenvectors do not depend on the map, so a run without average gives the reference."""
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
    """The three readings are for the projections, the new rows and the tail; one more if eigenvectors are averaged.

    Branches of large and of due steps are not counted.
    """
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
    state, changes, update = scheme.init(draws()[0]), [], jax.jit(scheme.update)

    def eigenvectors(state):
        preconditioner = scheme.preconditioner(state)
        return getattr(preconditioner, "eigenvectors", None) if tail != "free" else preconditioner.rotation.eigenvectors

    for x in draws(9):
        new = update(state, x)
        changes.append(bool(jnp.any(eigenvectors(new) != eigenvectors(state))))
        np.testing.assert_allclose(eigenvectors(new) @ eigenvectors(new).T, np.eye(RANK), atol=1e-5)
        state = new
    assert changes == [(t % refresh_every) == 0 for t in range(1, 10)]


def test_full_rank_isotropic_tail():
    """At rank d there is no tail, whose variance would be divided by zero directions.

    12,000 independent draws, of which a third count, have a standard error of 0.011; the tolerance of 0.1 is nine.
    """
    rng, deviations = np.random.default_rng(0), np.linspace(3, 1, DIM)
    root = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0] * deviations
    positions = jnp.asarray(rng.normal(size=(4000, NUM_CHAINS, DIM)) @ root.T, jnp.float32)
    scheme = hm.eigen(DIM, "isotropic")
    learnt = np.asarray(scheme.preconditioner(run(scheme, positions)).to_dense(), float)
    widths = np.linalg.svd(np.linalg.solve(root, learnt), compute_uv=False)
    np.testing.assert_allclose(widths, 1, atol=0.1)


def test_differences_are_cut_where_fourth_powers_would_overflow(dtype):
    """Differences are clipped at 2.1e9 in float32 and 5.8e76 in float64. Smaller ones are unchanged."""
    limit = float(np.finfo(dtype).max) ** 0.25 / 2
    mean = jnp.asarray([1.0, 0.0, 0.0, 2.0], dtype)
    far = jnp.asarray([[4.0, 1e4 * limit, -1e4 * limit, 0.9 * limit], [1.0, np.inf, -np.inf, 2.0]], dtype)
    centred = centre(far, mean)
    assert centred.dtype == dtype
    np.testing.assert_allclose(centred, [[3, limit, -limit, 0.9 * limit], [0, limit, -limit, 0]], rtol=1e-5)
    assert jnp.all(jnp.isfinite(centred**4))


@pytest.mark.parametrize("make", [hm.diagonal, hm.dense, lambda: hm.eigen(RANK), lambda: hm.eigen(RANK, "isotropic")])
def test_a_draw_from_far_away_leaves_a_finite_map(make):
    """A float32 draw is 1e25 away in one coordinate, where squares overflow."""
    scheme = make()
    positions = draws(4).at[2, 1, 0].set(1e25)
    assert jnp.all(jnp.isfinite(scheme.preconditioner(run(scheme, positions)).to_dense()))


def test_none_and_fixed_keep_their_map():
    positions = draws()
    np.testing.assert_array_equal(covariance(hm.none(), run(hm.none(), positions)), np.eye(DIM))
    scheme = hm.fixed(jnp.arange(1.0, DIM + 1))
    np.testing.assert_allclose(covariance(scheme, run(scheme, positions)), np.diag(np.arange(1.0, DIM + 1)), rtol=1e-6)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: hm.eigen(0), "rank must be at least 1, got 0"),
        (lambda: hm.eigen(2, "flat"), "tail must be one of"),
        (lambda: hm.eigen(2, ["free"]), r"tail must be one of .*, got \['free'\]"),
        (lambda: hm.eigen(2, reflections="product"), "reflections must be one of .*, got 'product'"),
        (lambda: hm.eigen(2, "unit", reflections="sequential"), "'sequential' needs the tail 'free', got 'unit'"),
        (lambda: hm.eigen(2, refresh_every=0), "refresh_every must be at least 1, got 0"),
        (lambda: hm.eigen(2, orthonormalize_every=0), "orthonormalize_every must be at least 1, got 0"),
        (lambda: hm.eigen(DIM + 1).init(draws()[0]), "rank must be at most d = 6, got 7"),
        (lambda: hm.fixed(jnp.ones(DIM + 1)).init(draws()[0]), "does not act on positions with d = 6"),
        (lambda: hm.fixed(hm.Dense(jnp.eye(7))).init(draws()[0]), "does not act on positions with d = 6"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: hm.eigen(2.5), "rank must be an integer, got 2.5"),
        (lambda: hm.eigen(2, refresh_every=1.5), "refresh_every must be an integer, got 1.5"),
        (lambda: hm.eigen(2, orthonormalize_every=None), "orthonormalize_every must be an integer, got None"),
        (lambda: hm.two_ended(2.5), "rank must be an integer, got 2.5"),
        (lambda: hm.two_ended(2, 2.5), "block_size must be an integer, got 2.5"),
        (lambda: hm.eigen(2, gains=(1, 2)), r"gains must be Gains, such as hm.DEFAULT_GAINS, got \(1, 2\)"),
        (lambda: hm.diagonal((1, 2)), r"gains must be Gains, such as hm.DEFAULT_GAINS, got \(1, 2\)"),
        (lambda: hm.dense([1, 2]), r"gains must be Gains, such as hm.DEFAULT_GAINS, got \[1, 2\]"),
        (lambda: hm.dense(hm.Gains(0.1, 0.1)), "gains.moments must be a schedule, such as .*, got 0.1"),
    ],
)
def test_wrong_types(make, message):
    with pytest.raises(TypeError, match=message):
        make()
