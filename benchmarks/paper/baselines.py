"""What is known or learnt before the chain: the exact covariance, and the paper's baselines.

Corrected baselines are the library's pBaM and reverse KL; those of the authors' program have the faults in
`paper_variants`. Two are missing: none was published for logistic regression, and the program's pBaM of the XY model
depends on where its inner EM stops. With lambda constant the fitted variance along the flat direction grows at every
iteration if the EM converges, without end.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import optax

import householder_mcmc as hm
from benchmarks.paper.settings import Learner
from benchmarks.paper_variants import covariance_as_root, equal_columns_start, reverse_kl_with_position_for_noise
from householder_mcmc.variational import LowRankGaussian, LowRankScaleGaussian, fit, pbam, reverse_kl

_REVERSE_KL_BATCH, _PBAM_BATCH = 10, 32


class Fit(NamedTuple):
    """optimiser; start: (position, rank) -> Gaussian; to_map: Gaussian -> preconditioner."""

    optimiser: optax.GradientTransformationExtraArgs
    start: Callable
    to_map: Callable
    num_steps: int
    batch_size: int


def learners(rank: int, fits: dict[str, Callable[[int], Fit]]) -> dict[str, Learner]:
    """Learners from functions of the dimension."""
    return {
        name: Learner(lambda target, fitted: hm.fixed(fitted), rank, fit=_fit(rank, fit_of))
        for name, fit_of in fits.items()
    }


def _fit(rank, fit_of):
    def fit_fn(rng_key, target):
        def logdensity(x):
            return target.logdensity(x)

        position = jnp.asarray(target.guess())
        one = fit_of(position.shape[0])
        initial = one.start(position, rank)
        gaussian, _ = fit(one.optimiser, logdensity, initial, rng_key, one.num_steps, batch_size=one.batch_size)
        return one.to_map(gaussian)

    return fit_fn


def exact() -> dict[str, Learner]:
    """The target's covariance: what the other schemes try to learn."""

    def fit_fn(rng_key, target):
        del rng_key
        return hm.Dense(jnp.linalg.cholesky(target.covariance()))

    return {"exact": Learner(lambda target, fitted: hm.fixed(fitted), fit=fit_fn)}


def corrected(is_gaussian: bool) -> dict[str, Callable[[int], Fit]]:
    """pBaM's lambda is the authors' 10, decaying like 1 / t where the target is no Gaussian; reverse KL takes Adam."""
    strength = 10.0 if is_gaussian else lambda count: 10.0 / (count + 1)
    descent = reverse_kl(optax.adam(optax.cosine_decay_schedule(0.03, 5000)))
    family = LowRankScaleGaussian
    descended = Fit(descent, family.start, family.to_preconditioner, 5000, _REVERSE_KL_BATCH)
    matched = Fit(pbam(strength), LowRankGaussian.start, LowRankGaussian.to_preconditioner, 100, _PBAM_BATCH)
    return {"diagonal_plus_LR": lambda dim: descended, "pBaM": lambda dim: matched}


def authors_gaussian(num_descents: int = 5000) -> dict[str, Callable[[int], Fit]]:
    """pBaM's covariance is used as L. The program's rates for reverse KL."""

    def descent(dim):
        rates = (5e-4, 1e-5) if dim == 50 else (1e-5, 1e-6)
        optimiser = reverse_kl_with_position_for_noise(1e-3, *rates)
        to_map = LowRankScaleGaussian.to_preconditioner
        return Fit(optimiser, equal_columns_start, to_map, num_descents, _REVERSE_KL_BATCH)

    matched = Fit(pbam(10.0), LowRankGaussian.start, covariance_as_root, 100, _PBAM_BATCH)
    return {"diagonal_plus_LR": descent, "pBaM": lambda dim: matched}


def authors_xy() -> dict[str, Callable[[int], Fit]]:
    """Reverse KL averages over the batch where for the Gaussians it sums."""
    summed = reverse_kl_with_position_for_noise(1e-2 * _REVERSE_KL_BATCH, 5e-4, 1e-4)

    def update_fn(updates, state, params=None, *, samples, scores, **extra_args):
        return summed.update(updates, state, params, samples=samples, scores=scores / _REVERSE_KL_BATCH, **extra_args)

    descent = optax.GradientTransformationExtraArgs(summed.init, update_fn)
    to_map = LowRankScaleGaussian.to_preconditioner
    descended = Fit(descent, equal_columns_start, to_map, 2000, _REVERSE_KL_BATCH)
    return {"diagonal_plus_LR": lambda dim: descended}
