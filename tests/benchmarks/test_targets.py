import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import targets

pytestmark = pytest.mark.usefixtures("x64")
BUILDERS = {
    "first": lambda dim, rng: targets.gaussian_first(dim, rng, num_significant=3),
    "second": lambda dim, rng: targets.gaussian_second(dim, rng, rank=4),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_gaussian_is_consistent(build):
    """The leading directions are eigenvectors of the covariance, in order, and the start draws from the target."""
    target = build(12, np.random.default_rng(0))
    covariance = np.linalg.inv(-np.asarray(jax.hessian(target.logdensity)(target.mean)))
    np.testing.assert_allclose(covariance @ target.directions.T, target.directions.T * target.variances, atol=1e-9)
    np.testing.assert_allclose(np.linalg.eigvalsh(covariance)[::-1][:3], target.variances, rtol=1e-9)
    np.testing.assert_allclose(jax.grad(target.logdensity)(target.mean), 0, atol=1e-9)
    draws = target.leading(target.start(np.random.default_rng(1), 20_000) - target.mean)
    np.testing.assert_allclose(draws.var(axis=0), target.variances, rtol=0.05)  # standard error 0.01
    np.testing.assert_allclose(draws.mean(axis=0) / np.sqrt(target.variances), 0, atol=0.04)


def test_first_gaussian_is_the_papers():
    target = targets.gaussian_first(20, np.random.default_rng(0), num_significant=1)
    np.testing.assert_allclose(np.abs(target.directions[0]), 20**-0.5)
    np.testing.assert_allclose(target.variances, 100, atol=0.5)
    np.testing.assert_allclose(np.linalg.eigvalsh(target.precision)[1:], 10)


def test_logistic_variances_are_exact():
    """Against a grid over both coefficients."""
    target = targets.logistic(2, np.random.default_rng(0), num_narrow=1)
    spread = 6 * np.sqrt(target.variances[0])
    other = np.array(
        [-target.directions[0, 1], target.directions[0, 0]]
    )  # narrow: its singular value is 32 times larger
    along, across = np.meshgrid(np.linspace(-2 * spread, 2 * spread, 1201), np.linspace(-spread, spread, 1201) / 12)
    points = along[..., None] * target.directions[0] + across[..., None] * other
    logdensity = np.asarray(jax.vmap(jax.vmap(target.logdensity))(jnp.asarray(points)))
    weights = np.exp(logdensity - logdensity.max())
    weights /= weights.sum()
    variances = [np.sum(weights * z**2) - np.sum(weights * z) ** 2 for z in (along, across)]
    np.testing.assert_allclose(variances[0], target.variances[0], rtol=0.01)
    assert variances[1] < variances[0] / 500  # the ratio of eigenvalues of X^T X is 1000
    direction = target.directions[0]
    np.testing.assert_allclose(target.covariance() @ direction, target.variances[0] * direction, rtol=1e-6)


def test_logistic_starts_at_the_mode():
    target = targets.logistic(30, np.random.default_rng(0))
    np.testing.assert_allclose(jax.grad(target.logdensity)(target.start(None, 2)[1]), 0, atol=1e-8)


def test_xy_is_the_papers_potential():
    target = targets.xy(5, np.random.default_rng(0))
    x = np.random.default_rng(1).normal(size=5)
    np.testing.assert_allclose(target.logdensity(x), 100 / (2 * 5) * np.cos(x[:, None] - x).sum(), rtol=1e-12)


def test_xy_leading_is_the_common_rotation():
    """Uniform rotations of one state have variance 1/2 in both coordinates; the state itself does not matter."""
    target = targets.xy(5, np.random.default_rng(0))
    state = np.pi / 4 + 0.1 * np.random.default_rng(1).normal(size=5)
    rotations = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    np.testing.assert_allclose(target.leading(state + rotations[:, None]).var(axis=0), target.variances, rtol=1e-12)
