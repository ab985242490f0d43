"""The types of the package and of the README's examples, as an editor shows them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def errors(*paths):
    """What pyright finds, as 'file:line: message'."""
    pytest.importorskip("basedpyright")
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson", *map(str, paths)]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout)
    assert found["summary"]["filesAnalyzed"] > 0
    return [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in found["generalDiagnostics"]
        if each["severity"] == "error"
    ]


def test_the_package_and_the_readme_have_no_type_errors(tmp_path):
    script = tmp_path / "readme.py"
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    script.write_text("\n".join(blocks))
    assert errors("householder_mcmc", script) == []


def test_a_wrong_call_is_an_error_and_a_wrong_field_too(tmp_path):
    """What an editor knows of a warm-up: its arguments, the fields of its states and infos, and those of a kernel."""
    script = tmp_path / "wrong.py"
    script.write_text(
        "import jax\n"
        "import householder_mcmc as hm\n"
        "warmup = hm.warmup(lambda x: x, hm.none())\n"
        "(state, parameters), info = warmup.run(jax.random.key(0), 0.0, num_steps=5)\n"
        "warmup.run(jax.random.key(0), 0.0, num_step=5)\n"
        "hm.hmc(lambda x: x, stepsize=0.1, **parameters)\n"
        "info.num_lernt\n"
        "state.positions\n"
    )
    found = "\n".join(errors(script))
    for line, word in ((5, "num_step"), (6, "stepsize"), (7, "num_lernt"), (8, "positions")):
        assert re.search(rf"wrong.py:{line}: .*{word}", found), found
