"""Many chains of one kernel: trajectories of one time for all, and chains that are independent all the same."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import equations
from targets import skewed_logdensity

import householder_mcmc as hm
from householder_mcmc.mcmc.chains import run_chains, step_chains

NUM_CHAINS, DIM = 5, 3


def starts():
    return jax.random.normal(jax.random.key(0), (NUM_CHAINS, DIM))


def center(is_known):
    return jnp.full(DIM, 0.1 if is_known else jnp.nan)


@pytest.mark.parametrize("is_known", [True, False])
def test_chains_share_the_time_of_a_trajectory(is_known):
    """All make equally many steps, 2 to 4 of 0.6, another number at another transition; alone they do not."""
    kernel = hm.hmc(skewed_logdensity, 0.6, jnp.ones(DIM), center(is_known))
    chains = jax.vmap(kernel.init)(starts())
    steps = {}
    for name, step in {"shared": kernel.step, "own": lambda key, chain: kernel.step(key, chain)}.items():
        run = jax.jit(lambda chains, step=step: run_chains(step, jax.random.key(1), chains, 50)[1][1])
        steps[name] = np.asarray(run(chains).num_integration_steps)
    assert np.all(steps["shared"] == steps["shared"][:, :1]) and np.ptp(steps["shared"]) > 0
    assert np.any(steps["own"] != steps["own"][:, :1])


@pytest.mark.parametrize("is_known", [True, False])
def test_no_chain_waits_for_another(is_known):
    """The loop ends at one number of steps. Under `vmap` a number for each chain is a loop until the last one ends."""
    kernel = hm.hmc(skewed_logdensity, 0.6, jnp.ones(DIM), center(is_known), may_retry=False)
    chains = jax.vmap(kernel.init)(starts())

    def conditions(step):
        program = jax.make_jaxpr(lambda key, chains: step_chains(step, key, chains))(jax.random.key(1), chains)
        loops = [each.params["cond_jaxpr"] for each in equations(program.jaxpr) if each.primitive.name == "while"]
        return [{variable.aval.shape for each in loop.eqns for variable in each.invars} for loop in loops]

    assert conditions(kernel.step) == [{()}]
    assert conditions(lambda key, chain: kernel.step(key, chain)) == [{(NUM_CHAINS,)}]


@pytest.mark.parametrize("num_chains", [16, 17])
def test_up_to_16_chains_try_again(num_chains):
    """Steps of 0.4 fail where the scale is 0.1, a quarter of them is accepted with 0.97."""

    def logdensity(x):
        return -50 * jnp.sum(x**2)

    chains = jax.vmap(lambda x: hm.hmc.init(x, logdensity))(0.1 * jnp.ones((num_chains, 2)))
    kernel = partial(hm.hmc.build_kernel(), step_size=0.4, inverse_mass_matrix=jnp.ones(2))
    _, info = step_chains(kernel, jax.random.key(0), chains, logdensity)
    assert info.is_accepted.mean() > 0.5 if num_chains == 16 else not info.is_accepted.any()


def test_a_time_of_its_own_is_that_of_its_key():
    """With the key that a transition alone would draw its time with, the same numbers."""
    kernel = hm.hmc(skewed_logdensity, 0.6, jnp.ones(DIM))
    key, state = jax.random.key(3), kernel.init(starts()[0])
    alone, alone_info = kernel.step(key, state)
    told, told_info = kernel.step(key, state, jax.random.split(key)[0])
    np.testing.assert_array_equal(alone.position, told.position)
    assert alone_info.num_integration_steps == told_info.num_integration_steps


def test_a_kernel_without_trajectories_gets_the_keys_of_a_split():
    kernel = hm.mala(skewed_logdensity, 0.2, jnp.ones(DIM))
    chains, key = jax.vmap(kernel.init)(starts()), jax.random.key(1)
    found, _ = step_chains(kernel.step, key, chains)
    expected, _ = jax.vmap(kernel.step)(jax.random.split(key, NUM_CHAINS), chains)
    np.testing.assert_array_equal(found.position, expected.position)


def test_chains_of_one_time_are_uncorrelated():
    """Correlations of x and x^2 between two chains of a Gaussian, 4000 transitions in 20 dimensions that start in
    equilibrium: standard error 0.004 and less than twice that for x^2, which depends on its past. Every step is
    accepted but for the error of a step of 0.7, so equal momenta would give 1.
    """
    kernel = hm.hmc(lambda x: -jnp.sum(x**2) / 2, 0.7, jnp.ones(20))
    chains = jax.vmap(kernel.init)(jax.random.normal(jax.random.key(0), (2, 20)))
    run = jax.jit(lambda chains: run_chains(kernel.step, jax.random.key(1), chains, 4000, lambda s, i: s.position)[1])
    x = np.asarray(run(chains))
    for values in (x, x**2 - 1):
        assert abs(np.mean(values[:, 0] * values[:, 1]) / np.mean(values**2)) < 0.03
    np.testing.assert_allclose(np.mean(x**2, axis=(0, 2)), 1, atol=0.05)
