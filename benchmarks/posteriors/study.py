"""All methods on one target."""

import time

import jax

from benchmarks import environment
from benchmarks.posteriors import results
from benchmarks.posteriors.methods import METHODS, Budget
from benchmarks.posteriors.problems import PROBLEMS, dimension

NUM_CHAINS = 4


# 100,000 gradients are too few here for any method.
HARD = {
    "synthetic logistic, d = 100",
    "stochastic volatility, d = 2519",
    "Cox process, squared exponential, d = 256",
}


def budget(target: str) -> Budget:
    return Budget(num_gradients=1_000_000, warmup=2000) if target in HARD else Budget()


# From d = 500 on a dense metric costs more than the rest of the step. On the Gaussians of d = 1000 NUTS takes up to a
# thousand gradients a draw until its map is learnt, so a warm-up of each chain alone takes hours. nutpie, which calls
# Python for each gradient, had not ended on stochastic volatility after ten minutes.
LEFT_OUT = {
    *((target, "NUTS, BlackJAX dense") for target in PROBLEMS if dimension(target) > 500),
    *((f"{kind} Gaussian, d = 1000", "NUTS, BlackJAX diagonal") for kind in ("first", "second")),
    *((f"{kind} Gaussian, d = 1000", "NUTS, two_ended in each chain") for kind in ("first", "second")),
    ("stochastic volatility, d = 2519", "NUTS, nutpie low rank"),
}


def run(target: str, methods: list[str], num_seeds: int) -> list[dict]:
    """All methods on one target."""
    rows, commit = [], environment.commit()
    with jax.enable_x64(True):
        problem = PROBLEMS[target]()
        for method in methods:
            if (target, method) in LEFT_OUT:
                continue
            for seed in range(num_seeds):
                started = time.perf_counter()
                starts = problem.starts(seed, NUM_CHAINS)
                sample = METHODS[method](problem.logdensity, starts, jax.random.key(seed), budget(target))
                row = {"target": target, "method": method, "seed": seed, "commit": commit}
                rows.append(row | results.judge(problem, sample))
                numbers = " ".join(f"{name} {v:.3g}" for name, v in rows[-1].items() if isinstance(v, float))
                print(f"{target} | {method} | {numbers} | {time.perf_counter() - started:.0f} s", flush=True)
    return rows
