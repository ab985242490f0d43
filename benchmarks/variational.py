"""The pre-chain baselines on the paper's Gaussians: `python -m benchmarks.variational [--output FILE]`.

Prints Markdown tables: the final KL(q || target), the condition number of the whitened target and the ESS of MALA with
the fitted map, of the corrected methods and the paper's variants; and time and memory of fits at d = 10,000. With
--output the tables also go to a file. CPU, float32; under 10 minutes on one core.

As in the paper: 2 chains started in equilibrium, 500 sqrt(d) steps, the step size adapted to 0.574, ESS of the second
half, summed over the chains, its median over coordinates. ESS is `blackjax.diagnostics.effective_sample_size`; the
authors' is that of R's coda, so that only the order of magnitude compares. Beside it, the explored variance: that of
the chains over the truth, along the leading eigenvector, 1 if explored.
"""

import argparse
import math
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

import householder_mcmc as hm
from benchmarks import environment
from benchmarks.paper.baselines import Fit, authors_gaussian
from householder_mcmc.variational import LowRankGaussian, fit, pbam, reverse_kl

# Medians over replicates of the authors' program (their median ESS; "corrected" is it with the fit's square root as L).
AUTHORS = {
    ("first", 50): {"pBaM, corrected": 439, "pBaM, paper's": 1378.6, "reverse KL, paper's": 82.3},
    ("first", 100): {"pBaM, corrected": 407.3, "pBaM, paper's": 1238.5, "reverse KL, paper's": 103.3},
    ("first", 200): {"pBaM, paper's": 381.3, "reverse KL, paper's": 439.8},
    ("second", 50): {"pBaM, corrected": 504.7, "pBaM, paper's": 509.5, "reverse KL, paper's": 18},
    ("second", 100): {"pBaM, corrected": 529, "pBaM, paper's": 701.3, "reverse KL, paper's": 14.2},
    ("second", 200): {},
}
RANKS = {"first": 3, "second": 32}
SEED = 0


def methods(dim):
    """By name. The paper's are with the settings of its program; the corrected reverse KL uses Adam."""
    to_map = LowRankGaussian.to_preconditioner
    descent = reverse_kl(optax.adam(optax.cosine_decay_schedule(0.05, 5000)))
    papers = authors_gaussian()
    return {
        "pBaM, corrected": Fit(pbam(10.0), LowRankGaussian.start, to_map, 100, 32),
        "pBaM, paper's": papers["pBaM"](dim),
        "reverse KL, corrected": Fit(descent, LowRankGaussian.start, to_map, 5000, 10),
        "reverse KL, paper's": papers["diagonal_plus_LR"](dim),
    }


def first(dim, rng):
    """`rank` variances near 100 and the others 0.1; the authors' basis. As a Gaussian of our family: exactly."""
    rank = RANKS["first"]
    basis = np.linalg.svd(np.full((dim, 1), dim**-0.5))[0][:, :rank].T
    variances = 100 + 0.1 * rng.normal(size=rank)
    return _gaussian(np.full(dim, 5.0), np.full(dim, 0.1), np.sqrt(variances - 0.1)[:, None] * basis)


def second(dim, rng, rank=RANKS["second"]):
    """A diagonal U(0, 1) plus a factor of `rank` standard normal rows."""
    factor = rng.normal(size=(rank, dim))
    return _gaussian(rng.normal(size=dim), rng.uniform(size=dim), factor)


TARGETS = {"first": first, "second": second}


def compare(name, dim):
    """Rows of the table for one target."""
    target = TARGETS[name](dim, np.random.default_rng(SEED))
    covariance = np.diag(np.asarray(target.diagonal, float)) + np.asarray(target.factor, float).T @ target.factor
    oracle = hm.LowRank.from_covariance(target.diagonal, target.factor)
    rows = [_row(name, dim, "exact covariance", 0.0, 0.0, oracle, target, covariance)]
    for label, method in methods(dim).items():
        gaussian, seconds = fit_in_seconds(method, target, RANKS[name])
        # the covariance that the method means to fit: the paper's pBaM fits the same as the corrected one
        divergence = float(gaussian.kl_divergence(target))
        rows.append(_row(name, dim, label, divergence, seconds, method.to_map(gaussian), target, covariance))
    return rows


def fit_in_seconds(method, target, rank):
    """The fit, and its time without compilation."""
    start = method.start(jnp.zeros_like(target.mean), rank)
    keys = jax.random.split(jax.random.key(SEED), 2)
    for key in keys:  # the first call compiles
        begin = time.perf_counter()
        gaussian, _ = fit(
            method.optimiser, target.log_density, start, key, method.num_steps, batch_size=method.batch_size
        )
    return gaussian, time.perf_counter() - begin


def median_ess(preconditioner, target, covariance):
    """(median ESS, explored variance) of two chains, with the step size adapted as they run."""
    num_steps = int(500 * math.sqrt(covariance.shape[0]))
    sampler = hm.adaptive_mala(target.log_density, hm.fixed(preconditioner), num_chains=2)
    state = sampler.init(target.sample(jax.random.key(SEED + 1), 2))

    @jax.jit
    def run(state, key):
        def one_step(state, key):
            state, _ = sampler.step(key, state)
            return state, state.chains.position

        return jax.lax.scan(one_step, state, jax.random.split(key, num_steps))[1]

    draws = np.asarray(run(state, jax.random.key(SEED + 2)), float)[num_steps // 2 :]
    of_chain = jax.jit(lambda x: blackjax.diagnostics.effective_sample_size(x[None]))
    ess = sum(np.asarray(of_chain(draws[:, chain].astype(np.float32))) for chain in range(2))
    eigenvalues, eigenvectors = np.linalg.eigh(covariance)
    explored = np.mean(np.var(draws @ eigenvectors[:, -1], axis=0)) / eigenvalues[-1]
    return np.median(ess), explored


def condition_number(preconditioner, covariance):
    """Of L^{-1} covariance L^{-T}."""
    root = np.asarray(preconditioner.to_dense(), float)
    whitened = np.linalg.solve(root, np.linalg.solve(root, covariance).T)
    eigenvalues = np.linalg.eigvalsh((whitened + whitened.T) / 2)
    return eigenvalues[-1] / eigenvalues[0]


def large(label):
    """Print a row on one fit at d = 10,000, rank 10. Its memory is read as Linux gives it."""
    target = second(10_000, np.random.default_rng(SEED), rank=10)
    descent = reverse_kl(optax.adam(optax.cosine_decay_schedule(0.1, 4000)))
    method = {
        "pBaM, 500 x 32": Fit(pbam(100.0), LowRankGaussian.start, None, 500, 32),
        "reverse KL, Adam, 4000 x 8": Fit(descent, LowRankGaussian.start, None, 4000, 8),
    }[label]
    begin = time.perf_counter()
    gaussian, seconds = fit_in_seconds(method, target, 10)
    total = time.perf_counter() - begin
    start = float(LowRankGaussian.start(target.mean, 10).kl_divergence(target))
    # the high-water mark of this program alone: getrusage's includes the process it was forked from
    memory = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(
        f"| {label} | {start:.0f} | {float(gaussian.kl_divergence(target)):.0f} | {seconds:.1f} | "
        f"{total - seconds:.1f} | {int(memory[1]) / 2**20:.2f} |"
    )


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.variational", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="Markdown file to write")
    parser.add_argument("--large", help=argparse.SUPPRESS)  # one fit in a process of its own, to measure its memory
    arguments = parser.parse_args()
    if arguments.large:
        large(arguments.large)
        return
    columns = "target", "d", "method", "KL", "fit seconds", "condition number", "median ESS", "explored", "authors' ESS"
    lines = [
        "# The pre-chain baselines on the paper's Gaussians",
        "",
        "Written by `python -m benchmarks.variational --output benchmarks/VARIATIONAL.md`; `benchmarks/variational.py`",
        f"says what is measured. {platform.machine()} CPU, {len(os.sched_getaffinity(0))} core(s), "
        f"jax {jax.__version__}, blackjax {blackjax.__version__}, seed {SEED}.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    _emit(lines)
    with environment.pool(1) as pool:  # one after another, for their times
        for name in TARGETS:
            for dim in (50, 100, 200):
                rows = pool.submit(compare, name, dim).result()
                _emit(rows)
                lines += rows
    columns = "fit, steps x batch", "KL at the start", "KL", "seconds", "of the first call, with compilation"
    header = [
        "",
        "d = 10,000, rank 10 (second Gaussian):",
        "",
        f"| {' | '.join(columns)} | peak memory, GB |",
        "|---" * len(columns) + "|---|",
    ]
    _emit(header)
    lines += header
    for label in ("pBaM, 500 x 32", "reverse KL, Adam, 4000 x 8"):
        command = [sys.executable, "-m", "benchmarks.variational", "--large", label]
        variables = environment.ONE_THREAD | os.environ
        row = subprocess.run(command, check=True, capture_output=True, text=True, env=variables).stdout.strip()
        _emit([row])
        lines.append(row)
    if arguments.output:
        arguments.output.write_text("\n".join(lines) + "\n")


def _gaussian(*parts):
    return LowRankGaussian(*(jnp.asarray(part, jnp.float32) for part in parts))


def _row(name, dim, label, divergence, seconds, preconditioner, target, covariance):
    ess, explored = median_ess(preconditioner, target, covariance)
    condition = condition_number(preconditioner, covariance)
    reference = AUTHORS[name, dim].get(label, "")
    return (
        f"| {name} | {dim} | {label} | {divergence:.3g} | {seconds:.1f} | {condition:.3g} | {ess:.0f} | "
        f"{explored:.2f} | {reference} |"
    )


def _emit(lines):
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
