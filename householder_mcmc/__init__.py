"""Adaptive MCMC for JAX and BlackJAX: HMC, NUTS and MALA with linear maps that are learnt from the chains.

Start with `sample`, which goes from a log-density, or a `Model`, to a `Result`. The pieces, from the outside in:

- **Models** (`sampling/`): `Model`, `constrained`, `from_numpyro`, `from_pymc`.
- **Runs** (`sampling/`, `results/`): `sample`, `Until`, `Result`, `save`, `load`, `diagnose`, `to_arviz`.
- **Warm-ups** (`adaptation/`): `warmup` learns a map and a step size and freezes both, `arrive` climbs from far starts.
- **In BlackJAX**: `for_blackjax`, `to_metric` and `to_integrator` for its kernels, `metric_core` for its warm-ups.
- **Kernels** (`mcmc/`): `hmc` and `mala` of one chain, `adaptive_mala` of many chains whose map never stops moving.
- **Learners** (`learners/`): `two_ended`, and `diagonal`, `dense`, `eigen`, `eigen_identity`, `none`, `fixed`; `Gains`.
- **Maps** (`preconditioners/`): `LowRank`, `Householder`, `Diagonal`, `Dense`. A map L has proposal covariance L L^T.
- **Fits before the chain**: `variational`.
"""

from householder_mcmc import variational
from householder_mcmc.adaptation import adaptive_mala as _adaptive_mala
from householder_mcmc.adaptation.adaptive import AdaptiveInfo, AdaptiveState
from householder_mcmc.adaptation.arrival import ArrivalInfo, arrive
from householder_mcmc.adaptation.metric_core import MetricCoreState, metric_core
from householder_mcmc.adaptation.samplers import Sampler
from householder_mcmc.adaptation.warmup import Warmup, WarmupInfo, WarmupResults, warmup
from householder_mcmc.learners import online_pca
from householder_mcmc.learners.eigen import eigen, eigen_identity
from householder_mcmc.learners.gains import (
    AUTHORS_GAINS,
    DEFAULT_GAINS,
    LATEST_GAINS,
    Gains,
    growing_memory,
    power_decay,
)
from householder_mcmc.learners.moments import dense, diagonal
from householder_mcmc.learners.scheme import Scheme, fixed, none
from householder_mcmc.learners.two_ended import two_ended
from householder_mcmc.mcmc import hmc as _hmc
from householder_mcmc.mcmc import mala as _mala
from householder_mcmc.mcmc.api import SamplingAPI as _SamplingAPI
from householder_mcmc.mcmc.hmc import HMCInfo
from householder_mcmc.mcmc.integrator import for_blackjax, to_integrator
from householder_mcmc.mcmc.mala import MALAInfo
from householder_mcmc.preconditioners import reflections
from householder_mcmc.preconditioners.maps import (
    Dense,
    Diagonal,
    Householder,
    LowRank,
    Preconditioner,
    as_preconditioner,
)
from householder_mcmc.preconditioners.metric import to_metric
from householder_mcmc.results.arviz import to_arviz
from householder_mcmc.results.diagnose import diagnose
from householder_mcmc.results.diagnostics import nested_rhat
from householder_mcmc.sampling.model import Model, constrained
from householder_mcmc.sampling.numpyro import from_numpyro
from householder_mcmc.sampling.numpyro_kernel import numpyro_kernel
from householder_mcmc.sampling.pymc import from_pymc
from householder_mcmc.sampling.result import Result, load, save
from householder_mcmc.sampling.sample import Until, sample

__version__ = "0.2.0"

mala = _SamplingAPI(_mala.as_top_level_api, _mala.init, _mala.build_kernel)
hmc = _SamplingAPI(_hmc.as_top_level_api, _hmc.init, _hmc.build_kernel)
adaptive_mala = _SamplingAPI(_adaptive_mala.as_top_level_api, _adaptive_mala.init, _adaptive_mala.build_kernel)

__all__ = [
    "AUTHORS_GAINS",
    "AdaptiveInfo",
    "AdaptiveState",
    "ArrivalInfo",
    "DEFAULT_GAINS",
    "Dense",
    "Diagonal",
    "Gains",
    "HMCInfo",
    "Householder",
    "LATEST_GAINS",
    "LowRank",
    "MALAInfo",
    "MetricCoreState",
    "Model",
    "Preconditioner",
    "Result",
    "Sampler",
    "Scheme",
    "Until",
    "Warmup",
    "WarmupInfo",
    "WarmupResults",
    "adaptive_mala",
    "arrive",
    "as_preconditioner",
    "constrained",
    "dense",
    "diagnose",
    "diagonal",
    "eigen",
    "eigen_identity",
    "fixed",
    "for_blackjax",
    "from_numpyro",
    "from_pymc",
    "growing_memory",
    "hmc",
    "load",
    "mala",
    "metric_core",
    "nested_rhat",
    "none",
    "numpyro_kernel",
    "online_pca",
    "power_decay",
    "reflections",
    "sample",
    "save",
    "to_arviz",
    "to_integrator",
    "to_metric",
    "two_ended",
    "variational",
    "warmup",
]


def __dir__():
    return [*__all__, "__version__"]
