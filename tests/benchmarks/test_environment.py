"""The processes of the benchmarks have one thread each, and nobody else's environment changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks import environment

_IMPORT_ALL = """
import importlib, os, pkgutil
import benchmarks
before = dict(os.environ)
for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        assert error.name in {"arviz", "matplotlib", "pandas"}, error
changed = {name for name, _ in before.items() ^ os.environ.items()}
assert not changed, changed
"""


def test_imports_change_no_environment_variable():
    root = Path(benchmarks.__file__).parents[1]
    variables = {name: value for name, value in os.environ.items() if name not in environment.ONE_THREAD}
    subprocess.run([sys.executable, "-c", _IMPORT_ALL], check=True, cwd=root, env=variables)


def at_start():
    """The environment that this process was started with."""
    variables = Path("/proc/self/environ").read_text().split("\0")
    return dict(variable.split("=", 1) for variable in variables if "=" in variable)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
def test_processes_of_a_pool_start_with_the_settings(monkeypatch):
    """Processes have the settings before they import anything. What the user has set stays, here and there."""
    for name in environment.ONE_THREAD:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NPROC", "3")
    before = dict(os.environ)
    with environment.pool(1) as pool:
        assert environment.ONE_THREAD | {"NPROC": "3"} == {
            name: value for name, value in pool.submit(at_start).result().items() if name in environment.ONE_THREAD
        }
    assert os.environ == before
