"""Samplers at about equal numbers of gradients, warm-up included, on the paper's targets and on real posteriors.

    python -m benchmarks.posteriors [--only TARGET] [--seeds N] [--out FILE.csv]

Four chains. MALA: a warm-up of 5000 steps, then frozen draws up to 100,000 gradients in all; NUTS: BlackJAX's warm-up
of 500 draws a chain, then blocks of 100 draws until 100,000 gradients are used, 300 draws at least. ESS is ArviZ's bulk
ESS per 1000 gradients of warm-up and sampling together, of x (smallest and median over what `statistics` returns) and
of (x - mean)^2 (smallest). Explored is the range of their variance over the truth; an ESS counts (column `counts`) if
that lies in 0.8-1.25 and R-hat is below 1.05. Seconds are of sampling alone. NUTS with a diagonal metric is left out at
d = 1000, where trees of a thousand steps take hours.
"""

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import householder_mcmc as hm
from benchmarks import metric_core, targets
from householder_mcmc import item_response, report

NUM_CHAINS, NUM_GRADIENTS, NUM_WARMUP_MALA, NUM_WARMUP_NUTS = 4, 100_000, 5000, 500
BLOCK, FEWEST_DRAWS = 100, 300
RANK = 32


class Problem(NamedTuple):
    """starts: seed -> (num_chains, d). statistics: draws (..., d) -> (..., p), whose variances (p,) are known."""

    logdensity: Callable
    starts: Callable
    statistics: Callable
    variances: np.ndarray


def of_target(target, statistics=lambda draws: draws, variances=None):
    """Chains start in equilibrium, or at the mode: as in the paper."""
    variances = np.diag(target.covariance()) if variances is None else variances
    target = type(target)(*(jnp.asarray(field, jnp.float32) for field in target))

    def starts(seed):
        return jnp.asarray(target.start(np.random.default_rng(seed), NUM_CHAINS), jnp.float32)

    return Problem(target.logdensity, starts, statistics, np.asarray(variances))


def xy_model():
    """The cosine and sine of each angle; all angles are uniform on the circle."""
    target = targets.xy(20, np.random.default_rng(0))
    return of_target(target, lambda draws: np.concatenate([np.cos(draws), np.sin(draws)], axis=-1), np.full(40, 0.5))


def regression(name):
    """Bayesian logistic regression, weights ~ N(0, 1); chains start in draws of the prior."""
    data = np.load(Path(__file__).parent / "data" / f"{name}.npz")
    features, labels = jnp.asarray(data["features"], jnp.float32), jnp.asarray(data["labels"], jnp.float32)

    def logdensity(weights):
        logits = jnp.matmul(features, weights, precision="highest")
        return jnp.sum(labels * logits - jnp.logaddexp(0, logits)) - 0.5 * jnp.sum(weights**2)

    def starts(seed):
        return jax.random.normal(jax.random.key(seed), (NUM_CHAINS, features.shape[1]))

    return Problem(logdensity, starts, lambda draws: draws, data["weights_sd"] ** 2)


def item_response_model():
    """Chains start in draws of the prior."""
    problem, (_, _, reference) = metric_core.item_response_problem(), item_response.load()
    sd = np.asarray(ravel_pytree(reference.sd)[0])
    return Problem(problem.logdensity, problem.starts, lambda draws: draws, sd**2)


PROBLEMS = {
    "first Gaussian, d = 100": lambda: of_target(targets.gaussian_first(100, np.random.default_rng(0), 3)),
    "second Gaussian, d = 100": lambda: of_target(targets.gaussian_second(100, np.random.default_rng(0))),
    "synthetic logistic, d = 100": lambda: of_target(targets.logistic(100, np.random.default_rng(0))),
    "XY, d = 20": xy_model,
    "breast cancer, d = 31": lambda: regression("breast_cancer"),
    "German credit, d = 25": lambda: regression("german_credit"),
    "item response, d = 501": item_response_model,
    "first Gaussian, d = 1000": lambda: of_target(targets.gaussian_first(1000, np.random.default_rng(0), 3)),
    "second Gaussian, d = 1000": lambda: of_target(targets.gaussian_second(1000, np.random.default_rng(0))),
}


def mala(scheme):
    def run(logdensity, starts, key):
        num_draws = NUM_GRADIENTS // NUM_CHAINS - NUM_WARMUP_MALA
        warmup = hm.warmup(logdensity, scheme(starts.shape[1]), NUM_CHAINS)

        def program(key, starts):
            key_warmup, key_sample = jax.random.split(key)
            (state, parameters), _ = warmup.run(key_warmup, starts, NUM_WARMUP_MALA)
            step = jax.vmap(hm.mala(logdensity, **parameters).step)

            def one_step(state, key):
                state, _ = step(jax.random.split(key, NUM_CHAINS), state)
                return state, state.position

            return jax.lax.scan(one_step, state, jax.random.split(key_sample, num_draws))[1]

        compiled = jax.jit(program).lower(key, starts).compile()
        started = time.perf_counter()
        draws = np.asarray(compiled(key, starts))
        return draws, NUM_GRADIENTS, time.perf_counter() - started

    return run


def nuts(build):
    """build: (logdensity, d) -> (warm-up, info -> leapfrog steps of it)."""

    def run(logdensity, starts, key):
        warmup, count = build(logdensity, starts.shape[1])
        key_warmup, key = jax.random.split(key)

        @jax.jit
        def adapt(key, starts):
            def one_chain(key_and_start):
                (state, parameters), info = warmup.run(*key_and_start, NUM_WARMUP_NUTS)
                return state, parameters, count(info)

            return jax.lax.map(one_chain, (jax.random.split(key, NUM_CHAINS), starts))

        @jax.jit
        def sample(key, state, parameters):
            def one_chain(args):
                key, state, parameters = args
                kernel = blackjax.nuts(logdensity, **parameters)

                def one_step(state, key):
                    state, info = kernel.step(key, state)
                    return state, (state.position, info.num_integration_steps)

                state, (draws, steps) = jax.lax.scan(one_step, state, jax.random.split(key, BLOCK))
                return state, draws, steps.sum()

            return jax.lax.map(one_chain, (jax.random.split(key, NUM_CHAINS), state, parameters))

        state, parameters, num_gradients = adapt(key_warmup, starts)
        total, blocks, started = int(num_gradients.sum()), [], time.perf_counter()
        while total < NUM_GRADIENTS or len(blocks) * BLOCK < FEWEST_DRAWS:
            key, key_block = jax.random.split(key)
            state, draws, num_gradients = sample(key_block, state, parameters)
            blocks.append(np.asarray(draws))
            total += int(num_gradients.sum())
        return np.moveaxis(np.concatenate(blocks, axis=1), 0, 1), total, time.perf_counter() - started

    return run


def _staged(metric):
    return nuts(lambda logdensity, dim: metric_core.staged(metric, logdensity))


METHODS = {
    "MALA, two_ended": mala(lambda dim: hm.two_ended(RANK)),
    "MALA, eigen": mala(lambda dim: hm.eigen(min(RANK, dim), gains=hm.AVERAGED_GAINS)),
    "MALA, diagonal": mala(lambda dim: hm.diagonal()),
    "NUTS, two_ended": _staged(hm.metric_core(hm.two_ended(RANK))),
    "NUTS, BlackJAX low rank": nuts(lambda logdensity, dim: metric_core.window_low_rank(min(RANK, dim), logdensity)),
    "NUTS, BlackJAX dense": _staged("welford_dense"),
    "NUTS, BlackJAX diagonal": _staged("welford_diag"),
}


def judge(problem, draws, num_gradients, seconds) -> dict:
    """draws (num_draws, num_chains, d)."""
    x = np.moveaxis(np.asarray(problem.statistics(draws)), 0, 1)
    if not np.isfinite(x).all():
        return {"num_gradients": num_gradients, "counts": False}
    ess, _, rhat = report.ess_and_rhat(x)
    ess_of_squares, _, _ = report.ess_and_rhat((x - x.mean(axis=(0, 1))) ** 2)
    explored = x.var(axis=(0, 1), dtype=np.float64) / problem.variances
    return {
        "num_gradients": num_gradients,
        "min_ess": 1e3 * ess.min() / num_gradients,
        "median_ess": 1e3 * np.median(ess) / num_gradients,
        "min_ess_of_squares": 1e3 * ess_of_squares.min() / num_gradients,
        "min_ess_per_second": ess.min() / seconds,
        "max_rhat": rhat.max(),
        "min_explored": explored.min(),
        "max_explored": explored.max(),
        "counts": bool(explored.min() > 0.8 and explored.max() < 1.25 and rhat.max() < 1.05),
    }


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.posteriors", description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=PROBLEMS, help="run only these; may be repeated")
    parser.add_argument("--methods", action="append", choices=METHODS, help="run only these; may be repeated")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "posteriors.csv")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.only or PROBLEMS:
        problem = PROBLEMS[name]()
        for method in options.methods or METHODS:
            if name.endswith("1000") and method == "NUTS, BlackJAX diagonal":
                continue
            for seed in range(options.seeds):
                result = METHODS[method](problem.logdensity, problem.starts(seed), jax.random.key(seed))
                rows.append({"target": name, "method": method, "seed": seed} | judge(problem, *result))
                numbers = {key: f"{v:.3g}" for key, v in rows[-1].items() if isinstance(v, float | np.floating)}
                print(
                    name,
                    "|",
                    method,
                    "|",
                    *(f"{key} {v}" for key, v in numbers.items()),
                    rows[-1]["counts"],
                    flush=True,
                )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(max(rows, key=len)))
        writer.writeheader()
        writer.writerows(
            {key: f"{v:.4g}" if isinstance(v, float | np.floating) else v for key, v in row.items()} for row in rows
        )
    print(table(rows))


def table(rows) -> str:
    """Markdown: medians over the seeds; a dash where less than half of the runs count."""
    lines = ["| target | method | ESS of x, min / median | of squares, min | explored | R-hat |", "|" + "---|" * 6]
    for target, method in dict.fromkeys((row["target"], row["method"]) for row in rows):
        chosen = [row for row in rows if (row["target"], row["method"]) == (target, method)]
        if not all("min_ess" in row for row in chosen):
            lines.append(f"| {target} | {method} | not finite | | | |")
            continue
        values = {key: np.median([row[key] for row in chosen]) for key in chosen[0] if key not in ("target", "method")}
        mark = "" if values["counts"] >= 0.5 else " (does not count)"
        lines.append(
            f"| {target} | {method} | {values['min_ess']:.3g} / {values['median_ess']:.3g}{mark} "
            f"| {values['min_ess_of_squares']:.3g} | {values['min_explored']:.2f}-{values['max_explored']:.2f} "
            f"| {values['max_rhat']:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
