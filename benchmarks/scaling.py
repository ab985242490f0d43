"""Time of our operations against what must move through memory, on the device that JAX finds.

    python -m benchmarks.scaling [--quick] [--out FOLDER]

Each operation runs many times inside one compiled program; compile time is apart and a time is the median of 7 runs,
or 3 of a whole warm-up.
The bound is the bytes that must move (each array that an operation needs, once for each time that it has to be read
anew) over the bandwidth of a copy of 256 MiB on the same device. An array that stays in a cache can beat it. The target
is a standard Gaussian, as cheap as a log-density can be whose gradient the compiler does not know beforehand. Writes
scaling.csv and scaling.png, and prints the tables of RESULTS.md.
"""

import argparse
import csv
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.metrics import LowRankInverseMassMatrix, gaussian_euclidean_low_rank

import householder_mcmc as hm
from householder_mcmc.learners import online_pca
from householder_mcmc.mcmc.chains import step_chains
from householder_mcmc.preconditioners import reflections

NUM_RUNS = 7
NUM_GRADIENTS = 4  # of an HMC transition
_WORD = 4  # bytes of a float32
_COPIED = 2**26  # numbers
_MOVED = 2e7 if jax.default_backend() == "cpu" else 2e9  # numbers, by all steps of one program


class Case(NamedTuple):
    """An operation at one size.

    make: () -> (step, carry, constants) with step: (carry, constants) -> carry of the same shapes. words: numbers that
    must move in a step; None without a bound. calls_make: how many steps a call of `step` is, if it has its own loop
    (its results may then be of any shape).
    """

    operation: str
    form: str
    dim: int
    rank: int
    chains: int
    make: Callable
    words: int | None
    calls_make: int | None = None


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="d up to 1e4")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "scaling")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = run(itertools.chain(cases(10**4 if options.quick else 10**6), warmups(200 if options.quick else 2000)))
    write(rows, options.out / "scaling.csv")
    print(table(rows))
    print(slopes(rows))
    draw(rows, options.out / "scaling.png")


def run(chosen: Iterable[Case], seconds: float = np.inf) -> list[dict]:
    """One row a case, as many as begin within the time; the first has the copy that the bounds rest on."""
    stop = time.perf_counter() + seconds
    device = jax.devices()[0]
    copy = Case("copy", "", _COPIED, 0, 1, lambda: (lambda x, _: x + 1, jnp.ones(_COPIED), ()), 2 * _COPIED)
    rows, bandwidth = [], None
    for case in itertools.chain([copy], chosen):
        if time.perf_counter() > stop:
            print("out of time")
            break
        step_seconds, compile_seconds, num_bytes = measure(case)
        if bandwidth is None:
            bandwidth = _WORD * case.words / step_seconds
        bound = _WORD * case.words / bandwidth if case.words else np.nan
        rows.append(
            {name: getattr(case, name) for name in ("operation", "form", "dim", "rank", "chains")}
            | {"us": 1e6 * step_seconds, "bound_us": 1e6 * bound, "ratio": step_seconds / bound}
            | {"compile_seconds": compile_seconds, "megabytes": num_bytes / 2**20}
            | {"device": f"{device.device_kind} ({device.platform})", "jax": jax.__version__}
        )
        row = rows[-1]
        print(*(f"{row[name]!s:16}" for name in list(row)[:5]), f"{row['us']:.5g} us", flush=True)
    return rows


def measure(case: Case) -> tuple[float, float, int]:
    """Seconds of a step, seconds of compilation, and the bytes that the compiled program holds."""
    step, carry, constants = case.make()
    num_steps, many = case.calls_make, step
    if num_steps is None:
        num_steps = int(np.clip(_MOVED / case.words, 30, 1000))  # the first of them touches new memory

        def many(carry, constants):
            return jax.lax.scan(lambda carry, _: (step(carry, constants), None), carry, length=num_steps)[0]

    started = time.perf_counter()
    program = jax.jit(many).lower(carry, constants).compile()
    compile_seconds = time.perf_counter() - started
    memory = program.memory_analysis()
    num_bytes = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    jax.block_until_ready(program(carry, constants))
    times = []
    for _ in range(NUM_RUNS if case.calls_make is None else 3):
        started = time.perf_counter()
        jax.block_until_ready(program(carry, constants))
        times.append(time.perf_counter() - started)
    return float(np.median(times)) / num_steps, compile_seconds, num_bytes


def cases(largest: int) -> Iterator[Case]:
    """From 100 to `largest` dimensions with rank 10 and 4 chains, then ranks and chains at the fixed dimension 1e4."""
    sizes = [(dim, 10, 4) for dim in (10**2, 10**3, 10**4, 10**5, 10**6) if dim <= largest]
    sizes += [(10**4, rank, 4) for rank in (1, 4, 32, 64)]
    sizes += [(10**4, 10, chains) for chains in (1, 16, 64, 256)]
    for size in sizes:
        yield from of_size(*size)
    if largest == 10**6:
        yield from itertools.takewhile(lambda case: case.operation != "MALA step", of_size(10**6, 10, 64))


def of_size(dim: int, rank: int, chains: int) -> Iterator[Case]:
    """All operations at one size; those of a dense matrix up to d = 1000."""
    case = functools.partial(Case, dim=dim, rank=rank, chains=chains)
    vectors = 2 * chains * dim  # read and written
    for form, build in {"compact": _core, "sequential": reflections.sequential}.items():
        yield case("build Q", form, make=functools.partial(_building, build, dim, rank), words=None, calls_make=1)
    maps = {
        "compact": (2 * rank * dim, lambda: reflections.compact(_eigenvectors(dim, rank))),
        "sequential": (rank * dim, lambda: reflections.sequential(_eigenvectors(dim, rank))),
        "diagonal": (dim, lambda: hm.Diagonal(jnp.ones(dim))),
        "BlackJAX's low rank": ((2 * rank + 1) * dim, lambda: _blackjax_low_rank(dim, rank)),
    }
    if dim <= 1000:
        maps["dense"] = dim**2, lambda: hm.Dense(jnp.eye(dim))
    for form, (words, make) in maps.items():
        yield case("apply", form, make=functools.partial(_applying, make, dim, chains), words=words + vectors)

    moved = 4 * chains * dim  # positions and gradients, before and after
    through_map = 3 * (2 * rank + 1) * dim  # one product with L, two with L^T
    yield case("MALA step", "BlackJAX's", make=functools.partial(_blackjax_mala, dim, chains), words=moved)
    yield case("MALA step", "compact", make=functools.partial(_mala, dim, rank, chains), words=moved + through_map)
    plain = NUM_GRADIENTS * 6 * chains * dim  # positions, gradients and momenta
    whitened = plain + NUM_GRADIENTS * 2 * (2 * rank + 1) * dim  # a product with L and one with L^T for each
    yield case("HMC transition", "BlackJAX's", make=functools.partial(_blackjax_hmc, dim, chains), words=plain)
    for form, is_exact in {"leapfrog": False, "exact": True}.items():
        make = functools.partial(_hmc, dim, rank, chains, is_exact)
        yield case("HMC transition", form, make=make, words=whitened)
    learner = (chains + 4) * dim  # positions read, mean and variances read and written
    eigen = through_map + 4 * rank * dim  # eigenvectors read three times and written once
    schemes = {
        "none": (hm.none(), 0),
        "diagonal": (hm.diagonal(), 3 * dim + learner),
        "eigen, latest": (hm.eigen(rank, gains=hm.LATEST_GAINS), eigen + learner),
        "eigen": (hm.eigen(rank), eigen + 4 * rank * dim + learner),
        "eigen_identity": (hm.eigen_identity(rank), eigen + 4 * rank * dim + learner),
    }
    rows = rank + min(10 * chains, 64)  # of draws and of scores at the end of a block of ten steps, read three times
    of_block = (20 * chains + 6 * rows + 8 * rank) * dim
    schemes["two_ended"] = hm.two_ended(rank), through_map + 2 * chains * dim + of_block // 10
    if dim <= 1000:
        schemes["dense"] = hm.dense(), 5 * dim**2 + learner
    for form, (scheme, words) in schemes.items():
        make = functools.partial(_adapting, scheme, dim, chains)
        yield case("adaptive step", form, make=make, words=words + moved)


def _eigenvectors(dim, rank):
    return online_pca.orthonormalize(jax.random.normal(jax.random.key(0), (rank, dim)))


def _core(eigenvectors):
    """What `compact` computes; it keeps the eigenvectors as they are."""
    return reflections.compact(eigenvectors)[1:]


def _building(build, dim, rank):
    return lambda eigenvectors, _: build(eigenvectors), _eigenvectors(dim, rank), ()


def _applying(make, dim, chains):
    def step(x, preconditioner):
        return jax.vmap(preconditioner.apply)(x)

    return step, jax.random.normal(jax.random.key(1), (chains, dim)), make()


class _BlackJAXLowRank(NamedTuple):
    matrix: LowRankInverseMassMatrix

    def apply(self, x):
        return gaussian_euclidean_low_rank(*self.matrix).scale(x, x, inv=True, trans=False)


def _blackjax_low_rank(dim, rank):
    return _BlackJAXLowRank(LowRankInverseMassMatrix(jnp.ones(dim), _eigenvectors(dim, rank).T, jnp.ones(rank)))


def _start(dim, chains, init):
    return jax.vmap(lambda x: init(x, _gaussian))(jax.random.normal(jax.random.key(1), (chains, dim)))


def _keyed(transition, state):
    """A step with a new key each time."""

    def step(carry, constants):
        count, state = carry
        return count + 1, transition(jax.random.fold_in(jax.random.key(2), count), state, constants)

    return step, (0, state)


def _blackjax_mala(dim, chains):
    kernel = blackjax.mala(_gaussian, 0.1)

    def transition(key, state, _):
        return step_chains(kernel.step, key, state)[0]

    return *_keyed(transition, _start(dim, chains, blackjax.mala.init)), ()


def _mala(dim, rank, chains):
    kernel = hm.mala.build_kernel()

    def transition(key, state, preconditioner):
        return step_chains(kernel, key, state, _gaussian, 0.1, preconditioner)[0]

    preconditioner = hm.Householder(reflections.compact(_eigenvectors(dim, rank)), jnp.ones(dim))
    return *_keyed(transition, _start(dim, chains, hm.mala.init)), preconditioner


def _blackjax_hmc(dim, chains):
    kernel = blackjax.hmc(_gaussian, 0.1, jnp.ones(dim), NUM_GRADIENTS)

    def transition(key, state, _):
        return step_chains(kernel.step, key, state)[0]

    return *_keyed(transition, _start(dim, chains, blackjax.hmc.init)), ()


def _hmc(dim, rank, chains, is_exact):
    """Frozen, with as many steps as BlackJAX's: they are so short that a quarter period has more."""
    kernel = functools.partial(hm.hmc.build_kernel(), max_integration_steps=NUM_GRADIENTS)
    center = jnp.zeros(dim) if is_exact else None

    def transition(key, state, preconditioner):
        return step_chains(kernel, key, state, _gaussian, 0.1, preconditioner, center)[0]

    preconditioner = hm.Householder(reflections.compact(_eigenvectors(dim, rank)), jnp.ones(dim))
    return *_keyed(transition, _start(dim, chains, hm.hmc.init)), preconditioner


def _adapting(scheme, dim, chains):
    """Adaptive MALA at its millionth step, when steps of the learner are small even at d = 1e6."""
    kernel = hm.adaptive_mala.build_kernel(scheme)

    def transition(key, state, _):
        return kernel(key, state, _gaussian)[0]

    positions = jax.random.normal(jax.random.key(1), (chains, dim))
    state = hm.adaptive_mala.init(positions, _gaussian, scheme, chains)
    late = jax.tree.map(lambda leaf: leaf + 10**6 if leaf.dtype == jnp.int32 else leaf, state.scheme)
    state = state._replace(scheme=late)  # the counts of the learner and of its optimiser
    return *_keyed(transition, state), ()


def warmups(dim: int, num_steps: int = 200) -> Iterator[Case]:
    """A step of whole warm-ups, one chain on a standard Gaussian, ours of HMC and BlackJAX's of MALA."""
    staged = functools.partial(blackjax.staged_adaptation, hm.mala, _gaussian)
    runs = {
        "eigen": hm.warmup(_gaussian, hm.eigen(10), num_chains=1).run,
        "BlackJAX's welford_dense": staged(metric="welford_dense").run,
        "BlackJAX's low rank": blackjax.window_adaptation_low_rank(hm.mala, _gaussian, max_rank=10).run,
    }
    for form, run in runs.items():
        start = jnp.ones((1, dim) if form == "eigen" else dim)

        def make(run=run, start=start):
            return lambda key, start: run(key, start, num_steps)[0], jax.random.key(0), start

        yield Case("warm-up step", form, dim, 10, 1, make, words=None, calls_make=num_steps)


def _gaussian(x):
    return -0.5 * jnp.sum(x**2)


def write(rows: list[dict], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({name: f"{v:.5g}" if isinstance(v, float) else v for name, v in row.items()} for row in rows)


def table(rows: list[dict]) -> str:
    """Microseconds and ratio to the bound, as Markdown."""
    lines = ["| operation | form | d | rank | chains | us | over the bound | MB |", "|" + "---|" * 8]
    for row in rows:
        ratio = "" if np.isnan(row["ratio"]) else f"{row['ratio']:.2f}"
        names = " | ".join(str(row[name]) for name in ("operation", "form", "dim", "rank", "chains"))
        lines.append(f"| {names} | {row['us']:.4g} | {ratio} | {row['megabytes']:.4g} |")
    return "\n".join(lines)


def slopes(rows: list[dict]) -> str:
    """Exponent of d in the time between the two ends of 1e4-1e6, with rank 10 and 4 chains."""
    lines = ["| operation | form | slope in d, 1e4-1e6 |", "|---|---|---|"]
    for (operation, form), line in _lines(rows).items():
        dims, times = np.array([point for point in line if point[0] >= 10**4]).reshape(-1, 2).T
        if len(dims) > 1:
            lines.append(f"| {operation} | {form} | {np.polyfit(np.log(dims), np.log(times), 1)[0]:.2f} |")
    return "\n".join(lines)


def _lines(rows):
    lines = {}
    for row in rows:
        if (row["rank"], row["chains"]) == (10, 4):
            lines.setdefault((row["operation"], row["form"]), []).append((row["dim"], row["us"]))
    return lines


def draw(rows: list[dict], path: Path) -> None:
    """Time against d for every operation, log-log."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no figure: matplotlib is not installed")
        return
    lines = _lines(rows)
    operations = list(dict.fromkeys(operation for operation, _ in lines))
    figure = Figure(figsize=(4 * len(operations), 4), layout="constrained")
    for axes, operation in zip(figure.subplots(1, len(operations)), operations, strict=True):
        for (name, form), line in lines.items():
            if name == operation:
                axes.loglog(*zip(*line, strict=True), marker="o", label=form)
        axes.set(title=operation, xlabel="d", ylabel="microseconds")
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
