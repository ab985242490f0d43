"""Traces to ArviZ, of either major version."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.util import run_inference_algorithm
from jax.flatten_util import ravel_pytree

import householder_mcmc as hm
from householder_mcmc.mcmc.chains import run_chains
from householder_mcmc.results.arviz import label

arviz = pytest.importorskip("arviz")

NUM_CHAINS, NUM_DRAWS = 3, 7


def logdensity(position):
    return -0.5 * (jnp.sum(position["b"]["w"] ** 2) + position["a"] ** 2)


def starts():
    key_w, key_a = jax.random.split(jax.random.key(0))
    return {"b": {"w": jax.random.normal(key_w, (NUM_CHAINS, 2))}, "a": jax.random.normal(key_a, (NUM_CHAINS,))}


def group(trace, name):
    """{variable: values} of a group."""
    return {variable: values.values for variable, values in trace[name].data_vars.items()}


def adaptive_trace(num_steps=NUM_DRAWS):
    sampler = hm.adaptive_mala(logdensity, hm.diagonal(), NUM_CHAINS)
    return run_inference_algorithm(jax.random.key(1), sampler, num_steps, initial_state=sampler.init(starts()))[1]


def test_adaptive_run():
    """Variables have names, chains come before draws, and the shared step size is repeated for each chain."""
    states, infos = adaptive_trace()
    trace = hm.to_arviz(states, infos)
    posterior, stats = group(trace, "posterior"), group(trace, "sample_stats")
    assert set(posterior) == {"a", "b.w"}
    np.testing.assert_array_equal(posterior["b.w"], np.swapaxes(states.position["b"]["w"], 0, 1))
    np.testing.assert_array_equal(posterior["a"], states.position["a"].T)
    assert set(stats) == {"acceptance_rate", "is_accepted", "is_nonfinite", "num_gradients", "step_size", "lp"}
    np.testing.assert_array_equal(stats["acceptance_rate"], infos.acceptance_rate.T)
    np.testing.assert_array_equal(stats["lp"], states.chains.logdensity.T)
    np.testing.assert_array_equal(stats["step_size"], np.tile(infos.step_size, (NUM_CHAINS, 1)))
    assert trace["posterior"].sizes["chain"] == NUM_CHAINS
    assert trace["posterior"].sizes["draw"] == NUM_DRAWS


def test_frozen_run_with_its_warmup():
    """What `hm.warmup` keeps has groups of its own, which a file keeps."""
    warmup = hm.warmup(logdensity, hm.diagonal(), NUM_CHAINS, keep=lambda state, info: (state.chains, info))
    (state, parameters), info = warmup.run(jax.random.key(0), starts(), 10)
    kernel = hm.hmc(logdensity, **parameters)
    _, (states, infos) = run_chains(kernel.step, jax.random.key(1), state, NUM_DRAWS)
    trace = hm.to_arviz(states, infos, step_size=parameters["step_size"], warmup=info.history)
    assert group(trace, "warmup_posterior")["a"].shape == (NUM_CHAINS, 9)  # the last tenth does not learn
    assert group(trace, "warmup_sample_stats")["step_size"].shape == (NUM_CHAINS, 9)
    step_sizes = group(trace, "sample_stats")["step_size"]
    np.testing.assert_array_equal(step_sizes, np.full((NUM_CHAINS, NUM_DRAWS), parameters["step_size"]))


def test_nuts_run_by_vmap_over_chains():
    """`chain_axis=0`: leaves have chains first. Statistics of NUTS have ArviZ's names."""
    kernel = blackjax.nuts(logdensity, 0.5, jnp.ones(3))

    def one_chain(key, position):
        def one_step(state, key):
            state, info = kernel.step(key, state)
            return state, (state, info)

        return jax.lax.scan(one_step, kernel.init(position), jax.random.split(key, NUM_DRAWS))[1]

    states, infos = jax.vmap(one_chain)(jax.random.split(jax.random.key(1), NUM_CHAINS), starts())
    step_sizes = jnp.array([0.1, 0.2, 0.3])
    trace = hm.to_arviz(states, infos, step_size=step_sizes, chain_axis=0)
    np.testing.assert_array_equal(group(trace, "posterior")["b.w"], states.position["b"]["w"])
    stats = group(trace, "sample_stats")
    assert {"diverging", "n_steps", "tree_depth", "acceptance_rate", "energy", "lp", "step_size"} <= set(stats)
    np.testing.assert_array_equal(stats["n_steps"], infos.num_integration_steps)
    np.testing.assert_array_equal(stats["step_size"][:, 0], step_sizes)


@pytest.mark.parametrize("chain_axis", [0, 1])
def test_one_chain(chain_axis):
    """Without a chain axis there is one chain, whatever the shape of a position."""
    kernel = blackjax.nuts(logdensity, 0.5, jnp.ones(3))
    position = jax.tree.map(lambda leaf: leaf[0], starts())
    _, (states, infos) = run_inference_algorithm(
        jax.random.key(1), kernel, NUM_DRAWS, initial_state=kernel.init(position)
    )
    trace = hm.to_arviz(states, infos, chain_axis=chain_axis)
    posterior, stats = group(trace, "posterior"), group(trace, "sample_stats")
    np.testing.assert_array_equal(posterior["b.w"], states.position["b"]["w"][None])
    np.testing.assert_array_equal(stats["lp"], states.logdensity[None])
    np.testing.assert_array_equal(stats["n_steps"], infos.num_integration_steps[None])
    assert {value.shape for value in stats.values()} == {(1, NUM_DRAWS)}


def test_positions_alone():
    trace = hm.to_arviz(jnp.zeros((NUM_DRAWS, NUM_CHAINS, 4)))
    assert group(trace, "posterior")["x"].shape == (NUM_CHAINS, NUM_DRAWS, 4)


def test_labels_are_in_the_order_of_a_ravelled_position():
    position = {"b": {"w": jnp.arange(6.0).reshape(2, 3)}, "a": jnp.array(-1.0)}
    x, _ = ravel_pytree(position)
    assert [label(position, i) for i in range(7)] == [
        "a",
        *(f"b.w[{i}, {j}]" for i in (0, 1) for j in range(3)),
    ]
    assert [x[0], x[6]] == [-1, 5]
    assert label(jnp.zeros(3), 2) == "x[2]"


def test_bad_input():
    with pytest.raises(ValueError, match="chain_axis must be 0 or 1, got 2"):
        hm.to_arviz(jnp.zeros((7, 3)), chain_axis=2)
    with pytest.raises(ValueError, match=r"share their first two axes.*'a': \(7, 3\).*'b': \(3, 7\)"):
        hm.to_arviz({"a": jnp.zeros((7, 3)), "b": jnp.zeros((3, 7))})
    with pytest.raises(ValueError, match=r"two variables have the same name: \['a.b', 'a.b'\]"):
        hm.to_arviz({"a": {"b": jnp.zeros((7, 3))}, "a.b": jnp.zeros((7, 3))})
