"""The kernels that a warm-up can tune, by name. A new kernel is an entry of `SAMPLERS`."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from householder_mcmc.mcmc import hmc, mala

__all__ = ["SAMPLERS", "Sampler", "find_sampler"]


class Sampler(NamedTuple):
    """What an adaptive step needs to know of a kernel.

    kernel: kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix) -> (state, info). With a
    `longest_sigma` it also takes `center`: the mean of the learnt Gaussian, a position. The info has
    acceptance_rate, is_accepted and is_nonfinite, each ().
    state: class of its states, called with position, logdensity, logdensity_grad in this order.
    step_size: sigma, the scale of a move in whitened coordinates -> step size of the kernel.
    target_acceptance_rate: the default.
    num_gradients: info -> gradients that the transition took.
    longest_sigma: sigma above which nothing changes with a center; None if the kernel takes no center.
    """

    kernel: Callable
    state: Callable
    step_size: Callable
    target_acceptance_rate: float
    num_gradients: Callable
    longest_sigma: float | None = None


# Targets: for MALA 0.574, the optimal acceptance rate in high dimension (Roberts & Rosenthal 1998). For HMC 0.8, as in
# Stan and BlackJAX. That is above the optimum of 0.651 (Beskos et al. 2013), so that steps are shorter where the target
# is narrow.
SAMPLERS = {
    "mala": Sampler(
        kernel=mala.build_kernel(),
        state=mala.MALAState,
        step_size=lambda sigma: sigma**2 / 2,
        target_acceptance_rate=0.574,
        num_gradients=lambda info: jnp.ones_like(info.is_accepted, jnp.int32),
        longest_sigma=mala.LONGEST_STEP,
    ),
    "hmc": Sampler(
        kernel=partial(hmc.build_kernel(), may_retry=False),
        state=hmc.HMCState,
        step_size=lambda sigma: sigma,
        target_acceptance_rate=0.8,
        num_gradients=lambda info: info.num_integration_steps,
        longest_sigma=hmc.LONGEST_STEP,
    ),
}


def find_sampler(sampler: str | Sampler) -> Sampler:
    """The sampler of a name, or the one given. Raises ValueError on an unknown name, TypeError on anything else."""
    if isinstance(sampler, Sampler):
        return sampler
    if isinstance(sampler, str) and sampler in SAMPLERS:
        return SAMPLERS[sampler]
    error = ValueError if isinstance(sampler, str) else TypeError
    raise error(f"sampler must be one of {sorted(SAMPLERS)} or a Sampler, got {sampler!r}.")
