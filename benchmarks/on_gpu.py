"""What a GPU has to show, in at most 8 minutes: precision, throughput with 1000 chains, and the times of `scaling`.

    python -m benchmarks.on_gpu --out FOLDER

Precision is checked with JAX's default matrix products, which lose half the digits on a GPU unless asked not to.
"""

import argparse
import functools
import itertools
import time
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import householder_mcmc as hm
from benchmarks import scaling
from householder_mcmc.mcmc.chains import step_chains

NUM_CHAINS, DIM, NUM_STEPS = 1000, 1000, 200
_SIZES = [(10**6, 10, 64), (10**6, 10, 4), (10**3, 10, 4), (10**5, 10, 4), (10**4, 10, 4), (10**3, 32, 64)]


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=330, help="for the times; the rest takes about two minutes")
    options = parser.parse_args(arguments)
    print(jax.devices()[0].device_kind, jax.__version__, flush=True)
    print("largest errors of the round trip, of orthonormality, and of the first column of Q")
    for rank, dim in ((10, 10**3), (32, 10**5), (10, 10**6)):
        print(f"rank {rank}, d = {dim}: {precision(rank, dim)}", flush=True)
    ours, theirs = throughput(hm.eigen(10), DIM, NUM_CHAINS), throughput(None, DIM, NUM_CHAINS)
    print(f"{NUM_CHAINS} chains, d = {DIM}: adaptive eigen {ours:.4g}, BlackJAX's MALA {theirs:.4g} chain-steps/s")
    rows = scaling.run(itertools.chain.from_iterable(scaling.of_size(*size) for size in _SIZES), options.seconds)
    options.out.mkdir(parents=True, exist_ok=True)
    scaling.write(rows, options.out / "scaling.csv")
    print(scaling.table(rows))


def precision(rank: int, dim: int) -> tuple[float, ...]:
    """Largest errors of L^{-1} L z, of V V^T after 1000 steps of Oja's rule, and of Q e_1 against the eigenvector."""
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
    errors = (
        preconditioner.solve(preconditioner.apply(z)) - z,
        eigenvectors @ eigenvectors.T - np.eye(rank),
        rotation.apply(jnp.zeros(dim).at[0].set(1)) - rotation.eigenvectors[0],
    )
    return tuple(float(np.max(np.abs(error))) for error in errors)


def throughput(scheme: hm.Scheme | None, dim: int, num_chains: int) -> float:
    """Chain-steps per second on a standard Gaussian, adaptive with a scheme, BlackJAX's MALA without."""

    def logdensity(x):
        return -0.5 * jnp.sum(x**2)

    positions = jax.random.normal(jax.random.key(0), (num_chains, dim))
    if scheme is None:
        kernel = blackjax.mala(logdensity, 0.05)
        state = jax.vmap(kernel.init)(positions)
        step = functools.partial(step_chains, kernel.step)
    else:
        sampler = hm.adaptive_mala(logdensity, scheme, num_chains)
        state, step = sampler.init(positions), sampler.step

    @jax.jit
    def run(state, key):
        def one(state, key):
            return step(key, state)[0], None

        return jax.lax.scan(one, state, jax.random.split(key, NUM_STEPS))[0]

    state = jax.block_until_ready(run(state, jax.random.key(1)))
    started = time.perf_counter()
    jax.block_until_ready(run(state, jax.random.key(2)))
    return num_chains * NUM_STEPS / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
