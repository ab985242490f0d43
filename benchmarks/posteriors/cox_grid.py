"""Log-Gaussian Cox processes on a grid, simulated, and reference moments of their posteriors.

    python -m benchmarks.posteriors.cox_grid

writes `data/cox_grid.npz`: counts, mean, sd and smallest bulk ESS of 4 x 10,000 draws of BlackJAX's NUTS, which starts
at the mode and has the inverse of the Hessian there as its metric. The model is that of Moller, Syversveen &
Waagepetersen (1998), with their variance and number of points, on fewer cells and with another length.
"""

from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import environment
from householder_mcmc.results import diagnostics

KERNELS = ("exponential", "squared exponential")
SIDE, VARIANCE, LENGTH, JITTER = 16, 1.91, 0.1, 1e-4
PATH = Path(__file__).parents[1] / "data" / "cox_grid.npz"
_NUM_CHAINS, _NUM_BURN, _NUM_DRAWS = 4, 100, 10_000
_STEP_SIZE = 0.4  # accepts 0.8 where the whitened target is nearly a Gaussian in 256 dimensions


def level() -> float:
    """Mean of the log intensity: 126 points on the unit square."""
    return np.log(126) - VARIANCE / 2


def covariance(kernel: str) -> np.ndarray:
    """Of the log intensity in the cells of the unit square; kernel: "exponential" or "squared exponential"."""
    centres = (np.arange(SIDE) + 0.5) / SIDE
    x = np.stack(np.meshgrid(centres, centres), axis=-1).reshape(-1, 2)
    distances = np.linalg.norm(x[:, None] - x, axis=2) / LENGTH
    correlation = np.exp(-distances) if kernel == "exponential" else np.exp(-(distances**2) / 2)
    return VARIANCE * (correlation + JITTER * np.eye(SIDE**2))


def logdensity(kernel: str, counts):
    """f -> log-density of the log intensities (256,) given the counts."""
    precision = jnp.asarray(np.linalg.inv(covariance(kernel)))
    counts, area = jnp.asarray(counts), 1 / SIDE**2

    def function(f):
        centred = f - level()
        return jnp.sum(counts * f - area * jnp.exp(f)) - centred @ precision @ centred / 2

    return function


def simulate(kernel: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    f = level() + np.linalg.cholesky(covariance(kernel)) @ rng.normal(size=SIDE**2)
    return rng.poisson(np.exp(f) / SIDE**2)


@jax.enable_x64(True)
def reference(kernel: str) -> dict:
    """counts, mean and sd, each (256,), and the smallest bulk ESS of the draws that they are of."""
    counts = simulate(kernel)
    function = logdensity(kernel, counts)
    hessian = jax.jit(jax.hessian(function))

    @jax.jit
    def ascend(f, matrix):
        step = -jnp.linalg.solve(matrix, jax.grad(function)(f))
        return f + step / jnp.maximum(1, jnp.max(jnp.abs(step)))

    mode = jnp.full(SIDE**2, level())
    for _ in range(100):
        mode = ascend(mode, hessian(mode))
    assert jnp.max(jnp.abs(jax.grad(function)(mode))) < 1e-8
    nuts = blackjax.nuts(function, _STEP_SIZE, jnp.linalg.inv(-hessian(mode)))

    @jax.jit
    def run(key):
        def one_step(state, key):
            state, _ = nuts.step(key, state)
            return state, state.position

        keys = jax.random.split(key, _NUM_BURN + _NUM_DRAWS)
        return jax.lax.scan(one_step, nuts.init(mode), keys)[1][_NUM_BURN:]

    draws = np.stack([run(key) for key in jax.random.split(jax.random.key(0), _NUM_CHAINS)])
    ess, _, rhat = diagnostics.ess_and_rhat(draws)
    print(f"{kernel}: smallest ESS {ess.min():.0f}, R-hat {rhat.max():.4f}")
    return {"counts": counts, "mean": draws.mean(axis=(0, 1)), "sd": draws.std(axis=(0, 1)), "ess": ess.min()}


def main() -> None:
    with environment.pool() as pool:
        results = dict(zip(KERNELS, pool.map(reference, KERNELS), strict=True))
    np.savez(PATH, **{f"{kernel}/{name}": value for kernel, of in results.items() for name, value in of.items()})


if __name__ == "__main__":
    main()
