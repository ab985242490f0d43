"""Preconditioners learnt before the chain: Gaussians with a diagonal plus low-rank covariance, fitted to the target.

`pbam` and `reverse_kl` are optax optimisers of a `LowRankGaussian`, or for the latter a `LowRankScaleGaussian`; `fit`
and `low_rank_vi` run them; `to_preconditioner` of what they return goes into a kernel.
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
