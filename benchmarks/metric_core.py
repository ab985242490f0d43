"""NUTS after BlackJAX's warm-ups: `hm.metric_core` beside the diagonal default and BlackJAX's low-rank recipe.

    python -m benchmarks.metric_core

Four chains, each with a warm-up of its own (1000 draws) and 1000 draws; medians over three seeds. A gradient is a
leapfrog step; ESS is bulk ESS, the smallest and the median over coordinates. Explored is the smallest and the largest
ratio of the variance of all draws to the truth, along the leading eigenvectors of a Gaussian and over the parameters
elsewhere. The table goes to standard output, in Markdown.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import householder_mcmc as hm
from benchmarks import environment, targets
from benchmarks.posteriors import methods
from householder_mcmc.cli import item_response
from householder_mcmc.results import diagnostics

NUM_CHAINS, NUM_SEEDS = 4, 3
BUDGET = methods.Budget(num_gradients=0, warmup=1000, fewest_draws=1000)


class Problem(NamedTuple):
    """starts: seed -> (num_chains, d). explored: draws (num_chains, num_draws, d) -> ratios of variances."""

    name: str
    rank: int
    logdensity: Callable
    starts: Callable
    explored: Callable


def gaussian(name, rank, build):
    """Chains start in equilibrium, as in the paper."""
    target = build(np.random.default_rng(0))
    target = type(target)(*(jnp.asarray(field, jnp.float32) for field in target))

    def explored(draws):
        return target.leading(draws).var(axis=(0, 1)) / target.variances

    def starts(seed):
        return jnp.asarray(target.start(np.random.default_rng(seed), NUM_CHAINS), jnp.float32)

    return Problem(name, rank, target.logdensity, starts, explored)


def item_response_problem():
    """Chains start in draws of the prior."""
    logdensity, initial_position, reference = item_response.load()
    _, unravel = ravel_pytree(initial_position(jax.random.key(0)))
    sd = ravel_pytree(reference.sd)[0]

    def starts(seed):
        keys = jax.random.split(jax.random.key(seed), NUM_CHAINS)
        return jax.vmap(lambda key: ravel_pytree(initial_position(key))[0])(keys)

    return Problem(
        "item response, d = 501",
        10,
        lambda x: logdensity(unravel(x)),
        starts,
        lambda draws: draws.var(axis=(0, 1)) / sd**2,
    )


PROBLEMS = (
    lambda: gaussian("first Gaussian, d = 100", 10, lambda rng: targets.gaussian_first(100, rng, 3)),
    lambda: gaussian("second Gaussian, d = 100", 10, lambda rng: targets.gaussian_second(100, rng)),
    lambda: gaussian("second Gaussian, d = 100", 32, lambda rng: targets.gaussian_second(100, rng)),
    item_response_problem,
)
WARMUPS = {
    "`welford_diag`": lambda rank: methods.staged("welford_diag"),
    "BlackJAX low rank": methods.window_low_rank,
    "`hm.metric_core(hm.eigen(rank, 'isotropic'))`": lambda rank: methods.staged(
        hm.metric_core(hm.eigen(rank, "isotropic"))
    ),
    "`hm.metric_core(rank)`": lambda rank: methods.staged(hm.metric_core(rank)),
}


def run(problem, adapt, seed):
    """ESS per 1000 gradients (4,): min and median, then with the warm-up; the range of exploration (2,); R-hat."""
    nuts = methods.trajectories(blackjax.nuts, adapt)
    sample = nuts(problem.logdensity, problem.starts(seed), jax.random.key(seed), BUDGET)
    draws = np.moveaxis(sample.draws, 0, 1)
    ess, _, rhat = diagnostics.ess_and_rhat(draws)
    sizes = 1e3 * np.array([ess.min(), np.median(ess)])
    explored = np.asarray(problem.explored(draws))
    alone = sizes / (sample.num_gradients - sample.num_warmup_gradients)
    return np.r_[alone, sizes / sample.num_gradients, explored.min(), explored.max(), rhat.max()]


def row(number, warmup):
    """The line of the table of `PROBLEMS[number]` with a warm-up of `WARMUPS`."""
    problem = PROBLEMS[number]()
    adapt = WARMUPS[warmup](problem.rank)
    values = np.median([run(problem, adapt, seed) for seed in range(NUM_SEEDS)], axis=0)
    columns = "{:.1f} / {:.1f} | {:.1f} / {:.1f} | {:.2f}-{:.2f} | {:.2f}".format(*values)
    return f"| {problem.name} | {problem.rank} | {warmup} | {columns} |"


def main():
    print("| target | rank | warm-up | ESS per 1000 gradients, min / median | with warm-up | explored | max R-hat |")
    print("|---|---|---|---|---|---|---|")
    with environment.pool() as pool:
        for line in pool.map(row, *zip(*itertools.product(range(len(PROBLEMS)), WARMUPS), strict=True)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
