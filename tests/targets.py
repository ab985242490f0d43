"""Densities with known moments. One is skewed: a symmetric one hides sign errors."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.special import digamma, polygamma


class Gaussian(NamedTuple):
    """N(mean, covariance), as float64 arrays; `logdensity` works in the dtype of the position."""

    mean: np.ndarray
    covariance: np.ndarray

    def logdensity(self, x):
        precision = jnp.asarray(np.linalg.inv(self.covariance), x.dtype)
        centred = x - jnp.asarray(self.mean, x.dtype)
        return -0.5 * jnp.vdot(centred, jnp.matmul(precision, centred, precision="highest"), precision="highest")

    def sample(self, rng, num):
        return self.mean + rng.normal(size=(num, len(self.mean))) @ np.linalg.cholesky(self.covariance).T

    def leading(self, num):
        """The `num` largest eigenvalues, and their eigenvectors as rows."""
        eigenvalues, eigenvectors = np.linalg.eigh(self.covariance)
        return eigenvalues[::-1][:num], eigenvectors.T[::-1][:num]


def paper_first(dim, num_leading, rng):
    """First Gaussian of the paper: `num_leading` variances near 100, the others 0.1.

    The basis is the authors': the left singular vectors of the single column 1/sqrt(d).
    """
    basis = np.linalg.svd(np.full((dim, 1), dim**-0.5))[0]
    spectrum = np.r_[100 + 0.1 * rng.normal(size=num_leading), np.full(dim - num_leading, 0.1)]
    return Gaussian(np.full(dim, 5.0), (basis * spectrum) @ basis.T)


def paper_second(dim, rank, rng):
    """Second Gaussian of the paper: a diagonal U(0, 1) plus a factor of `rank` standard normal columns."""
    factor = rng.normal(size=(dim, rank))
    return Gaussian(rng.normal(size=dim), np.diag(rng.uniform(size=dim)) + factor @ factor.T)


def skewed_logdensity(x):
    """A log-gamma coordinate-wise density with correlated neighbours: not symmetric, not separable."""
    return jnp.sum(2 * x - jnp.exp(x)) - 0.3 * jnp.sum((x[1:] - x[:-1]) ** 2)


def log_gamma_logdensity(shapes):
    """Independent x_i = log of a gamma variable of shape shapes_i.

    E x = digamma(shape), var x = trigamma(shape); skewed to the left.
    """
    shapes = np.asarray(shapes)

    def logdensity(x):
        return jnp.sum(jnp.asarray(shapes, x.dtype) * x - jnp.exp(x))

    return logdensity, digamma(shapes), polygamma(1, shapes)
