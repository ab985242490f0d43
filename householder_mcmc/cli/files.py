"""The files of a run. They are checked before it, so that no long run is in vain, and written after it.

A file that cannot be written then goes to another place, so that no result is lost.
"""

import contextlib
import importlib.util
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from householder_mcmc.cli import report
from householder_mcmc.cli.errors import UsageError, one_line

__all__ = ["check_outputs", "check_writable", "default_output", "save_draws", "save_results"]


def check_outputs(arguments):
    """Raise UsageError if a file cannot be written, has an unknown suffix, or needs a package that is missing.

    Called before anything runs. arguments: of the command line.
    """
    output = getattr(arguments, "output", None)
    suffixes = {"json": None, "plot": (".png", ".pdf", ".svg"), "output": (".nc", ".npz")}
    for option, path in {"json": arguments.json, "plot": arguments.plot, "output": output}.items():
        if path is None:
            continue
        if suffixes[option] and path.suffix not in suffixes[option]:
            raise UsageError(f"--{option} must end in {' or '.join(suffixes[option])}, got {path}.")
        check_writable(option, path)
    if output is not None and output.suffix == ".nc" and not _has_arviz():
        raise UsageError("--output with .nc needs ArviZ: pip install arviz, or use .npz.")
    if arguments.plot and not importlib.util.find_spec("matplotlib"):
        raise UsageError("--plot needs matplotlib: pip install matplotlib.")


def check_writable(option, path):
    """Raise UsageError if a file cannot be opened for writing. What it holds is kept. option: its name in the error."""
    if not path.parent.is_dir():
        raise UsageError(f"--{option}: no such folder: {path.parent}")
    target = Path(os.path.realpath(path))  # the file that will be written, if the path is a link
    try:
        is_new = not target.exists()
        if is_new or target.is_file() or target.is_dir():  # opening a pipe or a device may wait, or end it
            target.open("ab").close()
        if is_new:
            target.unlink()
    except OSError as error:
        raise UsageError(f"--{option}: cannot write {path}: {error.strerror}. Name another place.") from error


def default_output(model):
    """Where the draws of a model go by default: beside its file, as .nc if ArviZ can be imported, else as .npz."""
    return model.with_suffix(".nc" if _has_arviz() else ".npz")


def _has_arviz():
    """Whether ArviZ can be imported."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import arviz as _  # noqa: F401
    except ImportError:
        return False
    return True


def save_draws(result, output):
    """Write the draws. Returns where they are, or None if they could be written nowhere.

    If NetCDF fails, they go to a `.npz` file of the same name.
    """

    def write_netcdf(path):
        result.to_arviz().to_netcdf(str(path))

    if output.suffix == ".nc":
        if _try_to_write(output, write_netcdf):
            return output
        output = output.with_suffix(".npz")
    return _write_somewhere(output, lambda path: np.savez(path, **result.draws))


def save_results(arguments, summaries, spectra):
    """Write the diagnostics and the figure, if they are asked for. Returns whether all that was asked for is saved.

    summaries: name of a scheme -> its summary. spectra: name of a scheme -> its learnt variances.
    """
    saved = []
    if arguments.json:
        options = {name: str(value) for name, value in vars(arguments).items() if value is not None}
        text = json.dumps({"options": options, "schemes": _without_nan(summaries)}, indent=1)
        saved.append(_write_somewhere(arguments.json, lambda path: path.write_text(text)))
    if arguments.plot:
        saved.append(_write_somewhere(arguments.plot, lambda path: report.figure(summaries, spectra, path)))
    return None not in saved


def _write_somewhere(path: Path, write: Callable[[Path], Any]) -> Path | None:
    """Call write(path). If that fails, write a file of the same name in a new temporary folder.

    Returns the path that was written, or None.
    """
    if _try_to_write(path, write):
        return path
    try:
        elsewhere = Path(tempfile.mkdtemp(prefix="householder_mcmc_")) / path.name
    except OSError as error:
        print(f"no temporary folder: {one_line(error)}", file=sys.stderr)
        return None
    if not _try_to_write(elsewhere, write):
        return None
    print(f"saved in {elsewhere} instead", file=sys.stderr)
    return elsewhere


def _try_to_write(path, write):
    """Call write(path), and return whether it succeeds. If not, print why and remove what it has written."""
    before = _changed_at(path)
    try:
        write(path)
    except Exception as error:  # whatever the libraries raise, the results are worth more
        print(f"cannot write {path}: {one_line(error)}", file=sys.stderr)
        with contextlib.suppress(OSError):
            if _changed_at(path) != before:
                path.unlink()
        return False
    return True


def _changed_at(path):
    """When a file was last changed, in nanoseconds; None if there is no such file."""
    return path.stat().st_mtime_ns if path.is_file() else None


def _without_nan(value):
    """The same with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return value if isinstance(value, str) or math.isfinite(value) else None
