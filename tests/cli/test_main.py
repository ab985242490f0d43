"""The command line: results written and read back, and one clear line for what cannot be run."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.cli import main as command_line

SMALL = ["--chains", "2", "--warmup", "40", "--draws", "30"]
MODEL = """
import jax.numpy as jnp

def logdensity(position):
    return -0.5 * jnp.sum((position["location"] - 3) ** 2) - 0.5 * jnp.sum(position["effects"] ** 2)

initial_position = {"effects": jnp.zeros((2, 2)), "location": 3.0}
"""


def write(tmp_path, text):
    path = tmp_path / "model.py"
    path.write_text(text)
    return str(path)


@pytest.mark.filterwarnings("ignore")  # of ArviZ and JAX about 30 draws
@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_samples_a_users_model(tmp_path, capsys, suffix):
    if suffix == ".nc":
        pytest.importorskip("arviz")
    output = tmp_path / f"draws{suffix}"
    model = write(tmp_path, MODEL)
    assert command_line.main(["sample", model, *SMALL, "--output", str(output)]) == 0
    assert "acceptance rate" in capsys.readouterr().out
    if suffix == ".npz":
        draws = dict(np.load(output))
    else:
        import arviz

        draws = {name: values.values for name, values in arviz.from_netcdf(output).posterior.data_vars.items()}
    assert {name: values.shape for name, values in draws.items()} == {"location": (2, 30), "effects": (2, 30, 2, 2)}


@pytest.mark.filterwarnings("ignore")
def test_what_netcdf_refuses_is_saved_in_its_place(tmp_path, capsys, monkeypatch):
    pytest.importorskip("arviz")

    class Refused:
        def to_netcdf(self, path):
            Path(path).write_text("in part")
            raise OSError("no such name")

    monkeypatch.setattr(hm, "to_arviz", lambda *args, **kwargs: Refused())
    assert command_line.main(["sample", write(tmp_path, MODEL), *SMALL]) == 0
    assert "no such name" in capsys.readouterr().err
    assert (tmp_path / "model.npz").exists() and not (tmp_path / "model.nc").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", command_line.SCHEMES)
def test_every_scheme_and_a_function_of_a_key(tmp_path, scheme):
    model = write(
        tmp_path,
        "import jax\n"
        "def logdensity(x):\n    return -0.5 * (x**2).sum()\n"
        "def initial_position(key):\n    return jax.random.normal(key, (4,))\n",
    )
    output, results = tmp_path / "draws.npz", tmp_path / "results.json"
    arguments = ["sample", model, *SMALL, "--scheme", scheme, "--rank", "2", "--output", str(output)]
    assert command_line.main([*arguments, "--json", str(results)]) == 0
    assert np.load(output)["x"].shape == (2, 30, 4)
    summary = json.loads(results.read_text())["schemes"][scheme]
    assert len(summary["ess"]) == 4 and 0 < summary["acceptance_rate"] < 1


@pytest.mark.filterwarnings("ignore")
def test_mala_instead_of_hmc(tmp_path, capsys):
    """Acceptance of each near its own target, and what is counted: a gradient a step, or several."""
    model = write(tmp_path, MODEL)
    options = ["--chains", "2", "--warmup", "500", "--draws", "400", "--output", str(tmp_path / "draws.npz")]
    found = {}
    for sampler, target in (("mala", 0.574), ("hmc", 0.8)):
        results = tmp_path / f"{sampler}.json"
        assert command_line.main(["sample", model, *options, "--sampler", sampler, "--json", str(results)]) == 0
        (found[sampler],) = json.loads(results.read_text())["schemes"].values()
        assert abs(found[sampler]["acceptance_rate"] - target) < 0.12
        assert f"400 draws each of {sampler.upper()}" in capsys.readouterr().out
    gradients = {name: 1e3 * each["min_ess"] / each["min_ess_per_1000_gradients"] for name, each in found.items()}
    assert gradients["mala"] == pytest.approx(800) and gradients["hmc"] > 1000


@pytest.mark.filterwarnings("ignore")
def test_says_when_the_rank_is_used_up(tmp_path, capsys):
    """Three pairs of correlation 0.99: three directions are narrow in units of the marginals."""
    model = write(
        tmp_path,
        "import jax.numpy as jnp\n"
        "def logdensity(x):\n    return -0.5 * (x**2).sum() - 50 * ((x[:3] - x[3:]) ** 2).sum()\n"
        "initial_position = 0.1 * jnp.arange(6.0)\n",
    )
    for rank, said in ((2, "2 of 2"), (4, "3 of 4")):
        options = ["--warmup", "300", "--draws", "30", "--rank", str(rank), "--output", str(tmp_path / "draws.npz")]
        assert command_line.main(["sample", model, *options]) == 0
        out = capsys.readouterr().out
        assert f"two_ended: {said} directions" in out and ("a higher rank may help" in out) == (rank == 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "logdensity, steps, said",
    [
        ("-0.5 * (x**2).sum()", 60, None),
        ("-0.5 * ((1e4 * x)**2).sum()", 30, "arrived late: the map is that of "),
        ("-0.5 * x[0]**2 - jnp.where(x[0] > 1, 1e8, 1.0) * (x[1] ** 2).sum()", 300, "trajectories diverged"),
    ],
    ids=["no trouble", "far start", "narrow place"],
)
def test_says_what_draws_do_not_show(tmp_path, capsys, logdensity, steps, said):
    text = f"import jax.numpy as jnp\ndef logdensity(x):\n    return {logdensity}\ninitial_position = jnp.ones(3)\n"
    options = ["--warmup", str(steps), "--draws", "100", "--output", str(tmp_path / "draws.npz")]
    assert command_line.main(["sample", write(tmp_path, text), *options]) == 0
    out = capsys.readouterr().out
    for each in ("arrived late", "diverged"):
        assert (each in out) == (said is not None and each in said)
    assert said is None or said in out


@pytest.mark.filterwarnings("ignore")
def test_demo_compares_schemes_and_draws(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    results, picture = tmp_path / "results.json", tmp_path / "plot.png"
    assert command_line.main([*SMALL, "--json", str(results), "--plot", str(picture)]) == 0
    schemes = json.loads(results.read_text())["schemes"]
    assert list(schemes) == ["diagonal", "eigen", "two_ended"]
    assert 0 <= schemes["two_ended"]["effective_rank"] <= 32
    for summary in schemes.values():
        assert {"min_ess_per_1000_gradients_with_warmup", "max_abs_z", "min_sd_ratio", "max_rhat"} < set(summary)
        assert len(summary["ess"]) == 501
    assert picture.read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "diagonal" in out and "eigen" in out and "max |z|" in out and "directions have a variance beyond" in out


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "no such file"),
        ("import nothing_of_this_name", "does not run: ModuleNotFoundError"),
        ("def logdensity(:", "does not run: SyntaxError"),
        ("initial_position = 0.0", "must define a function logdensity"),
        ("def logdensity(x): return -x**2", "must define initial_position"),
        ("def logdensity(x): return -x**2\ninitial_position = [0.0, 1.0]", "logdensity fails at the initial position"),
        ("def logdensity(x): return -x['a']**2\ninitial_position = {'b': 0.0}", "KeyError"),
        ("def logdensity(x): return -x**2\nimport numpy as np\ninitial_position = np.ones(3)", "must return a scalar"),
        ("def logdensity(x): return -x**2\ninitial_position = 'here'", "initial_position cannot be used"),
        ("def logdensity(x): return -x**2\ndef initial_position(): return 0.0", "initial_position cannot be used"),
        (
            "import jax.numpy as jnp\ndef logdensity(x): return jnp.log(x)\ninitial_position = -1.0",
            "must be finite at the start",
        ),
        ("def logdensity(x): return -1.0 * x**2\ninitial_position = 1", "must be floating point"),
        ("def logdensity(x): return 0.0 * x\ninitial_position = None", "has no arrays"),
        ("raise SystemExit(7)", "does not run: SystemExit"),
        ("def logdensity(x): return -x['file']**2\ninitial_position = {'file': 0.0}", "cannot be called 'file'"),
        ("def logdensity(x): return 0.0\ninitial_position = {'a': {'b': 0.0}, 'a.b': 0.0}", "the same name"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys, text, message):
    path = str(tmp_path / "nowhere.py") if text is None else write(tmp_path, text)
    assert command_line.main(["sample", path, *SMALL]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and message in error


def test_bad_options(tmp_path, capsys):
    model = write(tmp_path, MODEL)
    pytest.importorskip("matplotlib")
    assert command_line.main(["sample", model, "--scheme", "eigen", "--rank", "6"]) == 2
    assert "rank must be at most d = 5, got 6" in capsys.readouterr().err
    assert command_line.main(["sample", model, "--output", "draws.csv"]) == 2
    assert "must end in .nc or .npz" in capsys.readouterr().err
    for option in ("--output", "--json", "--plot"):
        suffix = {"--output": "npz", "--json": "json", "--plot": "png"}[option]
        assert command_line.main(["sample", model, option, str(tmp_path / "nowhere" / f"file.{suffix}")]) == 2
        assert "no such folder" in capsys.readouterr().err
    assert command_line.main(["--plot", "picture.xyz"]) == 2
    assert command_line.main(["--rank", "600"]) == 2
    assert "rank must be at most d = 501" in capsys.readouterr().err
    for option in (["--draws", "0"], ["--scheme", "magic"], ["--chains", "two"], ["--seed", "9" * 20]):
        with pytest.raises(SystemExit) as stop:
            command_line.main(["sample", model, *option])
        assert stop.value.code == 2


def test_runs_as_a_module(tmp_path):
    command = [sys.executable, "-m", "householder_mcmc", "sample", str(tmp_path / "nowhere.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: no such file: {tmp_path / 'nowhere.py'}"


@pytest.mark.filterwarnings("ignore")
def test_a_model_may_import_its_neighbours_and_one_chain_has_no_rhat(tmp_path):
    (tmp_path / "neighbour.py").write_text("START = 1.0")
    model = write(
        tmp_path,
        "from neighbour import START\nimport jax.numpy as jnp\ninitial_position = jnp.array([START])\n"
        "def logdensity(x): return -x[0]**2\n",
    )
    results = tmp_path / "results.json"
    arguments = ["--chains", "1", "--warmup", "20", "--draws", "3", "--rank", "1", "--json", str(results)]
    assert command_line.main(["sample", model, *arguments, "--output", str(tmp_path / "draws.npz")]) == 0
    assert json.loads(results.read_text())["schemes"]["two_ended"]["max_rhat"] is None
