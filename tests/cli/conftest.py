"""A model of a user, and a run of which every number is known."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.flatten_util import ravel_pytree

import householder_mcmc as hm
from householder_mcmc.adaptation.warmup import WarmupInfo
from householder_mcmc.cli import main as command_line
from householder_mcmc.mcmc.hmc import HMCInfo, HMCState
from householder_mcmc.sampling import blocks, sample
from householder_mcmc.sampling.nuts import ALL_SAMPLERS

MODEL = """
import jax.numpy as jnp

def logdensity(position):
    return -0.5 * jnp.sum((position["location"] - 3) ** 2) - 0.5 * jnp.sum(position["effects"] ** 2)

initial_position = {"effects": jnp.zeros((2, 2)), "location": 3.0}
"""


@pytest.fixture
def model(tmp_path):
    """The file of a model of 5 dimensions."""
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


@pytest.fixture(autouse=True)
def no_compilation_cache(monkeypatch):
    """The folder of whoever runs the tests is left alone."""
    monkeypatch.setattr(command_line, "use_compilation_cache", lambda: None)


@pytest.fixture
def made_run(monkeypatch):
    """Of 2 chains: a warm-up and draws of which every number is known. Returns what the warm-up was last given.

    Warm-up: 30 seconds, 300 and 500 gradients, 2 and 0 non-finite proposals, learning in the last 10 steps alone. Draws
    are independent, of 3 gradients each. Chain 0 accepts 0.9 of its proposals; chain 1 accepts 0.1, its proposals are
    not finite, its trajectories diverge, and coordinate 2 of its draws is 5 standard deviations off. Each look at the
    clock takes a second.
    """
    given, seconds = {}, [0.0]

    def perf_counter():
        seconds[0] += 1
        return seconds[0]

    def warmup(logdensity, scheme, num_chains, **options):
        def run(rng_key, positions, num_steps):
            seconds[0] += 30
            given.update(key=jax.random.key_data(rng_key), positions=positions, **options)
            state = HMCState(positions, logdensity=jnp.array([0.0, 1.0]), logdensity_grad=None)  # the chain's number
            dim = sum(leaf[0].size for leaf in jax.tree.leaves(positions))
            parameters = {"step_size": jnp.array(1.0), "inverse_mass_matrix": hm.Diagonal(jnp.ones(dim))}
            info = WarmupInfo(
                acceptance_rate=jnp.array([0.5, 0.5]),
                num_nonfinite=jnp.array([2, 0]),
                num_gradients=jnp.array([300, 500]),
                num_steps=jnp.array(num_steps),
                num_learnt=jnp.array(10),
                explained=jnp.array(1.0),
                has_settled=jnp.array(True),
                is_behind=jnp.zeros(2, bool),
                num_moves=jnp.zeros(2, int),
                last_state=None,
                history=None,
            )
            return (state, parameters), info

        return SimpleNamespace(run=run)

    def kernel(rng_key, state, logdensity_fn, step_size, inverse_mass_matrix):
        is_second, (x, unravel) = state.logdensity == 1, ravel_pytree(state.position)
        x = jax.random.normal(rng_key, x.shape) + 5 * is_second * (jnp.arange(x.size) == 2)
        return state._replace(position=unravel(x)), HMCInfo(
            acceptance_rate=jnp.where(is_second, 0.1, 0.9),
            is_accepted=~is_second,
            is_nonfinite=is_second,
            is_divergent=is_second,
            num_integration_steps=jnp.array(3),
            energy=jnp.array(0.0),
        )

    monkeypatch.setattr(sample, "warmup", warmup)
    monkeypatch.setitem(ALL_SAMPLERS, "hmc", ALL_SAMPLERS["hmc"]._replace(kernel=kernel))
    for module in (sample, blocks):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=perf_counter, sleep=lambda seconds: None))
    return given
