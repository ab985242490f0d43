"""The kernels whose step size a warm-up tunes and which it leaves frozen: a new one is an entry of `SAMPLERS`."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from householder_mcmc.mcmc import hmc, mala

__all__ = ["SAMPLERS", "Sampler", "find_sampler"]


class Sampler(NamedTuple):
    """What an adaptive step needs to know of a kernel.

    kernel: kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix) -> (state, info). state: class of its
    states, made from those of MALA: position, logdensity, logdensity_grad. step_size: sigma, the scale of its moves in
    whitened coordinates -> its step size. target_acceptance_rate: by default. num_gradients: info -> of a transition.
    longest_sigma: beyond which nothing changes, if the kernel takes a `center`, the position of the mean; else None.
    The info has acceptance_rate, is_accepted and is_nonfinite.
    """

    kernel: Callable
    state: Callable
    step_size: Callable
    target_acceptance_rate: float
    num_gradients: Callable
    longest_sigma: float | None = None


# Targets: for MALA the optimal acceptance rate in high dimension (Roberts & Rosenthal 1998). For HMC 0.8, above its
# optimum of 0.651 (Beskos et al. 2013), as in Stan and BlackJAX, so that narrow places are met with shorter steps.
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
        kernel=hmc.build_kernel(),
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
