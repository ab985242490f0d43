"""Propositions 1 and 2 of Hird & Livingstone (2026), on random targets: the maps against dense linear algebra.

Both are of the ideal map L = Q diag(lambda_1^(1/2), ..., lambda_m^(1/2), 1, ..., 1), where the first m columns of Q are
the eigenvectors of the target's covariance with the largest eigenvalues lambda_1 >= ... >= lambda_m.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm

DIM = 12
FORMS = [hm.reflections.compact, hm.reflections.sequential]
INSTANCES = pytest.mark.parametrize("seed, rank", [(0, 1), (1, 3), (2, 5)])


def random_rotation(rng):
    return np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]


def ideal_map(form, eigenvalues, eigenvectors, rank):
    """The map L. eigenvalues (d,): in descending order. eigenvectors (d, d): as columns."""
    scales = np.r_[np.sqrt(eigenvalues[:rank]), np.ones(DIM - rank)]
    return hm.Householder(form(jnp.asarray(eigenvectors[:, :rank].T)), jnp.asarray(scales))


def extremes(potential, apply, x):
    """The smallest and the largest eigenvalue of L^T (Hessian at x) L, by the Hessian of z -> U(x + L z) at 0."""
    hessian = jax.hessian(lambda z: potential(x + apply(z)))(jnp.zeros(DIM))
    eigenvalues = np.linalg.eigvalsh(np.asarray(hessian))
    return eigenvalues[0], eigenvalues[-1]


def bound(eigenvalues, rank):
    """max(lambda_{m+1}, 1) / min(lambda_d, 1)."""
    return max(eigenvalues[rank], 1) / min(eigenvalues[-1], 1)


@pytest.mark.parametrize("form", FORMS)
@INSTANCES
def test_proposition_1_the_spectrum_after_preconditioning(x64, form, seed, rank):
    """The covariance L^-1 Sigma L^-T has the eigenvalues 1 (m times), lambda_{m+1}, ..., lambda_d."""
    rng = np.random.default_rng(seed)
    eigenvalues, eigenvectors = np.sort(rng.lognormal(sigma=2, size=DIM))[::-1], random_rotation(rng)
    covariance = (eigenvectors * eigenvalues) @ eigenvectors.T
    solve = jax.vmap(ideal_map(form, eigenvalues, eigenvectors, rank).solve)
    preconditioned = solve(solve(jnp.asarray(covariance)).T)  # L^-1 on the rows, then on the columns
    expected = np.sort(np.r_[np.ones(rank), eigenvalues[rank:]])
    np.testing.assert_allclose(np.linalg.eigvalsh(np.asarray(preconditioned)), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@INSTANCES
def test_proposition_2_is_an_equality_on_a_gaussian(x64, form, seed, rank):
    """With the whole covariance the condition number is 1, and with L it is the upper bound."""
    rng = np.random.default_rng(seed)
    eigenvalues, eigenvectors = np.sort(rng.lognormal(sigma=2, size=DIM))[::-1], random_rotation(rng)
    precision = jnp.asarray((eigenvectors / eigenvalues) @ eigenvectors.T)
    root = jnp.asarray(eigenvectors * np.sqrt(eigenvalues))

    def potential(x):
        return x @ precision @ x / 2

    low, high = extremes(potential, ideal_map(form, eigenvalues, eigenvectors, rank).apply, jnp.zeros(DIM))
    np.testing.assert_allclose(high / low, bound(eigenvalues, rank), rtol=1e-8)
    np.testing.assert_allclose(extremes(potential, lambda z: root @ z, jnp.zeros(DIM)), 1, rtol=1e-8)


@pytest.mark.parametrize("form", FORMS)
@INSTANCES
def test_proposition_2_bounds_the_condition_number(x64, form, seed, rank):
    """Of U(x) = sum_i v_i^2 / 2 + a_i log cosh(v_i), v_i = (R^T x)_i / s_i, R a rotation: m directions are wide.

    The second derivative along v_i is 1 + a_i / cosh(v_i)^2: largest at 0 and smallest far away for all i together, so
    the extremes of the Hessian are there. The covariance is R diag(s_i^2 variance of v_i) R^T, by quadrature.
    """
    rng = np.random.default_rng(seed)
    widths, heights, rotation = rng.lognormal(sigma=0.3, size=DIM), rng.lognormal(size=DIM), random_rotation(rng)
    widths[:rank] *= 100

    def potentials(v):
        return v**2 / 2 + heights * (jnp.logaddexp(v, -v) - jnp.log(2.0))

    def potential(x):
        return jnp.sum(potentials(jnp.asarray(rotation).T @ x / widths))

    v = np.linspace(-12, 12, 20001)[:, None]
    density = np.exp(-np.asarray(potentials(v)))
    variances = widths**2 * (v**2 * density).sum(axis=0) / density.sum(axis=0)
    order = np.argsort(variances)[::-1]
    eigenvalues, eigenvectors = variances[order], rotation[:, order]
    root = jnp.asarray(eigenvectors * np.sqrt(eigenvalues))
    far = jnp.asarray(rotation @ (50 * widths))

    def condition_number(apply):
        return extremes(potential, apply, jnp.zeros(DIM))[1] / extremes(potential, apply, far)[0]

    ideal = condition_number(ideal_map(form, eigenvalues, eigenvectors, rank).apply)
    whole = condition_number(lambda z: root @ z)
    assert whole / bound(eigenvalues, rank) <= ideal <= whole * bound(eigenvalues, rank)
