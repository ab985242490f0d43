"""Run one configuration, all replicates in one program, and measure it."""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.effective_size import effective_size
from benchmarks.paper.experiments import Experiment
from benchmarks.paper.settings import Learner
from householder_mcmc import adaptive_mala
from householder_mcmc.results import diagnostics

RECORD_EVERY = 200
_NUM_COORDINATES = 4  # whose bulk ESS and R-hat are measured; both sort the draws


class Program(NamedTuple):
    """Compiled functions of one configuration, and the seconds that took.

    fit: (keys, targets) -> what is fitted, or None. chain: (keys, targets, fitted, positions) -> see `build`.
    """

    fit: jax.stages.Compiled | None
    chain: jax.stages.Compiled
    seconds: float


class Timing(NamedTuple):
    """Seconds, for all replicates together, of compilation, the fit before the chain, and the chain (wall and CPU)."""

    compilation: float
    fit: float
    chain: float
    chain_cpu: float


class Sample(NamedTuple):
    """draws (replicates, chains, kept, d), float32: the states from number `first_kept` on; the start is number 0.
    sigma (replicates,): final. recovery (records, replicates): see `_distance`, else None.
    """

    draws: np.ndarray
    sigma: np.ndarray
    recovery: np.ndarray | None
    timing: Timing


def first_kept(num_steps: int) -> int:
    """The authors measure ESS on states floor((n + 1) / 2) to n + 1 of n + 1, counted from 1."""
    return (num_steps + 1) // 2 - 1


def stack(trees):
    """A tree of arrays with a leading axis from a list of trees."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def build(
    targets, positions, learner: Learner, num_steps: int, records_recovery: bool = False, is_quick: bool = False
) -> Program:
    """Compile adaptive MALA on stacked targets from positions (replicates, chains, d). May run in a thread.

    is_quick: compile in half the time a program that takes two to four times as long.
    """
    options = {"xla_backend_optimization_level": 0} if is_quick else None
    num_replicates, num_chains, _ = positions.shape
    start = first_kept(num_steps)

    def init(target, fitted, position):
        return adaptive_mala.init(position, target.logdensity, learner.scheme(target, fitted), num_chains)

    def kernel(key, target, fitted, state):
        step = adaptive_mala.build_kernel(learner.scheme(target, fitted), step_size_gain=learner.step_size_gain)
        return step(key, state, target.logdensity)[0]

    def distance(target, fitted, state):
        return _distance(learner.scheme(target, fitted).preconditioner(state.scheme), target.directions[0])

    def chain(keys, targets, fitted, positions):
        """Draws (kept, replicates, chains, d), sigma (replicates,), and records (num_steps, replicates) or None."""

        def step(carry, count):
            """The step to state number `count`; slot 0 of the draws is overwritten until the first kept state."""
            states, draws = carry
            step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, count)
            states = jax.vmap(kernel)(step_keys, targets, fitted, states)
            draws = draws.at[jnp.maximum(count - start, 0)].set(states.position.astype(jnp.float32))
            record = None
            if records_recovery:
                record = jax.lax.cond(
                    count % RECORD_EVERY == 0,
                    lambda: jax.vmap(distance)(targets, fitted, states),
                    lambda: jnp.zeros(num_replicates),
                )
            return (states, draws), record

        states = jax.vmap(init)(targets, fitted, positions)
        draws = jnp.zeros((num_steps - start + 1, *positions.shape), jnp.float32)
        draws = draws.at[0].set(positions.astype(jnp.float32))
        (states, draws), records = jax.lax.scan(step, (states, draws), jnp.arange(1, num_steps + 1))
        return draws, jnp.exp(states.log_sigma), records

    started = time.perf_counter()
    with jax.enable_x64(True):  # the authors' program computes in double precision
        keys = jax.random.split(jax.random.key(0), num_replicates)
        fit, fitted = None, None
        if learner.fit is not None:
            fit_all = jax.jit(jax.vmap(learner.fit))
            fitted = jax.eval_shape(fit_all, keys, targets)
            fit = fit_all.lower(keys, targets).compile(options)
        compiled = jax.jit(chain).lower(keys, targets, fitted, positions).compile(options)
    return Program(fit, compiled, time.perf_counter() - started)


def sample(rng_key, program: Program, targets, positions) -> Sample:
    """Run a program on what it was built for."""
    with jax.enable_x64(True):
        key_fit, key_chain = jax.random.split(rng_key)
        fit_keys, keys = (jax.random.split(key, len(positions)) for key in (key_fit, key_chain))
        fitted, seconds_fit = None, 0.0
        if program.fit is not None:
            fitted, seconds_fit, _ = _timed(program.fit, fit_keys, targets)
        (draws, sigma, records), seconds, cpu_seconds = _timed(program.chain, keys, targets, fitted, positions)
    recovery = None if records is None else np.asarray(records)[RECORD_EVERY - 1 :: RECORD_EVERY]
    timing = Timing(program.seconds, seconds_fit, seconds, cpu_seconds)
    return Sample(np.asarray(draws).transpose(1, 2, 0, 3), np.asarray(sigma), recovery, timing)


def _timed(function, *args):
    """The result, and seconds of wall clock and CPU."""
    started, cpu_started = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(function(*args))
    return result, time.perf_counter() - started, time.process_time() - cpu_started


def _distance(preconditioner, direction):
    """sin^2 of the angle between the leading eigenvector of L L^T and a unit vector."""
    root = preconditioner.to_dense()
    leading = jnp.linalg.eigh(jnp.matmul(root, root.T, precision="highest"))[1][:, -1]
    return 1 - jnp.vdot(leading, direction) ** 2


def measure(experiment: Experiment, dim: int, sampled: Sample, targets: list) -> list[dict]:
    """One row of results per replicate."""
    num_steps, timing = experiment.num_steps(dim), sampled.timing
    num_replicates, num_chains, _, _ = sampled.draws.shape
    iterations = num_steps * num_replicates
    rows = []
    for replicate, (draws, target) in enumerate(zip(sampled.draws, targets, strict=True)):
        draws = draws.astype(float)  # (chains, kept, d)
        sizes = {
            column: effective_size(np.swapaxes(view(draws), 1, 2))[0].sum(axis=0)
            for column, view in experiment.views.items()
        }
        leading = target.leading(draws)
        explored = leading.var(axis=1).mean(axis=0) / target.variances
        coordinates = np.linspace(0, dim - 1, _NUM_COORDINATES).astype(int)
        counted = [experiment.views[column](draws[..., coordinates]) for column in experiment.counted]
        bulk, _, rhat = diagnostics.ess_and_rhat(np.concatenate([*counted, leading], axis=2))
        rows.append(
            {
                "replicate": replicate + 1,
                "iterations": num_steps,
                "chains": num_chains,
                "minESS": np.min(sizes["medESS"]),
                "seconds": (timing.fit + timing.chain) / num_replicates,
                "us_per_iter": 1e6 * timing.chain_cpu / iterations,
                "cpu_seconds": timing.chain_cpu / num_replicates,
                "us_per_iter_wall": 1e6 * timing.chain / iterations,
                "acc_2nd_half": np.mean(np.any(np.diff(draws, axis=1) != 0, axis=2)),
                "setup_seconds": timing.fit / num_replicates,
                "sigma_final": sampled.sigma[replicate],
            }
            | {column: np.median(size) for column, size in sizes.items()}
            | {"bulkESS": np.median(bulk[: -leading.shape[2]]), "rhat": np.max(rhat)}
            | {f"exploration_{k + 1}": ratio for k, ratio in enumerate(explored)}
            | {"compile_seconds": timing.compilation}
        )
    return rows
