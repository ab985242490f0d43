"""Skewed densities, because a symmetric one hides sign errors. The paper's targets are in `benchmarks.targets`."""

import jax.numpy as jnp
import numpy as np
from scipy.special import digamma, polygamma


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
