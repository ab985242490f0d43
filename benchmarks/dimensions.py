"""Gradients of a draw against d: leapfrog trajectories beside those that solve the learnt Gaussian.

    python -m benchmarks.dimensions [--largest D] [--seeds N] [--out FOLDER]

HMC of 4 chains in double precision, map, center and step size from `hm.warmup` with its defaults; leapfrog is the same
without a center. The Gaussian has standard deviations from 0.01 to 100 and two wide directions across all coordinates.
The logistic regression has groups of ten coefficients, of which each has 50 observations and the prior N(0, 1): how far
a coefficient's posterior is from a Gaussian does not depend on d.
The ESS is the smaller one of x and of squares, over at most 100 coordinates evenly spaced, so that the smallest is of
as many at every d. Writes dimensions.csv and dimensions.png. Up to d = 10,000 it takes ten minutes on one core, and ten
times as long with d = 100,000; the results that are kept here are those of `--largest 10000`.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import householder_mcmc as hm
from benchmarks import environment
from householder_mcmc.mcmc.chains import run_chains
from householder_mcmc.results import diagnostics

NUM_CHAINS = 4
NUM_DRAWS = 250
DIMS = (10, 100, 1000, 10_000, 100_000)
_MOST_COORDINATES = 100
_GROUP, _OBSERVATIONS = 10, 50

TRAJECTORIES = {"leapfrog": hm.two_ended()._replace(center=None), "exact": hm.two_ended()}


def gaussian(dim: int, rng: np.random.Generator):
    """Log-density, and the map from N(0, I) to it."""
    rows = np.linalg.qr(rng.normal(size=(dim, 2)))[0].T
    to_target = hm.LowRank(jnp.geomspace(0.01, 100, dim), jnp.asarray(rows), jnp.array([100.0, 25.0]))
    return lambda x: -0.5 * jnp.sum(to_target.solve(x) ** 2), to_target.apply


def logistic(dim: int, rng: np.random.Generator):
    """Log-density, and the map from N(0, I) to the prior."""
    features = rng.normal(size=(dim // _GROUP, _OBSERVATIONS, _GROUP))
    logits = np.einsum("gnp,gp->gn", features, rng.normal(size=features.shape[::2]))
    signs = jnp.asarray(np.where(rng.uniform(size=logits.shape) < 1 / (1 + np.exp(-logits)), 1.0, -1.0))
    features = jnp.asarray(features)

    def logdensity(x):
        logits = jnp.einsum("gnp,gp->gn", features, x.reshape(-1, _GROUP), precision="highest")
        return -jnp.sum(jax.nn.softplus(-signs * logits)) - 0.5 * jnp.sum(x**2)

    return logdensity, lambda z: z


TARGETS = {"Gaussian": gaussian, "logistic regression": logistic}


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dimensions", description=__doc__.split("\n")[0])
    parser.add_argument("--largest", type=int, default=max(DIMS), metavar="D", help="leave out larger ones")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "dimensions")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in run([dim for dim in DIMS if dim <= options.largest], options.seeds):
        rows.append(row)
        print(*(f"{v:.4g}" if isinstance(v, float) else v for v in row.values()), flush=True)
        write(rows, options.out / "dimensions.csv")
    draw(rows, options.out / "dimensions.png")


def run(dims: list[int], num_seeds: int) -> Iterator[dict]:
    """A row for each dimension, target, form of trajectory and seed."""
    origin = {"commit": environment.commit(), "jax": jax.__version__}
    with jax.enable_x64(True):
        for dim in dims:
            for target, make in TARGETS.items():
                logdensity, spread = make(dim, np.random.default_rng(0))
                for trajectories in TRAJECTORIES:
                    for seed in range(num_seeds):
                        starts = jax.vmap(spread)(jax.random.normal(jax.random.key(seed), (NUM_CHAINS, dim)))
                        measured = measure(logdensity, trajectories, starts, jax.random.key(seed + 1))
                        yield {"target": target, "dim": dim, "trajectories": trajectories, "seed": seed} | (
                            measured | origin
                        )


def measure(logdensity, trajectories: str, starts, rng_key) -> dict:
    """A warm-up and a run of frozen chains, starts (num_chains, d)."""
    started = time.perf_counter()
    key_warmup, key = jax.random.split(rng_key)
    (state, parameters), info = hm.warmup(logdensity, TRAJECTORIES[trajectories], NUM_CHAINS).run(key_warmup, starts)
    dim = starts.shape[1]
    kept = np.unique(np.linspace(0, dim - 1, min(dim, _MOST_COORDINATES)).astype(int))

    @jax.jit
    def sample(key, state, parameters):
        step = hm.hmc(logdensity, **parameters).step
        return run_chains(
            step, key, state, NUM_DRAWS, lambda s, i: (s.position[:, kept], i.num_integration_steps, i.acceptance_rate)
        )[1]

    draws, num_gradients, rates = map(np.asarray, sample(key, state, parameters))
    draws = np.moveaxis(draws, 0, 1)
    ess, _, rhat = diagnostics.ess_and_rhat(draws)
    ess_of_squares = diagnostics.ess_and_rhat((draws - draws.mean((0, 1))) ** 2)[0]
    return {
        "gradients_per_draw": float(num_gradients.mean()),
        "ess_per_1000_gradients": float(1000 * min(ess.min(), ess_of_squares.min()) / num_gradients.sum()),
        "acceptance_rate": float(rates.mean()),
        "step_size": float(parameters["step_size"]),
        "max_rhat": float(rhat.max()),
        "warmup_steps": int(info.num_steps),
        "warmup_gradients": int(info.num_gradients.sum()),
        "seconds": time.perf_counter() - started,
    }


def write(rows: list[dict], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({name: f"{v:.5g}" if isinstance(v, float) else v for name, v in row.items()} for row in rows)


def draw(rows: list[dict], path: Path) -> None:
    """Medians over the seeds against d, log-log; a column of axes for each target."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no figure: matplotlib is not installed")
        return
    figure = Figure(figsize=(4 * len(TARGETS), 7), layout="constrained")
    quantities = {"gradients_per_draw": "gradients of a draw", "ess_per_1000_gradients": "ESS of 1000 gradients"}
    for of_quantity, (quantity, label) in zip(
        figure.subplots(2, len(TARGETS), sharex=True, sharey="row", squeeze=False), quantities.items(), strict=True
    ):
        for axes, target in zip(of_quantity, TARGETS, strict=True):
            for trajectories in TRAJECTORIES:
                values = {}
                for row in rows:
                    if (row["target"], row["trajectories"]) == (target, trajectories):
                        values.setdefault(row["dim"], []).append(row[quantity])
                axes.loglog(list(values), [np.median(v) for v in values.values()], marker="o", label=trajectories)
            axes.set(title=target, xlabel="d", ylabel=label)
            axes.grid(alpha=0.3)
            axes.legend()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
