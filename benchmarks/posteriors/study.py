"""All methods on one target."""

import time

import jax

from benchmarks.posteriors import results
from benchmarks.posteriors.methods import METHODS, Budget
from benchmarks.posteriors.problems import PROBLEMS

NUM_CHAINS = 4


def budget(dim: int) -> Budget:
    """The learner meets more directions in more dimensions."""
    return Budget(warmup_mala=2000 + 4 * dim)


# At d of 1000 and more a dense metric costs more than the rest of the step. On the Gaussians there NUTS takes up to a
# thousand gradients a draw until its map is learnt, so a warm-up of each chain alone takes hours.
LEFT_OUT = {(target, "NUTS, BlackJAX dense") for target in PROBLEMS if target.endswith(("d = 1000", "d = 2519"))} | {
    (target, method)
    for target in PROBLEMS
    if target.endswith("d = 1000")
    for method in ("NUTS, BlackJAX diagonal", "NUTS, two_ended in each chain")
}


def run(target: str, methods: list[str], num_seeds: int) -> list[dict]:
    """All methods on one target."""
    rows = []
    with jax.enable_x64(True):
        problem = PROBLEMS[target]()
        for method in methods:
            if (target, method) in LEFT_OUT:
                continue
            for seed in range(num_seeds):
                started = time.perf_counter()
                starts = problem.starts(seed, NUM_CHAINS)
                sample = METHODS[method](problem.logdensity, starts, jax.random.key(seed), budget(starts.shape[1]))
                rows.append({"target": target, "method": method, "seed": seed} | results.judge(problem, sample))
                numbers = " ".join(f"{name} {v:.3g}" for name, v in rows[-1].items() if isinstance(v, float))
                print(f"{target} | {method} | {numbers} | {time.perf_counter() - started:.0f} s", flush=True)
    return rows
