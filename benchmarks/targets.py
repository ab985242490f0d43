"""The targets of Hird & Livingstone (2026), Section 4, as arrays with a log-density, and what is known of them exactly.

A target is a NamedTuple of arrays, so that many instances stack and run under `vmap`. Beside `logdensity(x)` it has
`leading(draws)`, the draws (..., d) along its widest directions (..., K), `variances` (K,), the true variances there,
`start`, where the paper starts the chains, and `guess`, where its fits before the chain start. Builders work in float64
NumPy.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.integrate import quad
from scipy.optimize import brentq

__all__ = ["Gaussian", "Logistic", "XY", "gaussian", "gaussian_first", "gaussian_second", "logistic", "xy"]

NUM_LEADING = 3


class Gaussian(NamedTuple):
    """N(mean, precision^-1). mean (d,), precision (d, d), directions (K, d): leading eigenvectors."""

    mean: Array
    precision: Array
    directions: Array
    variances: Array

    def logdensity(self, x):
        centred = x - self.mean
        return -0.5 * jnp.vdot(centred, jnp.matmul(self.precision, centred, precision="highest"), precision="highest")

    def leading(self, draws):
        return draws @ self.directions.T

    def guess(self):
        return jnp.zeros_like(self.mean)

    def covariance(self):
        return jnp.linalg.inv(self.precision)

    def start(self, rng, num_chains):
        """Exact draws."""
        factor = np.linalg.cholesky(np.linalg.inv(self.precision))
        return self.mean + rng.normal(size=(num_chains, len(self.mean))) @ factor.T


def gaussian(mean: np.ndarray, basis: np.ndarray, variances: np.ndarray, num_leading: int = NUM_LEADING) -> Gaussian:
    """With `variances` (d,) along the columns of `basis` (d, d)."""
    order = np.argsort(-variances)[:num_leading]
    return Gaussian(mean, (basis / variances) @ basis.T, basis.T[order], variances[order])


def gaussian_first(dim: int, rng: np.random.Generator, num_significant: int) -> Gaussian:
    """Section 4.3.1: `num_significant` variances N(100, 0.01), the others 0.1; mean 5.

    The basis is the authors': the left singular vectors of the one column 1/sqrt(d).
    """
    basis = np.linalg.svd(np.full((dim, 1), dim**-0.5))[0]
    spectrum = np.r_[100 + 0.1 * rng.normal(size=num_significant), np.full(dim - num_significant, 0.1)]
    return gaussian(np.full(dim, 5.0), basis, spectrum, num_significant)


def gaussian_second(dim: int, rng: np.random.Generator, rank: int = 32) -> Gaussian:
    """Section 4.3.2: covariance diag(U(0, 1)) plus a factor of `rank` standard normal columns; mean N(0, I)."""
    mean, factor = rng.normal(size=dim), rng.normal(size=(dim, rank))
    variances, eigenvectors = np.linalg.eigh(np.diag(rng.uniform(size=dim)) + factor @ factor.T)
    return gaussian(mean, eigenvectors, variances)


class Logistic(NamedTuple):
    """Bayesian logistic regression with a g-prior: design (n, d), signs (n,) +-1, prior () = lambda / n.

    With n = d the linear predictors z = X beta are independent under the posterior, each with the density
    exp(-log(1 + exp(-s z)) - lambda z^2 / (2 n)). So the mode, and the covariance var(z) (X^T X)^-1, are known exactly.
    predictor_variance (): var(z).
    """

    design: Array
    signs: Array
    prior: Array
    predictor_variance: Array
    directions: Array
    variances: Array

    def logdensity(self, x):
        z = jnp.matmul(self.design, x, precision="highest")
        return -jnp.sum(jax.nn.softplus(-self.signs * z)) - 0.5 * self.prior * jnp.sum(z**2)

    def leading(self, draws):
        return draws @ self.directions.T

    def guess(self):
        return jnp.zeros_like(self.design[0])

    def mean(self):
        return np.linalg.solve(self.design, self.signs * _predictor_moments(self.prior)[0])

    def covariance(self):
        return self.predictor_variance * jnp.linalg.inv(jnp.matmul(self.design.T, self.design, precision="highest"))

    def start(self, rng, num_chains):
        """The mode, for all chains."""
        del rng
        mode = brentq(lambda z: 1 / (1 + np.exp(z)) - self.prior * z, 0, 100)
        return np.tile(np.linalg.solve(self.design, self.signs * mode), (num_chains, 1))


def logistic(dim: int, rng: np.random.Generator, prior_strength: float = 0.01, num_narrow: int = 3) -> Logistic:
    """Section 4.4: X = U D V^T with Haar U and V; `num_narrow` of D's values N(1, 1e-6), the others sqrt(1000)."""
    left, right = (_haar(dim, rng) for _ in range(2))
    singular_values = np.r_[1 + 1e-3 * rng.normal(size=num_narrow), np.full(dim - num_narrow, np.sqrt(1000))]
    design = (left * singular_values) @ right.T
    predictors = design @ rng.normal(size=dim)
    signs = np.where(rng.uniform(size=dim) < 1 / (1 + np.exp(-predictors)), 1.0, -1.0)
    prior = prior_strength / dim
    order = np.argsort(singular_values)[:num_narrow]
    _, variance = _predictor_moments(prior)
    variances = variance / singular_values[order] ** 2
    return Logistic(design, signs, np.array(prior), np.array(variance), right.T[order], variances)


def _haar(dim, rng):
    q, r = np.linalg.qr(rng.normal(size=(dim, dim)))
    return q * np.sign(np.diag(r))


def _predictor_moments(prior):
    """Mean and variance of the density exp(-log(1 + exp(-z)) - prior z^2 / 2), by quadrature."""

    def density(z):
        return np.exp(-np.logaddexp(0, -z) - prior * z**2 / 2)

    width = prior**-0.5
    mass, first, second = (
        quad(lambda z, k=k: z**k * density(z), -40, 12 * width, points=[0, 10, width], limit=200)[0] for k in range(3)
    )
    return first / mass, second / mass - (first / mass) ** 2


class XY(NamedTuple):
    """Mean-field XY model: coupling () = beta / (2 d); the state is d angles.

    Its widest direction is the common rotation. `leading` is the cosine and the sine of the angle of the magnetisation,
    which is uniform on the circle: both have variance 1/2.
    """

    coupling: Array
    angles: Array
    variances: Array

    def logdensity(self, x):
        return self.coupling * (jnp.sum(jnp.cos(x)) ** 2 + jnp.sum(jnp.sin(x)) ** 2)

    def leading(self, draws):
        magnetisation = np.exp(1j * draws).sum(axis=-1)
        direction = magnetisation / np.abs(magnetisation)
        return np.stack([direction.real, direction.imag], axis=-1)

    def guess(self):
        return self.angles

    def start(self, rng, num_chains):
        """The mode pi / 4, for all chains."""
        del rng
        return np.tile(self.angles, (num_chains, 1))


def xy(dim: int, rng: np.random.Generator, inverse_temperature: float = 100.0) -> XY:
    """Section 4.5: potential -(1 / 2d) sum_ij cos(x_i - x_j) at an inverse temperature."""
    del rng
    return XY(np.array(inverse_temperature / (2 * dim)), np.full(dim, np.pi / 4), np.full(2, 0.5))
