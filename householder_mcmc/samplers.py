"""The kernels that learn in a warm-up and are frozen at its end: a new one is an entry of `SAMPLERS`."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import optax

from householder_mcmc import hmc, mala
from householder_mcmc.gains import STEP_SIZE_GAIN

__all__ = ["SAMPLERS", "Sampler"]


class Sampler(NamedTuple):
    """What an adaptive step needs to know of a kernel.

    kernel: kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix) -> (state, info). learning_kernel:
    number of learning steps made, traced -> the kernel for the next. state: class of its states, made from those of
    MALA. step_size: sigma, the scale of its moves in whitened coordinates -> its step size. target_acceptance_rate: by
    default. step_size_gain: by default, of the step on log sigma in a warm-up. num_gradients: info -> of a transition.
    """

    kernel: Callable
    learning_kernel: Callable
    state: Callable
    step_size: Callable
    target_acceptance_rate: float
    step_size_gain: optax.Schedule
    num_gradients: Callable


def _growing_trajectories(count):
    """HMC of one leapfrog step at first, MALA in other words, and of one more at every 8th step of learning.

    Long trajectories cross in one transition the wide directions along which MALA walks at random, and so show them to
    the learner. They are worth their gradients once the map is known in part; before, they are dear.
    """
    return hmc.build_kernel(most_steps=1 + count // 8)


SAMPLERS = {
    "mala": Sampler(
        kernel=mala.build_kernel(),
        learning_kernel=lambda count: mala.build_kernel(),
        state=mala.MALAState,
        step_size=lambda sigma: sigma**2 / 2,
        target_acceptance_rate=0.574,
        step_size_gain=STEP_SIZE_GAIN,
        num_gradients=lambda info: jnp.ones_like(info.is_accepted, jnp.int32),
    ),
    "hmc": Sampler(
        kernel=hmc.build_kernel(),
        learning_kernel=_growing_trajectories,
        state=hmc.HMCState,
        step_size=lambda sigma: sigma,
        target_acceptance_rate=0.8,
        # a step size that lags behind the map costs as many gradients as it is too small
        step_size_gain=lambda count: jnp.maximum(STEP_SIZE_GAIN(count), 0.1),
        num_gradients=lambda info: info.num_integration_steps,
    ),
}
