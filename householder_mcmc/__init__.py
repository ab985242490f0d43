"""Adaptive MCMC with Householder preconditioners for JAX and BlackJAX."""

from blackjax import GenerateSamplingAPI as _SamplingAPI

from householder_mcmc import adaptive_mala as _adaptive_mala
from householder_mcmc import hmc as _hmc
from householder_mcmc import mala as _mala
from householder_mcmc import online_pca as online_pca
from householder_mcmc import reflections as reflections
from householder_mcmc import variational as variational
from householder_mcmc.gains import AUTHORS_GAINS as AUTHORS_GAINS
from householder_mcmc.gains import DEFAULT_GAINS as DEFAULT_GAINS
from householder_mcmc.gains import LATEST_GAINS as LATEST_GAINS
from householder_mcmc.gains import Gains as Gains
from householder_mcmc.gains import growing_memory as growing_memory
from householder_mcmc.gains import power_decay as power_decay
from householder_mcmc.metric_core import metric_core as metric_core
from householder_mcmc.metrics import to_metric as to_metric
from householder_mcmc.preconditioners import Dense as Dense
from householder_mcmc.preconditioners import Diagonal as Diagonal
from householder_mcmc.preconditioners import Householder as Householder
from householder_mcmc.preconditioners import LowRank as LowRank
from householder_mcmc.preconditioners import Preconditioner as Preconditioner
from householder_mcmc.preconditioners import as_preconditioner as as_preconditioner
from householder_mcmc.results import to_arviz as to_arviz
from householder_mcmc.schemes import Scheme as Scheme
from householder_mcmc.schemes import dense as dense
from householder_mcmc.schemes import diagonal as diagonal
from householder_mcmc.schemes import eigen as eigen
from householder_mcmc.schemes import eigen_identity as eigen_identity
from householder_mcmc.schemes import fixed as fixed
from householder_mcmc.schemes import none as none
from householder_mcmc.two_ended import two_ended as two_ended
from householder_mcmc.warmup import warmup as warmup

__version__ = "0.1.0"

mala = _SamplingAPI(_mala.as_top_level_api, _mala.init, _mala.build_kernel)
hmc = _SamplingAPI(_hmc.as_top_level_api, _hmc.init, _hmc.build_kernel)
adaptive_mala = _SamplingAPI(_adaptive_mala.as_top_level_api, _adaptive_mala.init, _adaptive_mala.build_kernel)
