"""A miniature of the first-answer benchmark, and what it says of samplers without an answer."""

import csv

import numpy as np
import pytest

pytest.importorskip("numpyro")
pytest.importorskip("nutpie")
pytest.importorskip("pymc")

from benchmarks.first_answer import __main__ as first_answer  # noqa: E402
from benchmarks.first_answer.child import MODELS  # noqa: E402

MODEL = "logistic regression, d = 25"
SMALL = ["--models", MODEL, "--samplers", "ours", "--repeats", "1", "--warmup", "20", "--draws", "30", "--out"]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", MODELS)
def test_both_forms_of_a_model_are_one_posterior(name):
    """Log-densities agree up to a constant, with parameters in the same order."""
    problem, of_pymc = MODELS[name].problem(), MODELS[name].of_pymc()
    start = of_pymc.initial_point()
    ends = np.cumsum([np.size(value) for value in start.values()])
    logp = of_pymc.compile_logp(mode="FAST_COMPILE")
    points = np.asarray(problem.starts(0, 3))
    theirs = [
        logp({name: part.reshape(np.shape(start[name])) for name, part in zip(start, np.split(x, ends), strict=False)})
        for x in points
    ]
    ours = [float(problem.logdensity(x)) for x in points]
    np.testing.assert_allclose(np.diff(ours), np.diff(theirs), rtol=1e-6)


@pytest.mark.study
def test_every_run_is_written(tmp_path, capsys):
    first_answer.main([*SMALL, str(tmp_path)])
    with (tmp_path / "first_answer.csv").open() as file:
        fresh, cached = csv.DictReader(file)
    assert (fresh["cached"], cached["cached"]) == ("False", "True")
    assert fresh["outcome"] == cached["outcome"] == "ok"
    assert fresh["min_ess"] == cached["min_ess"] and float(fresh["min_ess"]) > 1  # the same seed
    assert float(cached["cpu_seconds"]) < 0.8 * float(fresh["cpu_seconds"])
    assert (tmp_path / "first_answer.md").read_text() == capsys.readouterr().out


def test_a_sampler_over_the_limit_is_written_as_such(tmp_path, capsys):
    first_answer.main([*SMALL, str(tmp_path), "--limit", "0.1"])
    assert f"| {MODEL} | ours | > 0.1 s |  | > 0.1 s |" in capsys.readouterr().out
    with (tmp_path / "first_answer.csv").open() as file:
        assert [row["outcome"] for row in csv.DictReader(file)] == ["> 0.1 s"]


def test_a_part_of_the_benchmark_needs_a_folder():
    with pytest.raises(SystemExit):
        first_answer.main(["--samplers", "ours"])


def test_table_has_medians():
    numbers = {"outcome": "ok", "max_rhat": 1.0, "min_ess": 400.0, "ess_per_second": 40.0}
    rows = [{"model": "a", "sampler": "b", "cached": False, "seconds": s} | numbers for s in (1.0, 9.0, 2.0)]
    assert first_answer.table(rows).endswith("| a | b | 2.0 |  | 400 | 40 |  | 1.000 |")
