"""What a GPU has to show, in at most 8 minutes: precision, the times of all kernels, and whole runs of `hm.sample`.

    python -m benchmarks.on_gpu --out FOLDER

Writes FOLDER/CARD-checks.csv and FOLDER/CARD.csv, whose rows are those of `benchmarks.scaling`, and fails in the end if
a check does. All is done with JAX's default matrix products, which lose half the digits on a GPU unless asked not to.
What does not begin in time is left out, and printed.
"""

import argparse
import csv
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import householder_mcmc as hm
from benchmarks import scaling
from householder_mcmc.mcmc.chains import run_chains
from householder_mcmc.mcmc.hmc import LONGEST_STEP

_OPERATIONS = ("apply", "MALA step", "HMC transition", "adaptive step")
_FORMS = ("BlackJAX's", "BlackJAX's low rank", "compact", "leapfrog", "exact", "diagonal", "eigen", "two_ended")


class Sizes(NamedTuple):
    """cases: d, rank, chains, the most important first. runs: d, chains. precise: rank, d."""

    cases: tuple[tuple[int, int, int], ...]
    runs: tuple[tuple[int, int], ...]
    precise: tuple[int, int]


_OF_A_CARD = Sizes(
    cases=((1000, 32, 4), (1000, 32, 64), (1000, 32, 1000), (10**6, 32, 4), (10**6, 10, 64), (10**5, 10, 4)),
    runs=((1000, 4), (1000, 64), (1000, 1000)),
    precise=(32, 10**5),
)
_SMALLEST = Sizes(cases=((20, 3, 4),), runs=((20, 4),), precise=(3, 40))


class Check(NamedTuple):
    """A number that must not exceed its limit."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=440, help="nothing begins later")
    parser.add_argument("--smallest", action="store_true", help="all of it at a size for a CPU")
    options = parser.parse_args(arguments)
    stop = time.perf_counter() + options.seconds
    sizes = _SMALLEST if options.smallest else _OF_A_CARD
    device = jax.devices()[0]
    print(device.device_kind, jax.__version__, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    card = options.out / re.sub(r"\W+", "-", device.device_kind.lower())

    rank, dim = sizes.precise
    found, rows = [*precision(rank, dim), *exactness(dim)], []
    for size in sizes.runs:
        if time.perf_counter() < stop:
            checks, row = sampled(*size)
            found += checks
            rows.append(row)
    write(found, card.with_name(f"{card.name}-checks.csv"))
    rows += scaling.run(cases(sizes.cases), stop - time.perf_counter())
    if rows:
        scaling.write(rows, card.with_suffix(".csv"))
        print(scaling.table(rows))
    failed = [check.name for check in found if not check.holds]
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}")


def cases(sizes: Iterable[tuple[int, int, int]]) -> Iterator[scaling.Case]:
    for size in sizes:
        for case in scaling.of_size(*size):
            if case.operation in _OPERATIONS and case.form in _FORMS:
                yield case


def precision(rank: int, dim: int) -> list[Check]:
    """Largest errors of L^-1 L z, of V V^T after 1000 steps of Oja's rule, and of Q e_1 against the eigenvector."""
    scheme = hm.eigen(rank)

    @jax.jit
    def learn(key):
        def update(state, key):
            return scheme.update(state, jax.random.normal(key, (4, dim)).at[:, :rank].multiply(3)), None

        keys = jax.random.split(key, 1000)
        return jax.lax.scan(update, scheme.init(jax.random.normal(key, (4, dim))), keys)[0]

    rotation = learn(jax.random.key(0)).basis
    preconditioner = hm.Householder(rotation, jnp.linspace(1, 10, dim))
    z = jax.random.normal(jax.random.key(1), (dim,))
    eigenvectors = np.asarray(rotation.eigenvectors, np.float64)  # sums in float32 err by as much as is measured here
    errors = {
        "round trip": preconditioner.solve(preconditioner.apply(z)) - z,
        "orthonormality": eigenvectors @ eigenvectors.T - np.eye(rank),
        "first column of Q": rotation.apply(jnp.zeros(dim).at[0].set(1)) - rotation.eigenvectors[0],
    }
    return [
        Check(f"{name}, rank {rank}, d = {dim}", float(np.max(np.abs(error))), 1e-5) for name, error in errors.items()
    ]


def exactness(dim: int, num_chains: int = 4) -> list[Check]:
    """Of trajectories on their own Gaussian, of variances 1 to 100 and a map of rank 3: gradients, and rejections.

    The log-density there is about d / 2, which float32 rounds to multiples of 0.004 at d = 1e5.
    """
    rows = jax.random.normal(jax.random.key(0), (3, dim))
    preconditioner = hm.Householder(hm.reflections.compact(jnp.linalg.qr(rows.T)[0].T), jnp.geomspace(1, 10, dim))

    def logdensity(x):
        return -0.5 * jnp.sum(preconditioner.solve(x) ** 2)

    kernel = hm.hmc(logdensity, LONGEST_STEP, preconditioner, jnp.zeros(dim))

    @jax.jit
    def run(key):
        key_start, key = jax.random.split(key)
        z = jax.random.normal(key_start, (num_chains, dim))
        chains = jax.vmap(lambda z: kernel.init(preconditioner.apply(z)))(z)
        return run_chains(kernel.step, key, chains, 50, lambda _, info: info)[1]

    info: Any = run(jax.random.key(1))
    return [
        Check(f"gradients of an exact trajectory, d = {dim}", float(info.num_integration_steps.max()), 1),
        Check(f"its rejections, d = {dim}", float(1 - info.acceptance_rate.mean()), 0.02),
    ]


def sampled(dim: int, num_chains: int, num_warmup: int = 200, num_draws: int = 100) -> tuple[list[Check], dict]:
    """`hm.sample` with its own defaults on a Gaussian, of standard deviations 0.1 to 10, twice.

    A row: microseconds of a second run that compiles nothing, for each gradient that one chain makes one after the
    other; what the first one took more is its compilation. Checks of moments: over all coordinates the mean square of
    draws, and between the chains.
    """
    sds = jnp.geomspace(0.1, 10, dim)

    def logdensity(x):
        return -0.5 * jnp.sum((x / sds) ** 2)

    def run(seed):
        started = time.perf_counter()
        result = hm.sample(
            logdensity,
            jnp.zeros(dim),
            seed,
            num_chains=num_chains,
            num_warmup=num_warmup,
            num_draws=num_draws,
            progress=False,
        )
        return result, time.perf_counter() - started

    (_, first), (result, seconds) = run(0), run(1)
    num_gradients = int(result.warmup_info.num_gradients.max() + result.infos.num_integration_steps.sum(axis=1).max())
    z = result.draws["x"] / sds
    device = jax.devices()[0]
    row = {"operation": "hm.sample", "form": "two_ended", "dim": dim, "rank": min(32, dim), "chains": num_chains}
    row |= {"us": 1e6 * seconds / num_gradients, "bound_us": np.nan, "ratio": np.nan}
    row |= {"compile_seconds": first - seconds, "megabytes": np.nan}
    row |= {"device": f"{device.device_kind} ({device.platform})", "jax": jax.__version__}
    steps = result.infos.num_integration_steps
    size = f"hm.sample, d = {dim}, {num_chains} chains"
    return [
        Check(f"{size}: log of mean z^2", abs(float(np.log(np.mean(z**2)))), 0.1),
        Check(f"{size}: gradients beyond those of the first chain", float(np.max(np.abs(steps - steps[:1]))), 0),
    ], row


def write(checks: list[Check], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*Check._fields, "holds", "device"])
        for check in checks:
            print(f"{check.name}: {check.value:.3g}, limit {check.limit:g}", "" if check.holds else "FAILS", flush=True)
            writer.writerow([check.name, f"{check.value:.3g}", check.limit, check.holds, jax.devices()[0].device_kind])


if __name__ == "__main__":
    main()
