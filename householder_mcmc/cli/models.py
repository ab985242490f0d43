"""The model that a user's file defines, and the line of it that an error came from."""

import runpy
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp

import householder_mcmc as hm
from householder_mcmc.cli.errors import UsageError, one_line
from householder_mcmc.results import arviz

__all__ = ["dimension", "load", "where"]


def load(path: Path) -> hm.Model:
    """The model of a Python file: `logdensity` and `initial_position`, or else `model`.

    `model` is an `hm.Model`, a `pymc.Model`, or a NumPyro model with what it is called with: `args`, a tuple, and
    `data` and `kwargs`, dicts of keyword arguments. Raises UsageError if there is neither, or if it cannot be sampled.
    """
    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    sys.path.insert(0, str(path.parent.resolve()))  # as Python does for a script: it may import its neighbours
    try:
        found = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path} does not run: {one_line(error)}{where(error, path)}") from error
    if "model" in found and "logdensity" not in found:
        model = _from_library(found, path)
    elif not callable(found.get("logdensity")):
        raise UsageError(f"{path} must define a function logdensity(position), or a model of NumPyro or PyMC, `model`.")
    elif "initial_position" not in found:
        raise UsageError(f"{path} must define initial_position: a pytree, or a function of a random key.")
    else:
        model = hm.Model(found["logdensity"], found["initial_position"])
    _check(model, path)
    return model


def dimension(model: hm.Model) -> int:
    """d, the number of numbers in a position."""
    return sum(leaf.size for leaf in jax.tree.leaves(_position(model)))


def where(error: BaseException, path: Path) -> str:
    """The line of a user's model that an error came from, as a text, or "".

    It is the last line of the traceback in the model's file, or else in its folder.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_file()]
    in_file = [frame for frame in frames if path.samefile(frame.filename)]
    in_folder = [frame for frame in frames if path.parent.samefile(Path(frame.filename).parent)]
    return "".join(f" ({frame.filename}, line {frame.lineno})" for frame in (in_file or in_folder)[-1:])


def _from_library(found, path):
    """The `hm.Model` of a file's `model`, given all names `found` in the file."""
    model, pymc = found["model"], sys.modules.get("pymc")
    try:
        if isinstance(model, hm.Model):
            return model
        if pymc is not None and isinstance(model, pymc.Model):
            return hm.from_pymc(model)
        if callable(model):
            return hm.from_numpyro(model, *found.get("args", ()), **found.get("data", {}), **found.get("kwargs", {}))
    except Exception as error:
        raise UsageError(f"the model cannot be used: {one_line(error)}{where(error, path)}") from error
    raise UsageError(f"model must be one of NumPyro, a pymc.Model or an hm.Model, got a {type(model).__name__}.")


def _position(model):
    """A position, with shapes and dtypes in place of arrays."""
    if callable(model.initial):
        return jax.eval_shape(model.initial, jax.random.key(0))
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, model.initial))


def _check(model, path):
    """Raise UsageError if the positions, names of variables or log-density of a model cannot be used."""
    if not callable(model.initial) and not jax.tree.leaves(model.initial):
        raise UsageError("initial_position has no arrays.")
    try:
        position = _position(model)
    except Exception as error:
        raise UsageError(f"initial_position cannot be used: {one_line(error)}{where(error, path)}") from error
    try:
        names = arviz.names(jax.eval_shape(model.variables, position))
    except Exception as error:
        raise UsageError(f"{one_line(error)}{where(error, path)}") from error
    if "file" in names:
        raise UsageError("a parameter cannot be called 'file': NumPy's archives have no such name.")
    try:
        value = jax.eval_shape(model.logdensity, position)
    except Exception as error:
        text = f"logdensity fails at the initial position: {one_line(error)}{where(error, path)}"
        raise UsageError(text) from error
    if getattr(value, "shape", None) != ():
        raise UsageError(f"logdensity must return a scalar, got {value}.")
