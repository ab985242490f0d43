"""The command line: `python -m householder_mcmc [demo | sample MODEL.py] [options]`."""

import argparse
import contextlib
import runpy
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import householder_mcmc as hm
from householder_mcmc.adaptation.samplers import SAMPLERS
from householder_mcmc.cli import files, item_response, report
from householder_mcmc.cli.errors import UsageError, one_line
from householder_mcmc.mcmc.chains import ravel_chains, run_chains
from householder_mcmc.results import arviz, diagnostics

# Name of a scheme -> the scheme of a rank.
SCHEMES = {
    "none": lambda rank: hm.none(),
    "diagonal": lambda rank: hm.diagonal(),
    "dense": lambda rank: hm.dense(),
    "eigen": hm.eigen,
    "eigen_isotropic": partial(hm.eigen, tail="isotropic"),
    "eigen_identity": hm.eigen_identity,
    "two_ended": hm.two_ended,
}
WITHOUT_RANK = ("none", "diagonal", "dense")

# Rank of a scheme if the user names none. For `two_ended` it is that scheme's own default: more directions than needed
# cost time, not efficiency. For `eigen` and its relatives it should be the number of wide directions, which is unknown
# here. So 3 is only a start, without a source: if more directions are wide, the chains stay slow along the others.
DEFAULT_RANKS = {"two_ended": 32}
DEFAULT_RANK = 3

# Sampler -> steps of the warm-up and draws of each chain. The warm-up is of one length for all schemes of a demo.
# 1000 independent draws of a chain have ten times the ESS below which there is a warning. A draw takes one gradient by
# MALA and about five by HMC with leapfrog steps, so MALA makes five times as many. (With a center HMC takes
# fewer, about two on the posterior of the demo.)
DEFAULT_LENGTHS = {"hmc": (2000, 1000), "mala": (2000, 5000)}


def main(argv=None) -> int:
    """Run the command line; return the exit code: 0, 1 if a result could be saved nowhere, or 2 on bad input."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv or argv[0] not in ("demo", "sample", "-h", "--help"):
        argv = ["demo", *argv]
    arguments = _parser().parse_args(argv)
    num_warmup, num_draws = DEFAULT_LENGTHS[arguments.sampler]
    arguments.warmup, arguments.draws = arguments.warmup or num_warmup, arguments.draws or num_draws
    try:
        files.check_outputs(arguments)
        are_saved = (_demo if arguments.command == "demo" else _sample)(arguments)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if are_saved else 1


def _parser():
    parser = argparse.ArgumentParser(
        prog="householder_mcmc",
        description="Sample a posterior with a preconditioner learnt from the chains. Without a command: demo.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="sample a real 501-dimensional posterior and compare schemes")
    sample = commands.add_parser("sample", help="sample your own model")
    sample.add_argument("model", type=Path, help="Python file with logdensity(position) and initial_position")
    sample.add_argument("--scheme", choices=SCHEMES, default="two_ended", help="default %(default)s")
    sample.add_argument("--output", type=Path, help="where to save the draws: .nc (needs ArviZ) or .npz")
    demo.add_argument("--rank", type=_positive, default=2, help="eigenvectors of `eigen` (default %(default)s)")
    sample.add_argument(
        "--rank",
        type=_positive,
        help=f"directions, at most d (default {DEFAULT_RANKS['two_ended']} for two_ended, else {DEFAULT_RANK})",
    )
    of_warmup, of_draws = (
        ", ".join(f"{lengths[i]} for {name}" for name, lengths in DEFAULT_LENGTHS.items()) for i in (0, 1)
    )
    for command in (demo, sample):
        command.add_argument("--sampler", choices=SAMPLERS, default="hmc", help="what the chains run (default hmc)")
        command.add_argument("--warmup", type=_positive, help=f"steps (default {of_warmup})")
        command.add_argument("--draws", type=_positive, help=f"per chain (default {of_draws})")
        command.add_argument("--chains", type=_positive, default=4, help="(default %(default)s)")
        command.add_argument("--seed", type=_seed, default=0, help="(default %(default)s)")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the diagnostics")
        command.add_argument("--plot", type=Path, metavar="FILE.png", help="draw learnt spectrum and ESS")
    return parser


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _seed(text):
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"must be from 0 to 2^32 - 1, got {value}")
    return value


def _demo(arguments):
    logdensity, initial_position, reference = item_response.load()
    reference = [ravel_pytree(moment)[0] for moment in reference]
    positions = _initial_positions(initial_position, arguments)
    ranks = {"diagonal": 0, "eigen": arguments.rank, "two_ended": DEFAULT_RANKS["two_ended"]}
    schemes = {name: _scheme(name, rank, logdensity, positions) for name, rank in ranks.items()}
    summaries, spectra = {}, {}
    for name, scheme in schemes.items():
        _, summaries[name], spectra[name] = _run(name, scheme, logdensity, positions, arguments, reference)
    dim = len(reference[0])
    _report(f"Item response posterior, d = {dim}: 400 students, 100 questions", arguments, summaries)
    return files.save_results(arguments, summaries, spectra)


def _sample(arguments):
    logdensity, initial_position = _load_model(arguments.model)
    positions = _initial_positions(initial_position, arguments)
    output = arguments.output or files.default_output(arguments.model)
    files.check_writable("output", output)
    _check_names(positions)
    _check_logdensity(logdensity, positions, arguments.model)
    name = arguments.scheme
    rank = arguments.rank or min(DEFAULT_RANKS.get(name, DEFAULT_RANK), ravel_chains(positions).shape[1])
    arguments.rank = None if name in WITHOUT_RANK else rank
    scheme = _scheme(name, arguments.rank, logdensity, positions)
    trace, summary, spectrum = _run(name, scheme, logdensity, positions, arguments)
    try:
        _report(str(arguments.model), arguments, {name: summary})
    finally:  # a closed pipe costs the report, not the draws
        saved = files.save_draws(*trace, output)
    are_written = files.save_results(arguments, {name: summary}, {name: spectrum})
    if saved:
        print(f"draws saved in {saved}")
    return are_written and saved is not None


def _load_model(path):
    """Log-density and initial position of a Python file. Raises UsageError if it does not define both."""
    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    sys.path.insert(0, str(path.parent.resolve()))  # as Python does for a script: it may import its neighbours
    try:
        model = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} does not run: {one_line(error)}{_where(error, path)}") from error
    if not callable(model.get("logdensity")):
        raise UsageError(f"{path} must define a function logdensity(position).")
    if "initial_position" not in model:
        raise UsageError(f"{path} must define initial_position: a pytree, or a function of a random key.")
    return model["logdensity"], model["initial_position"]


def _initial_positions(initial_position, arguments) -> Any:
    """Starting points with a leading chain axis.

    A function of a random key is called once for each chain, with keys that follow from the seed. A pytree is copied.
    """
    keys = jax.random.split(jax.random.fold_in(jax.random.key(arguments.seed), 1), arguments.chains)
    if not callable(initial_position) and not jax.tree.leaves(initial_position):
        raise UsageError("initial_position has no arrays.")
    try:
        if callable(initial_position):
            return jax.vmap(initial_position)(keys)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (arguments.chains, *jnp.shape(leaf))), initial_position)
    except Exception as error:
        where = _where(error, arguments.model) if arguments.command == "sample" else ""
        raise UsageError(f"initial_position cannot be used: {one_line(error)}{where}") from error


def _check_names(positions):
    try:
        names = arviz.names(positions)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if "file" in names:
        raise UsageError("a parameter cannot be called 'file': NumPy's archives have no such name.")


def _check_logdensity(logdensity, positions, path):
    position = jax.tree.map(lambda leaf: leaf[0], positions)
    try:
        value = jax.eval_shape(logdensity, position)
    except Exception as error:
        text = f"logdensity fails at the initial position: {one_line(error)}{_where(error, path)}"
        raise UsageError(text) from error
    if getattr(value, "shape", None) != ():
        raise UsageError(f"logdensity must return a scalar, got {value}.")


def _where(error, path):
    """The line of a user's model that an error came from: the last one in its file, or else in its folder."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    in_file = [frame for frame in frames if path.samefile(frame.filename)]
    in_folder = [frame for frame in frames if path.parent.samefile(Path(frame.filename).parent)]
    return "".join(f" ({frame.filename}, line {frame.lineno})" for frame in (in_file or in_folder)[-1:])


def _scheme(name, rank, logdensity, positions):
    """The scheme of this name and rank. Raises UsageError if chains cannot start with it."""
    try:
        scheme = SCHEMES[name](rank)
        hm.adaptive_mala.init(positions, logdensity, scheme, len(jax.tree.leaves(positions)[0]))
    except (ValueError, TypeError) as error:
        raise UsageError(" ".join(str(error).split())) from error
    return scheme


def _run(name, scheme, logdensity, positions, arguments, reference=None):
    """Warm up, freeze the map and sample.

    Returns (states, infos, step size), leaves (num_draws, num_chains, ...); the summary of the draws; and the learnt
    spectrum, None if no figure is asked for.
    """
    key_warmup, key_sample = jax.random.split(jax.random.key(arguments.seed))
    with _progress(f"{name}: warm-up"):
        start = time.perf_counter()
        warmup = hm.warmup(logdensity, scheme, arguments.chains, sampler=arguments.sampler)
        (state, parameters), warmup_info = warmup.run(key_warmup, positions, arguments.warmup)
        jax.block_until_ready(state)
        warmup_seconds = time.perf_counter() - start

    sampler, preconditioner = SAMPLERS[arguments.sampler], parameters["inverse_mass_matrix"]
    kernel = getattr(hm, arguments.sampler)(logdensity, **parameters)

    def sample(rng_key, state):
        def keep(state, info):
            return state._replace(logdensity_grad=None), info

        return run_chains(kernel.step, rng_key, state, arguments.draws, keep)[1]

    with _progress(f"{name}: sampling"):
        compiled = jax.jit(sample).lower(key_sample, state).compile()
        start = time.perf_counter()
        states, info = jax.block_until_ready(compiled(key_sample, state))
        sampling_seconds = time.perf_counter() - start

    draws, label = arviz.ravelled_draws(states.position)
    summary: dict[str, Any] = diagnostics.summarise(
        draws,
        acceptance_rate=np.asarray(info.acceptance_rate).mean(axis=0),
        num_nonfinite=info.is_nonfinite.sum() + warmup_info.num_nonfinite.sum(),
        num_gradients=np.asarray(sampler.num_gradients(info)).sum(dtype=np.int64),
        num_warmup_gradients=np.asarray(warmup_info.num_gradients).sum(dtype=np.int64),
        warmup_seconds=warmup_seconds,
        sampling_seconds=sampling_seconds,
        reference=reference,
        label=label,
    )
    summary["warnings"] += hm.diagnose(
        warmup_info, parameters, info, target_acceptance_rate=sampler.target_acceptance_rate
    )
    if name == "two_ended":
        summary |= {"rank": len(preconditioner.eigenvalues), "effective_rank": int(preconditioner.effective_rank())}
    return (states, info, parameters["step_size"]), summary, report.spectrum(preconditioner) if arguments.plot else None


def _progress(label):
    """A context with BlackJAX's progress bar, or without one if its extra is not installed."""
    try:
        import jaxtap  # noqa: F401
        import tqdm  # noqa: F401
    except ImportError:
        print(f"{label} (pip install 'blackjax[progress]' for a progress bar)", file=sys.stderr)
        return contextlib.nullcontext()
    return blackjax.progress_bar(label=label)


def _report(title, arguments, summaries):
    """Print the table, the warnings and the ranks."""
    print(f"\n{title}")
    sizes = f"{arguments.chains} chains, {arguments.warmup} warm-up steps, {arguments.draws} draws each"
    print(f"{sizes} of {arguments.sampler.upper()}, seed {arguments.seed}\n")
    print(report.table(summaries), flush=True)
    for name, summary in summaries.items():
        for text in summary["warnings"]:
            print(f"WARNING ({name}): {text}", flush=True)
    for name, summary in summaries.items():
        if name.startswith("eigen"):
            print(f"\n{name}: rank {arguments.rank}")
        if "effective_rank" in summary:
            used, rank = summary["effective_rank"], summary["rank"]
            print(f"\n{name}: {used} of {rank} directions have a variance beyond a factor of 3 in its scales")
