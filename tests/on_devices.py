"""What `test_devices` runs in processes of their own: a function and its arguments; it prints the result as JSON."""

import json
import re
import sys
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

if (
    sys.argv[1:2] in (["join"], ["sample"]) and sys.argv[3] != "1"
):  # before BlackJAX is imported, which computes something
    jax.distributed.initialize(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

import householder_mcmc as hm  # noqa: E402
from householder_mcmc.mcmc.chains import step_chains  # noqa: E402

DIM, RANK, NUM_CHAINS, NUM_STEPS = 16384, 5, 16, 40
SCHEMES = {
    "eigen_latest": hm.eigen(RANK, gains=hm.LATEST_GAINS),
    "eigen": hm.eigen(RANK),
    "two_ended": hm.two_ended(RANK),
}
_COLLECTIVE = re.compile(
    r"= (.*?) (?:all-reduce|all-gather|all-to-all|collective-permute|collective-broadcast|reduce-scatter)(?:-start)?\("
)


def logdensity(x):
    """A Gaussian, the first eight of whose coordinates are wider, all of them dependent through their sum."""
    precision = jnp.where(jnp.arange(x.shape[0]) < 8, 0.01, 1.0)
    return -0.5 * jnp.sum(precision * x**2) - 0.5 * jnp.sum(x) ** 2 / x.shape[0]


def starts(num_chains=NUM_CHAINS, dim=DIM):
    return np.random.default_rng(0).normal(size=(num_chains, dim))


def collectives(text):
    """How many numbers each collective of a compiled step makes known to a device, with the operation it is for.

    "always": those of the main program. "at times": those in loops and branches.
    """
    found, is_entry = {"always": [], "at times": []}, False
    for line in text.splitlines():
        if line and not line.startswith((" ", "}")):
            is_entry = line.startswith("ENTRY")
        match = _COLLECTIVE.search(line)
        if match:
            shapes = re.findall(r"\w+\[([\d,]*)\]", match[1])
            sizes = [prod(map(int, filter(None, shape.split(",")))) for shape in shapes]
            name = re.search(r'op_name="([^"]*)"', line)
            found["always" if is_entry else "at times"].append((sum(sizes), name[1] if name else ""))
    return found


def warm_up(scheme, positions, sampler="mala"):
    warmup = hm.warmup(logdensity, scheme, positions.shape[0], sampler=sampler)
    return warmup.run(jax.random.key(1), positions, NUM_STEPS)


def shard(axis, *names):
    """One device against eight, with the chains or the d axis sharded: what is sent by each scheme, what comes out."""
    mesh = jax.make_mesh((8,), (axis,), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("chains") if axis == "chains" else PartitionSpec(None, "dim")
    one, many = jnp.asarray(starts()), jax.device_put(starts(), NamedSharding(mesh, spec))
    adaptive = {}
    for name in names:
        sampler = hm.adaptive_mala(logdensity, SCHEMES[name], NUM_CHAINS)
        compiled = sampler.step.lower(jax.random.key(1), sampler.init(many)).compile()
        adaptive[name] = collectives(compiled.as_text())

    expected, found = (warm_up(SCHEMES[names[0]], positions) for positions in (one, many))
    (state, parameters), info = found
    kernel = hm.mala(logdensity, **parameters)
    keys = jax.device_put(jax.random.split(jax.random.key(2), NUM_CHAINS), NamedSharding(mesh, PartitionSpec()))
    frozen = jax.jit(jax.vmap(kernel.step)).lower(keys, state).compile()

    def error(a, b):
        a, b = np.asarray(a, float), np.asarray(b, float)
        return float(np.max(np.abs(a - b)) / (np.max(np.abs(a)) or 1))

    by_hmc = [warm_up(SCHEMES[names[0]], positions, "hmc") for positions in (one, many)]
    (hmc_state, hmc_parameters), _ = by_hmc[1]
    key = jax.device_put(jax.random.key(3), NamedSharding(mesh, PartitionSpec()))

    def trajectories(may_retry):
        step = hm.hmc(logdensity, **hmc_parameters, may_retry=may_retry).step
        return collectives(jax.jit(partial(step_chains, step)).lower(key, hmc_state).compile().as_text())

    return {
        "adaptive": adaptive,
        "frozen": collectives(frozen.as_text()),
        "frozen HMC": trajectories(may_retry=False),
        "frozen HMC, trials": trajectories(may_retry=True),
        "solves a Gaussian": bool(jnp.all(jnp.isfinite(hmc_parameters.get("center", jnp.nan)))),
        "error": max(jax.tree.leaves(jax.tree.map(error, expected, found))),
        "error of HMC": max(jax.tree.leaves(jax.tree.map(error, *by_hmc))),
        "acceptance": float(info.acceptance_rate.mean()),
        "distance": float(np.max(np.abs(np.asarray(state.position) - starts()))),
        "share of positions": state.position.sharding.shard_shape(state.position.shape),
        "share of the map": max(
            (leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(parameters)), key=prod
        ),
    }


def join(address, count, index):
    """A warm-up of 4 chains that are spread over the processes: the learnt map as a matrix."""
    count, index = int(count), int(index)
    del address
    mesh = jax.make_mesh((count,), ("chains",), axis_types=(jax.sharding.AxisType.Auto,))
    mine = np.split(starts(4, 6), count)[index]
    positions = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("chains")), mine)
    (_, parameters), _ = warm_up(hm.eigen(2), positions)
    scales = np.asarray(parameters["inverse_mass_matrix"].scales)
    eigenvectors = np.asarray(parameters["inverse_mass_matrix"].rotation.eigenvectors)
    return {
        "devices": jax.device_count(),
        "chains here": sum(shard.data.shape[0] for shard in positions.addressable_shards),
        "step_size": float(parameters["step_size"]),
        "scales": scales.tolist(),
        "eigenvectors": eigenvectors.tolist(),
    }


def sample(address, count, index):
    """`hm.sample` of 4 chains that are spread over the processes: all draws, in each of them."""
    del address
    mesh = jax.make_mesh((int(count),), ("chains",), axis_types=(jax.sharding.AxisType.Auto,))
    mine = np.split(starts(4, 6), int(count))[int(index)]
    positions = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("chains")), mine)
    result = hm.sample(
        logdensity, starts=positions, num_warmup=60, num_draws=50, scheme=hm.two_ended(2), progress=False
    )
    result = result.extend(10, progress=False)
    return {
        "chains here": sum(shard.data.shape[0] for shard in result.state.position.addressable_shards),
        "draws": result.draws["x"].tolist(),
        "step_size": float(result.parameters["step_size"]),
        "warnings": result.warnings,
    }


if __name__ == "__main__":
    print(json.dumps({"shard": shard, "join": join, "sample": sample}[sys.argv[1]](*sys.argv[2:])))
