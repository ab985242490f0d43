"""The command line: `python -m householder_mcmc [demo | sample MODEL.py] [options]`."""

import argparse
import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

import householder_mcmc as hm
from householder_mcmc.cli import files, item_response, models, report
from householder_mcmc.cli.cache import use_compilation_cache
from householder_mcmc.cli.errors import UsageError
from householder_mcmc.results import diagnostics
from householder_mcmc.sampling.progress import Progress

# Name of a scheme -> function of the rank that makes it.
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

# Rank of `eigen` and its relatives if the user names none. It should be the number of wide directions, which is unknown
# here. So 3 is only a start, without a source: if more directions are wide, the chains stay slow along the others.
DEFAULT_RANK = 3

# Sampler -> steps of the warm-up and draws of each chain. In the demo the warm-up has the same length for all schemes.
# 1000 independent draws of a chain have ten times the ESS below which there is a warning. A draw takes one gradient by
# MALA and about five by HMC with leapfrog steps, so MALA makes five times as many. (With a center HMC takes
# fewer, about two on the posterior of the demo.)
DEFAULT_LENGTHS = {"hmc": (2000, 1000), "mala": (2000, 5000), "nuts": (2000, 1000)}


def main(argv=None) -> int:
    """Run the command line; return the exit code.

    0 if all is well, 1 if a result could be saved nowhere, 2 on bad input, 130 after Ctrl-C before the first draw. A
    later Ctrl-C ends the run, and the draws made so far are reported and saved.

    argv: list of arguments, by default those of the process.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv or argv[0] not in ("demo", "sample", "-h", "--help", "--version"):
        argv = ["demo", *argv]
    arguments = _parser().parse_args(argv)
    num_warmup, num_draws = DEFAULT_LENGTHS[arguments.sampler]
    arguments.warmup, arguments.draws = arguments.warmup or num_warmup, arguments.draws or num_draws
    use_compilation_cache()
    try:
        files.check_outputs(arguments)
        with jax.enable_x64(True) if arguments.x64 else contextlib.nullcontext():
            are_saved = (_demo if arguments.command == "demo" else _sample)(arguments)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0 if are_saved else 1


def _parser():
    parser = argparse.ArgumentParser(
        prog="householder_mcmc",
        description="Sample a posterior with a preconditioner learnt from the chains. Without a command: demo.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {hm.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="sample a real 501-dimensional posterior and compare schemes")
    sample = commands.add_parser("sample", help="sample your own model")
    sample.add_argument(
        "model",
        type=Path,
        help="Python file with logdensity(position) and initial_position, or with `model`: an hm.Model, one of PyMC, "
        "or one of NumPyro with `args` (a tuple) and `data` (a dict of keyword arguments)",
    )
    sample.add_argument("--scheme", choices=SCHEMES, default="two_ended", help="default %(default)s")
    sample.add_argument("--output", type=Path, help="where to save the draws: .nc (needs ArviZ) or .npz")
    sample.add_argument("--thin", type=_positive, default=1, help="transitions for each draw (default %(default)s)")
    sample.add_argument(
        "--until",
        type=_until,
        metavar="ESS[,RHAT]",
        help="go on from --draws to ten times as many, until the smallest bulk ESS is at least ESS and the largest "
        "R-hat at most RHAT (default 1.01)",
    )
    demo.set_defaults(thin=1, until=None)
    demo.add_argument("--rank", type=_positive, default=2, help="eigenvectors of `eigen` (default %(default)s)")
    sample.add_argument(
        "--rank",
        type=_positive,
        help=f"directions, at most d (by default two_ended chooses, others have {DEFAULT_RANK})",
    )
    of_warmup, of_draws = (
        ", ".join(f"{lengths[i]} for {name}" for name, lengths in DEFAULT_LENGTHS.items()) for i in (0, 1)
    )
    for command in (demo, sample):
        command.add_argument("--sampler", choices=DEFAULT_LENGTHS, default="hmc", help="what chains run (default hmc)")
        command.add_argument("--target-accept", type=float, metavar="RATE", help="what the step size is tuned to")
        command.add_argument("--warmup", type=_positive, help=f"steps (default {of_warmup})")
        command.add_argument("--draws", type=_positive, help=f"per chain (default {of_draws})")
        command.add_argument("--chains", type=_positive, default=4, help="(default %(default)s)")
        command.add_argument("--seed", type=_seed, default=0, help="(default %(default)s)")
        command.add_argument("--x64", action="store_true", help="run in double precision")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the diagnostics")
        command.add_argument("--plot", type=Path, metavar="FILE.png", help="draw learnt spectrum and ESS")
    return parser


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _until(text):
    ess, _, rhat = text.partition(",")
    return hm.Until(float(ess), float(rhat)) if rhat else hm.Until(float(ess))


def _seed(text):
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"must be from 0 to 2^32 - 1, got {value}")
    return value


def _demo(arguments):
    logdensity, initial_position, reference = item_response.load()
    model = hm.Model(logdensity, initial_position)
    reference = [ravel_pytree(moment)[0] for moment in reference]
    ranks = {"diagonal": 0, "eigen": arguments.rank, "two_ended": None}
    dim = len(reference[0])
    if arguments.rank > dim:  # refused before the first scheme runs
        raise UsageError(f"rank must be at most d = {dim}, got {arguments.rank}.")
    results, summaries, spectra = {}, {}, {}
    for name, rank in ranks.items():
        results[name] = result = _run(name, SCHEMES[name](rank), model, arguments)
        summaries[name], spectra[name] = _summarise(name, result, arguments, reference)
        if result.num_draws < arguments.draws:  # Ctrl-C ended it, and ends the schemes after it too
            break
    _report(f"Item response posterior, d = {dim}: 400 students, 100 questions", arguments, results, summaries)
    return files.save_results(arguments, summaries, spectra)


def _sample(arguments):
    model = models.load(arguments.model)
    output = arguments.output or files.default_output(arguments.model)
    files.check_writable("output", output)
    name = arguments.scheme
    default = None if name == "two_ended" else min(DEFAULT_RANK, models.dimension(model))
    rank = arguments.rank or default
    arguments.rank = None if name in WITHOUT_RANK else rank
    result = _run(name, SCHEMES[name](rank), model, arguments)
    try:
        summary, spectrum = _summarise(name, result, arguments)
        _report(str(arguments.model), arguments, {name: result}, {name: summary})
        print(f"\n{result.summary()}\n")
    finally:  # if the report fails, as on a closed pipe, the draws are saved all the same
        saved = files.save_draws(result, output)
    are_written = files.save_results(arguments, {name: summary}, {name: spectrum})
    if saved:
        print(f"draws saved in {saved}")
    return are_written and saved is not None


def _run(name, scheme, model, arguments):
    """The `Result` of `hm.sample`. Raises UsageError if that refuses, KeyboardInterrupt if there is no draw."""
    try:
        result = hm.sample(
            model,
            rng_key=arguments.seed,
            num_chains=arguments.chains,
            num_warmup=arguments.warmup,
            num_draws=arguments.draws,
            scheme=scheme,
            sampler=arguments.sampler,
            target_acceptance_rate=arguments.target_accept,
            thin=arguments.thin,
            until=arguments.until,
            dtype="float64" if arguments.x64 else None,
            progress=Progress(True, label=f"{name}: ", has_warnings=False),
        )
    except (ValueError, TypeError) as error:
        line = models.where(error, arguments.model) if arguments.command == "sample" else ""
        raise UsageError(" ".join(str(error).split()) + line) from error
    if not result.num_draws:
        raise KeyboardInterrupt
    return result


def _summarise(name, result, arguments, reference=None):
    """The summary of the draws, see `diagnostics.summarise`, and the learnt variances, None without a figure.

    reference: known (mean, sd, mcse), each (d,), or None.
    """
    infos, warmup_info, preconditioner = result.infos, result.warmup_info, result.parameters["inverse_mass_matrix"]
    draws, label = result.columns()
    num_gradients = np.asarray(result.plan.sampler.num_gradients(infos)).sum(dtype=np.int64)
    if arguments.sampler == "mala":  # it takes one gradient a transition, but its infos are one for each draw
        num_gradients *= arguments.thin
    summary: dict[str, Any] = diagnostics.summarise(
        draws,
        acceptance_rate=infos.acceptance_rate.mean(axis=1),
        num_nonfinite=infos.is_nonfinite.sum() + warmup_info.num_nonfinite.sum(),
        num_gradients=num_gradients,
        num_warmup_gradients=np.asarray(warmup_info.num_gradients).sum(dtype=np.int64),
        warmup_seconds=result.warmup_seconds,
        sampling_seconds=result.sampling_seconds,
        reference=reference,
        label=label,
        superchains=result.superchains,
        trouble=result.warnings,
    )
    if name == "two_ended":
        summary |= {"rank": len(preconditioner.eigenvalues), "effective_rank": int(preconditioner.effective_rank())}
    return summary, report.spectrum(preconditioner) if arguments.plot else None


def _report(title, arguments, results, summaries):
    """Print a title, the table, the warnings and the ranks."""
    print(f"\n{title}")
    num_draws = max(result.num_draws for result in results.values())
    sizes = f"{arguments.chains} chains, {arguments.warmup} warm-up steps, {num_draws} draws each"
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
