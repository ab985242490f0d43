"""README's command makes the reference of the API without warnings, and all public names are in it."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import householder_mcmc as hm

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder that the command writes. Any warning that it does not ignore is an error."""
    pytest.importorskip("pdoc")
    folder = tmp_path_factory.mktemp("site")
    (options,) = re.findall(
        r"bin/python (-W '.*?') -m pdoc (.*?)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE
    )
    ignored, arguments = options[0].removeprefix("-W ").strip("'"), options[1].replace("-o site", f"-o {folder}")
    command = [sys.executable, "-W", "error", "-W", ignored, "-m", "pdoc", *arguments.split()]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.parametrize("name", hm.__all__)
def test_every_public_name_is_in_the_reference(site, name):
    value = getattr(hm, name)
    if inspect.ismodule(value):
        assert (site / f"{value.__name__.replace('.', '/')}.html").exists()
    else:
        (section,) = re.findall(
            rf'<section id="{name}">.*?</section>', (site / "householder_mcmc.html").read_text(), flags=re.DOTALL
        )
        assert 'class="docstring"' in section or name.isupper()  # presets of `Gains`
