"""Preconditioners learnt before the chain: Gaussians with a diagonal plus low-rank covariance, fitted to the target.

These are the paper's baselines, and a way to a map and to starts before any chain runs. `pbam` (patched batch and
match) matches scores, the gradients of the log-density. `reverse_kl` descends on KL(q || target) with any optax
optimiser. Both are optax optimisers of a `LowRankGaussian`, `reverse_kl` also of a `LowRankScaleGaussian`, and cost
O((rank + batch)^2 d) a step. `fit` and `low_rank_vi` run them.

.. code-block:: python

    initial = hm.variational.LowRankGaussian.start(position, rank=2)
    gaussian, trace = hm.variational.fit(hm.variational.pbam(), logdensity, initial, rng_key, num_steps=50)
    trace.elbo[-1]  # log of the normalising constant less KL(gaussian || target)

    preconditioner = gaussian.to_preconditioner()
    kernel = hm.mala(logdensity, step_size=0.5, inverse_mass_matrix=preconditioner)
    nuts = blackjax.nuts(logdensity, 0.5, inverse_mass_matrix=preconditioner.to_inverse_mass_matrix())
    positions = gaussian.sample(rng_key, 4)  # where to start chains

A fit is done when `trace.elbo` has levelled off. `trace.num_dropped` counts samples without a finite score.
`benchmarks/VARIATIONAL.md` compares both, and `benchmarks/paper_variants.py` shows what is wrong with the published
ones.
"""

from householder_mcmc.variational.fit import VIInfo as VIInfo
from householder_mcmc.variational.fit import VIState as VIState
from householder_mcmc.variational.fit import fit as fit
from householder_mcmc.variational.fit import low_rank_vi as low_rank_vi
from householder_mcmc.variational.gaussian import LowRankGaussian as LowRankGaussian
from householder_mcmc.variational.gaussian import LowRankScaleGaussian as LowRankScaleGaussian
from householder_mcmc.variational.pbam import PBaMState as PBaMState
from householder_mcmc.variational.pbam import pbam as pbam
from householder_mcmc.variational.reverse_kl import reverse_kl as reverse_kl
from householder_mcmc.variational.reverse_kl import reverse_kl_gradient as reverse_kl_gradient
