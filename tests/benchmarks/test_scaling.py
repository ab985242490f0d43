"""A miniature of the scaling benchmark: every case runs, its bound is right where that is known, and it is written."""

import csv

import jax
import numpy as np
import pytest

from benchmarks import on_gpu, scaling

pytestmark = pytest.mark.slow


@pytest.mark.study
def test_every_case_runs_and_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "_COPIED", 2**20)
    monkeypatch.setattr(scaling, "NUM_RUNS", 1)
    cases = [*scaling.of_size(20, 2, 3), *scaling.warmups(20, 100)]
    rows = scaling.run(cases)
    assert len(rows) == len(cases) + 1 and rows[0]["ratio"] == pytest.approx(1)
    assert all(row["us"] > 0 and row["compile_seconds"] > 0 for row in rows)
    bounds = {(row["operation"], row["form"]): row["bound_us"] / rows[0]["bound_us"] for row in rows}
    numbers = 2 * 2 * 20 + 2 * 3 * 20  # eigenvectors (2, 20) twice; 3 vectors of 20 in and out
    assert bounds["apply", "compact"] == pytest.approx(numbers / 2**21)
    assert np.isnan(bounds["build Q", "compact"])
    scaling.write(rows, tmp_path / "scaling.csv")
    with (tmp_path / "scaling.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    assert scaling.table(rows).count("\n") == len(rows) + 1


@pytest.mark.parametrize("form", ["BlackJAX's", "compact"])
def test_the_compiler_cannot_know_the_gradient(form):
    """With a constant gradient the compiler would move a product of each step out of the loop that is timed."""
    (case,) = [case for case in scaling.of_size(5, 2, 3) if (case.operation, case.form) == ("MALA step", form)]
    step, carry, constants = case.make()
    _, moved = jax.lax.fori_loop(0, 20, lambda _, carry: step(carry, constants), carry)
    assert np.all(np.any(moved.logdensity_grad != carry[1].logdensity_grad, axis=1))


def test_slope_is_the_exponent_of_d():
    rows = [
        {"operation": "a", "form": "b", "dim": d, "rank": 10, "chains": 4, "us": d**1.5} for d in (100, 10**4, 10**6)
    ]
    assert "| a | b | 1.50 |" in scaling.slopes(rows)


def test_time_runs_out():
    assert len(scaling.run(scaling.of_size(20, 2, 3), seconds=-1)) == 0


def test_on_gpu_at_its_smallest_size(tmp_path, monkeypatch, capsys):
    """On a CPU all checks hold. One that fails ends the program, and is in the file all the same."""
    monkeypatch.setattr(scaling, "_COPIED", 2**16)
    monkeypatch.setattr(scaling, "NUM_RUNS", 1)
    on_gpu.main(["--smallest", "--out", str(tmp_path)])
    assert "FAILS" not in capsys.readouterr().out
    (checks,), (times,) = ([*tmp_path.glob(f"{jax.devices()[0].device_kind}{end}.csv")] for end in ("-checks", ""))
    with checks.open() as file:
        assert {row["holds"] for row in csv.DictReader(file)} == {"True"}
    with times.open() as file:
        found = {(row["operation"], row["form"]) for row in csv.DictReader(file)}
    assert {("hm.sample", "two_ended"), ("HMC transition", "exact"), ("adaptive step", "two_ended")} <= found

    monkeypatch.setattr(on_gpu, "precision", lambda rank, dim: [on_gpu.Check("a", 2, 1), on_gpu.Check("b", 1, 1)])
    monkeypatch.setattr(on_gpu, "exactness", lambda dim: [on_gpu.Check("c", np.nan, 1)])
    with pytest.raises(SystemExit, match="failed: a; c$"):
        on_gpu.main(["--smallest", "--out", str(tmp_path), "--seconds", "-1"])
    with checks.open() as file:
        assert [row["holds"] for row in csv.DictReader(file)] == ["False", "True", "False"]
