"""Runs that several tests make."""

import jax

import householder_mcmc as hm
from householder_mcmc.mcmc.chains import run_chains


def chain(kernel, position, num_steps=200, seed=1):
    """Positions and infos of one chain, leaves (num_steps, ...)."""

    def one_step(state, key):
        state, info = kernel.step(key, state)
        return state, (state.position, info)

    keys = jax.random.split(jax.random.key(seed), num_steps)
    return jax.lax.scan(one_step, kernel.init(position), keys)[1]


def warm_up_and_sample(logdensity, scheme, positions, num_warmup, num_draws, sampler="mala"):
    """Frozen draws of all chains after a warm-up: states and infos, leaves (num_draws, num_chains, ...)."""
    num_chains = jax.tree.leaves(positions)[0].shape[0]
    warmup = hm.warmup(logdensity, scheme, num_chains, sampler=sampler)
    (state, parameters), _ = warmup.run(jax.random.key(0), positions, num_warmup)
    kernel = getattr(hm, sampler)(logdensity, **parameters)
    return jax.jit(lambda state: run_chains(kernel.step, jax.random.key(1), state, num_draws)[1])(state)
