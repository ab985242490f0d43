"""NUTS after BlackJAX's warm-ups: `hm.metric_core` beside the diagonal default and BlackJAX's low-rank recipe.

    python -m benchmarks.metric_core

Four chains, each with a warm-up of its own (1000 draws) and 1000 draws; medians over three seeds. A gradient is a
leapfrog step; ESS is bulk ESS, the smallest and the median over coordinates. Explored is the smallest and the largest
ratio of the variance of all draws to the truth, along the leading eigenvectors of a Gaussian and over the parameters
elsewhere. The table goes to standard output, in Markdown.
"""

from collections.abc import Callable
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import householder_mcmc as hm
from benchmarks import targets
from householder_mcmc import item_response, report

NUM_CHAINS, NUM_WARMUP, NUM_DRAWS, NUM_SEEDS = 4, 1000, 1000, 3


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


def num_steps_only(state, info, adaptation_state):
    return info.num_integration_steps


def staged(metric, logdensity):
    warmup = blackjax.staged_adaptation(blackjax.nuts, logdensity, metric=metric, adaptation_info_fn=num_steps_only)
    return warmup, lambda info: info.sum()


def window_low_rank(rank, logdensity):
    warmup = blackjax.window_adaptation_low_rank(blackjax.nuts, logdensity, max_rank=rank)
    return warmup, lambda info: info.info.num_integration_steps.sum()


WARMUPS = {
    "`welford_diag`": lambda rank, logdensity: staged("welford_diag", logdensity),
    "BlackJAX low rank": window_low_rank,
    "`hm.metric_core`": lambda rank, logdensity: staged(hm.metric_core(rank), logdensity),
}


def run(problem, build_warmup, seed):
    """ESS per 1000 gradients (4,): min and median, then with the warm-up; the range of exploration (2,); R-hat."""
    warmup, count = build_warmup(problem.rank, problem.logdensity)

    def one_chain(args):
        key_warmup, key_sample = jax.random.split(args[0])
        (state, parameters), info = warmup.run(key_warmup, args[1], NUM_WARMUP)
        kernel = blackjax.nuts(problem.logdensity, **parameters)

        def one_step(state, key):
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps)

        _, (draws, steps) = jax.lax.scan(one_step, state, jax.random.split(key_sample, NUM_DRAWS))
        return draws, count(info), steps.sum()

    keys = jax.random.split(jax.random.key(seed), NUM_CHAINS)
    draws, warmup_steps, steps = jax.jit(lambda *args: jax.lax.map(one_chain, args))(keys, problem.starts(seed))
    ess, _, rhat = report.ess_and_rhat(np.asarray(draws))
    sizes = np.array([ess.min(), np.median(ess)])
    explored = np.asarray(problem.explored(draws))
    with_warmup = sizes / (steps.sum() + warmup_steps.sum())
    return np.r_[1e3 * sizes / steps.sum(), 1e3 * with_warmup, explored.min(), explored.max(), rhat.max()]


def main():
    problems = [
        gaussian("first Gaussian, d = 100", 10, lambda rng: targets.gaussian_first(100, rng, 3)),
        gaussian("second Gaussian, d = 100", 10, lambda rng: targets.gaussian_second(100, rng)),
        gaussian("second Gaussian, d = 100", 32, lambda rng: targets.gaussian_second(100, rng)),
        item_response_problem(),
    ]
    print("| target | rank | warm-up | ESS per 1000 gradients, min / median | with warm-up | explored | max R-hat |")
    print("|---|---|---|---|---|---|---|")
    for problem in problems:
        for name, build_warmup in WARMUPS.items():
            values = np.median([run(problem, build_warmup, seed) for seed in range(NUM_SEEDS)], axis=0)
            columns = "{:.1f} / {:.1f} | {:.1f} / {:.1f} | {:.2f}-{:.2f} | {:.2f}".format(*values)
            print(f"| {problem.name} | {problem.rank} | {name} | {columns} |", flush=True)


if __name__ == "__main__":
    main()
