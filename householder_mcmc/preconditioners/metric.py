"""Our maps in BlackJAX's kernels: a preconditioner as a `Metric`, so that HMC, NUTS and their kin run with it.

The inverse mass matrix is L L^T, so the mass matrix is L^{-T} L^{-1}. A momentum is p = L^{-T} xi with xi standard
normal, its kinetic energy |L^T p|^2 / 2, its velocity L L^T p. No matrix is factorised: a Householder map costs O(rank
d) a step.
"""

from typing import Any, cast

import jax.numpy as jnp
from blackjax.mcmc.metrics import Metric
from blackjax.util import generate_gaussian_noise
from jax.flatten_util import ravel_pytree

from householder_mcmc.linalg import dot
from householder_mcmc.preconditioners.maps import as_preconditioner

__all__ = ["to_metric"]


def to_metric(preconditioner) -> Metric:
    """The BlackJAX `Metric` with inverse mass matrix L L^T, for whatever `as_preconditioner` takes.

    Pass it as `inverse_mass_matrix` to `blackjax.nuts`, `blackjax.hmc` and other kernels that take a metric. Its
    `scale` multiplies by L^{-T}, or by L^{-1} (trans), L (inv), L^T (inv and trans), as BlackJAX's own metrics do. Note
    that `blackjax.barker` scales its proposals by L^{-T}, the root of the mass matrix, with any metric.

    Raises
    ------
    TypeError
        If the preconditioner has no `solve` and `solve_transpose`, or is none.
    """
    p: Any = as_preconditioner(preconditioner)
    if not (hasattr(p, "solve") and hasattr(p, "solve_transpose")):
        raise TypeError(f"a metric needs the inverse map: {type(p).__name__} has no solve and solve_transpose.")
    products = {
        (False, False): p.solve_transpose,
        (False, True): p.solve,
        (True, False): p.apply,
        (True, True): p.apply_transpose,
    }

    def on_ravelled(function, element):
        x, unravel = ravel_pytree(element)
        return unravel(function(x))

    def sample_momentum(rng_key, position):
        return on_ravelled(p.solve_transpose, generate_gaussian_noise(rng_key, position))

    def kinetic_energy(momentum, position=None):
        del position
        return jnp.sum(p.apply_transpose(ravel_pytree(momentum)[0]) ** 2) / 2

    def check_turning(momentum_left, momentum_right, momentum_sum, position_left=None, position_right=None):
        """Generalised U-turn criterion (Betancourt 2013), with BlackJAX's half-weights of the end points."""
        del position_left, position_right
        left, right, total = (
            p.apply_transpose(ravel_pytree(momentum)[0]) for momentum in (momentum_left, momentum_right, momentum_sum)
        )
        middle = total - (left + right) / 2
        return (dot(left, middle) <= 0) | (dot(right, middle) <= 0)

    def scale(position, element, *, inv, trans):
        del position
        return on_ravelled(products[inv, trans], element)

    return Metric(sample_momentum, kinetic_energy, cast(Any, check_turning), scale)
