"""The command line: results written and read back, and one clear line for what cannot be run."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.cli import cache, item_response
from householder_mcmc.cli import main as command_line
from householder_mcmc.sampling import sample

SMALL = ["--chains", "2", "--warmup", "40", "--draws", "30"]


def write(tmp_path, text):
    path = tmp_path / "model.py"
    path.write_text(text)
    return str(path)


@pytest.mark.filterwarnings("ignore")
def test_counts_are_of_warm_up_and_draws_and_warnings_of_chains_and_variables(tmp_path, model, made_run):
    results = tmp_path / "results.json"
    options = ["--chains", "2", "--warmup", "40", "--draws", "100", "--scheme", "diagonal", "--json", str(results)]
    assert command_line.main(["sample", model, *options, "--output", str(tmp_path / "x.npz")]) == 0
    summary = json.loads(results.read_text())["schemes"]["diagonal"]
    ess = min(summary["ess"])
    assert 1e3 * ess / summary["min_ess_per_1000_gradients"] == pytest.approx(2 * 100 * 3)
    assert 1e3 * ess / summary["min_ess_per_1000_gradients_with_warmup"] == pytest.approx(2 * 100 * 3 + 300 + 500)
    assert summary["num_nonfinite"] == 100 + 2
    assert summary["acceptance_rate"] == pytest.approx(0.5)
    assert summary["warmup_seconds"] == 30 + 2  # looks at the clock: as it begins to wait, and at the end
    assert ess / summary["min_ess_per_second"] == pytest.approx(summary["sampling_seconds"])
    text = " ".join(summary["warnings"])
    assert "chains [1] accepted less than 20%" in text
    assert re.search(r"R-hat is [\d.]+ \(effects\[1, 0\]\)", text)  # coordinate 2: effects come before location
    assert "the map is that of 10 of 40 steps" in text and "100 trajectories diverged" in text


@pytest.mark.filterwarnings("ignore")
def test_starts_follow_the_seed_and_the_default_rank_fits(tmp_path, capsys, made_run):
    text = "import jax\ndef logdensity(x):\n    return -0.5 * (x**2).sum()\n"
    model = write(tmp_path, text + "def initial_position(key):\n    return jax.random.normal(key, (2,))\n")
    options = ["--chains", "2", "--draws", "10", "--scheme", "eigen", "--output", str(tmp_path / "draws.npz")]
    starts, keys = [], []
    for seed in ("0", "0", "1"):
        assert command_line.main(["sample", model, *options, "--seed", seed]) == 0
        assert "eigen: rank 2" in capsys.readouterr().out
        starts.append(np.asarray(made_run["positions"])), keys.append(made_run["key"])
    for first, again, other in (starts, keys):
        np.testing.assert_array_equal(first, again)
        assert not np.any(first == other)
    assert not np.any(starts[0][0] == starts[0][1])  # nor do chains share a start


@pytest.mark.filterwarnings("ignore")  # of ArviZ and JAX about 30 draws
@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_samples_a_users_model(tmp_path, model, capsys, suffix):
    if suffix == ".nc":
        pytest.importorskip("arviz")
    output = tmp_path / f"draws{suffix}"
    assert command_line.main(["sample", model, *SMALL, "--output", str(output)]) == 0
    assert "acceptance rate" in capsys.readouterr().out
    if suffix == ".npz":
        draws = dict(np.load(output))
    else:
        import arviz

        draws = {name: values.values for name, values in arviz.from_netcdf(output).posterior.data_vars.items()}
    assert {name: values.shape for name, values in draws.items()} == {"location": (2, 30), "effects": (2, 30, 2, 2)}


@pytest.mark.filterwarnings("ignore")
def test_a_closed_pipe_does_not_cost_the_draws(tmp_path, model, monkeypatch, made_run):
    def refuse(*args, **kwargs):
        raise BrokenPipeError

    monkeypatch.setattr(command_line.report, "table", refuse)
    output = tmp_path / "draws.npz"
    options = ["--chains", "2", "--draws", "10", "--scheme", "diagonal", "--output", str(output)]
    with pytest.raises(BrokenPipeError):
        command_line.main(["sample", model, *options])
    assert output.exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "scheme",
    [pytest.param(name, marks=[] if name in ("none", "eigen") else pytest.mark.slow) for name in command_line.SCHEMES],
)
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
    written = json.loads(results.read_text())
    assert written["options"].get("rank") == (None if scheme in ("none", "diagonal", "dense") else "2")
    summary = written["schemes"][scheme]
    assert len(summary["ess"]) == 4 and 0 < summary["acceptance_rate"] < 1


@pytest.mark.filterwarnings("ignore")
def test_mala_instead_of_hmc(tmp_path, model, capsys):
    """Both solve this Gaussian exactly, in a gradient a draw but where HMC's time is longer than a step."""
    options = ["--chains", "2", "--warmup", "500", "--draws", "400", "--output", str(tmp_path / "draws.npz")]
    found = {}
    for sampler, expected in (("mala", 1.0), ("hmc", 1.0)):
        results = tmp_path / f"{sampler}.json"
        assert command_line.main(["sample", model, *options, "--sampler", sampler, "--json", str(results)]) == 0
        (found[sampler],) = json.loads(results.read_text())["schemes"].values()
        assert abs(found[sampler]["acceptance_rate"] - expected) < 0.12
        assert f"400 draws each of {sampler.upper()}" in capsys.readouterr().out
    gradients = {name: 1e3 * each["min_ess"] / each["min_ess_per_1000_gradients"] for name, each in found.items()}
    assert gradients["mala"] == pytest.approx(800) and 800 <= round(gradients["hmc"]) < 810


@pytest.mark.slow
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
    text = f"import jax.numpy as jnp\ndef logdensity(x):\n    return {logdensity}\n"
    text += "def initial_position(key):\n    return jnp.ones(3)\n"  # all at one place, so that none climbs alone
    options = ["--warmup", str(steps), "--draws", "100", "--output", str(tmp_path / "draws.npz")]
    assert command_line.main(["sample", write(tmp_path, text), *options]) == 0
    out = capsys.readouterr().out
    for each in ("arrived late", "diverged"):
        assert (each in out) == (said is not None and each in said)
    assert said is None or said in out


@pytest.mark.filterwarnings("ignore")
def test_demo_compares_schemes_and_draws(tmp_path, capsys, monkeypatch):
    """On a covariance I + 11^T of 12 dimensions, in place of its own posterior.

    One direction is beyond a factor of 3. The covariance has the eigenvalues 13, along (1, ..., 1), and 1. In units of
    the marginal variances, 2, they are 6.5 and 0.5; of the conditional ones, 13/12, they are 12 and 0.92.
    """
    pytest.importorskip("matplotlib")

    def logdensity(x):
        return -0.5 * (jnp.sum(x**2) - jnp.sum(x) ** 2 / 13)

    reference = item_response.Reference(mean=np.zeros(12), sd=np.full(12, np.sqrt(2)), mcse=np.zeros(12))
    model = logdensity, lambda key: jax.random.normal(key, (12,)), reference
    monkeypatch.setattr(item_response, "load", lambda: model)
    results, picture = tmp_path / "results.json", tmp_path / "plot.png"
    options = ["--warmup", "300", "--draws", "200", "--json", str(results), "--plot", str(picture)]
    assert command_line.main(options) == 0
    schemes = json.loads(results.read_text())["schemes"]
    assert list(schemes) == ["diagonal", "eigen", "two_ended"]
    for summary in schemes.values():
        assert len(summary["ess"]) == 12
        # 12 means: beyond 5 with a probability below 10^-5; an ESS of 60 gives sds a standard error of 0.09
        assert summary["max_abs_z"] < 5 and 0.7 < summary["min_sd_ratio"] < 1.3
    assert schemes["two_ended"]["effective_rank"] == 1 and schemes["two_ended"]["rank"] == 12
    assert picture.read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "max |z|" in out and "eigen: rank 2" in out and "two_ended: 1 of 12 directions have a variance beyond" in out


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.filterwarnings("ignore")
def test_demo_finds_the_directions_of_its_posterior(tmp_path):
    """Three are beyond a factor of 3: by the Hessian at the mean, in the scales (variance / precision)^(1/4) that
    `two_ended` learns, the eigenvalues are 51, 16, 0.095, and of the others 0.69 to 1.3.
    """
    results = tmp_path / "results.json"
    assert command_line.main(["--warmup", "300", "--draws", "100", "--json", str(results)]) == 0
    schemes = json.loads(results.read_text())["schemes"]
    assert schemes["two_ended"]["effective_rank"] == 3
    assert all(len(summary["ess"]) == 501 for summary in schemes.values())
    assert schemes["two_ended"]["min_ess"] > 2 * max(schemes[name]["min_ess"] for name in ("diagonal", "eigen"))


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
        (
            "import numpy\ndef logdensity(x): return -1.0 * x**2\ninitial_position = numpy.array(1)",
            "must be floating point",
        ),
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


@pytest.mark.parametrize(
    "text, file, line",
    [
        ("START = 1.0\n\nimport nothing_of_this_name", "model.py", 3),
        ("x = 1\ndef f():\n    return x / 0\nf()", "model.py", 3),
        ("initial_position = {'b': 0.0}\ndef logdensity(x):\n    y = x['b']\n    return y + x['a']", "model.py", 4),
        (  # inside a library the model's own line is the last that counts
            "import jax.numpy as jnp\ninitial_position = jnp.ones(3)\ndef logdensity(x):\n"
            "    y = 2 * x\n    return jnp.dot(y, jnp.ones(2))",
            "model.py",
            5,
        ),
        ("from helper import logdensity\ninitial_position = 0.0", "helper.py", 2),
        ("def logdensity(x): return x\ndef initial_position(key):\n    raise ValueError('far')", "model.py", 3),
    ],
    ids=["import", "function", "logdensity", "library", "neighbour", "initial position"],
)
def test_errors_of_a_model_name_its_line(tmp_path, capsys, text, file, line):
    (tmp_path / "helper.py").write_text("def logdensity(x):\n    return x['a']\n")
    assert command_line.main(["sample", write(tmp_path, text), *SMALL]) == 2
    assert capsys.readouterr().err.strip().endswith(f" ({tmp_path / file}, line {line})")


def test_bad_options(tmp_path, model, capsys):
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


@pytest.mark.filterwarnings("ignore")
def test_options_reach_the_run(tmp_path, model, capsys, made_run):
    """Chain 1 is elsewhere in a coordinate, so there are never enough draws: ten times as many are made."""
    text = Path(model).read_text()
    model = write(tmp_path, text.replace('"location": 3.0', '"location": jnp.float32(3)'))
    output = tmp_path / "draws.npz"
    options = ["--chains", "2", "--draws", "10", "--scheme", "diagonal", "--output", str(output)]
    options += ["--until", "50,1.2", "--thin", "2", "--target-accept", "0.9", "--x64"]
    options += ["--json", str(tmp_path / "results.json")]
    assert command_line.main(["sample", model, *options]) == 0
    assert made_run["target_acceptance_rate"] == 0.9
    with np.load(output) as draws:
        assert draws["location"].shape == (2, 100) and draws["location"].dtype == np.float64
    summary = json.loads((tmp_path / "results.json").read_text())["schemes"]["diagonal"]
    assert 1e3 * summary["min_ess"] / summary["min_ess_per_1000_gradients"] == pytest.approx(2 * 100 * 2 * 3)
    out = capsys.readouterr().out
    assert "ended at 100 draws, before all ESS were 50 and R-hat 1.2" in out and "100 draws each of HMC" in out
    table = out[out.index("  mean  ") :]
    assert re.search(r"^effects\[1, 0\] +[\d.]+ ", table, flags=re.MULTILINE) and "ess_bulk" in table
    assert not jax.config.jax_enable_x64


MODELS = {
    "hm.Model": (
        "import jax.numpy as jnp\nimport householder_mcmc as hm\n"
        "model = hm.constrained(lambda p: -p['s'], {'s': 'positive'}, {'s': 1.0})\n",
        {"s": ()},
    ),
    "numpyro": (
        "import numpyro, numpyro.distributions as dist\n"
        "def model(size, y, wide=False):\n"
        "    assert wide\n"
        "    s = numpyro.sample('s', dist.HalfNormal(1))\n"
        "    x = numpyro.sample('x', dist.Normal(0, s).expand([size]))\n"
        "    numpyro.sample('y', dist.Normal(x[0], 1), obs=y)\n"
        "args, data, kwargs = (3,), {'y': 0.5}, {'wide': True}\n",
        {"s": (), "x": (3,)},
    ),
    "pymc": (
        "import pymc as pm\n"
        "with pm.Model() as model:\n"
        "    s = pm.HalfNormal('s', 1)\n"
        "    pm.Normal('x', 0, s, shape=3)\n",
        {"s": (), "x": (3,)},
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("keep_precision")
@pytest.mark.parametrize("library", MODELS)
def test_models_of_other_libraries(tmp_path, made_run, library):
    """Their variables, on their own scales: s is positive."""
    pytest.importorskip("numpyro" if library == "hm.Model" else library)
    text, shapes = MODELS[library]
    output = tmp_path / "draws.npz"
    options = ["--chains", "2", "--draws", "10", "--scheme", "diagonal", "--output", str(output)]
    assert command_line.main(["sample", write(tmp_path, text), *options]) == 0
    with np.load(output) as draws:
        assert {name: draws[name].shape[2:] for name in draws} == shapes
        assert np.all(draws["s"] > 0)


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        command_line.main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"householder_mcmc {hm.__version__}\n"


def test_compiled_programs_are_kept_in_the_users_cache(tmp_path, monkeypatch):
    """Unless the user has named a folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache.sys, "platform", "linux")
    before, kept = jax.config.jax_compilation_cache_dir, str(tmp_path / "householder_mcmc" / "jax")
    try:
        for given, expected in ((None, kept), ("/elsewhere", "/elsewhere")):
            jax.config.update("jax_compilation_cache_dir", given)
            cache.use_compilation_cache()
            assert jax.config.jax_compilation_cache_dir == expected
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.slow
def test_ctrl_c_saves_what_there_is(tmp_path):
    """SIGINT to a process of its own while draws come: a report of the first draws, which are saved; and programs."""
    model = write(
        tmp_path,
        "import jax, jax.numpy as jnp\n"
        "initial_position = jnp.zeros(3)\n"
        "def logdensity(x):  # slow: some milliseconds\n"
        "    y = jax.lax.fori_loop(0, 4000, lambda i, y: jnp.cos(y), jax.lax.stop_gradient(x))\n"
        "    return -0.5 * jnp.sum(x**2) + 0 * jnp.sum(y)\n",
    )
    kept = tmp_path / "cache"
    every_program = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_LOG_COMPILES": "1"}  # is kept, and logged
    options = ["--chains", "2", "--warmup", "50", "--draws", "1000000", "--output", str(tmp_path / "draws.npz")]
    running = subprocess.Popen(
        [sys.executable, "-m", "householder_mcmc", "sample", model, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(kept), **every_program},
    )
    assert running.stderr is not None
    for line in running.stderr:  # the program of the draws is compiled
        if "Finished XLA compilation of jit(run)" in line:
            break
    time.sleep(2)
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors
    with np.load(tmp_path / "draws.npz") as draws:
        num_draws = draws["x"].shape[1]
    assert 0 < num_draws < 1_000_000 and f"the run was interrupted after {num_draws} of 1000000 draws." in output
    assert "Traceback" not in errors and f"{num_draws} draws each of HMC" in output
    assert any(kept.iterdir())


def test_ctrl_c_before_the_first_draw(tmp_path, model, capsys, monkeypatch, made_run):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(sample, "_wait", interrupt)
    output = tmp_path / "draws.npz"
    options = ["--chains", "2", "--draws", "10", "--scheme", "diagonal", "--output", str(output)]
    assert command_line.main(["sample", model, *options]) == 130
    assert capsys.readouterr().err.endswith("\ninterrupted\n") and not output.exists()


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
