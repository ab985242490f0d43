"""Files of a run: refused before it if they cannot be written; results that a full disk does not cost."""

import json
from pathlib import Path

import numpy as np
import pytest

import householder_mcmc as hm
from householder_mcmc.cli import files
from householder_mcmc.cli import main as command_line

MADE = ["--chains", "2", "--draws", "10", "--scheme", "diagonal"]  # for `made_run`


@pytest.mark.filterwarnings("ignore")
def test_what_netcdf_refuses_is_saved_in_its_place(tmp_path, model, capsys, monkeypatch, made_run):
    pytest.importorskip("arviz")

    class Refused:
        def to_netcdf(self, path):
            Path(path).write_text("in part")
            raise OSError("no such name")

    monkeypatch.setattr(hm.Result, "to_arviz", lambda result: Refused())
    assert command_line.main(["sample", model, *MADE]) == 0
    assert "no such name" in capsys.readouterr().err
    assert (tmp_path / "model.npz").exists() and not (tmp_path / "model.nc").exists()


@pytest.mark.filterwarnings("ignore")
def test_results_of_a_full_disk_are_saved_elsewhere(tmp_path, model, capsys, monkeypatch, made_run):
    """A part of the draws is written, then the disk is full; the old results cannot be opened, and stay."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(files.tempfile, "tempdir", str(temporary))
    output, results = tmp_path / "draws.npz", tmp_path / "results.json"
    output.write_text("old"), results.write_text("old")
    savez, write_text = np.savez, Path.write_text

    def savez_of_a_full_disk(path, **draws):
        if path == output:
            path.write_bytes(b"in part")
            raise OSError(28, "No space left on device")
        savez(path, **draws)

    def refuse(path, text):
        if path == results:
            raise OSError(13, "Permission denied")
        write_text(path, text)

    monkeypatch.setattr(np, "savez", savez_of_a_full_disk)
    monkeypatch.setattr(Path, "write_text", refuse)
    options = [*MADE, "--output", str(output), "--json", str(results)]
    assert command_line.main(["sample", model, *options]) == 0
    (draws,), (diagnostics,) = temporary.glob("*/draws.npz"), temporary.glob("*/results.json")
    assert np.load(draws)["location"].shape == (2, 10) and json.loads(diagnostics.read_text())["schemes"]
    said = capsys.readouterr()
    assert "No space left" in said.err and f"saved in {diagnostics} instead" in said.err
    assert said.out.index("acceptance rate") < said.out.index(f"draws saved in {draws}")
    assert not output.exists() and results.read_text() == "old"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_folder_left", [True, False])
def test_draws_that_can_be_saved_nowhere_are_an_error(tmp_path, model, capsys, monkeypatch, made_run, is_folder_left):
    def refuse(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", refuse)
    if not is_folder_left:
        monkeypatch.setattr(files.tempfile, "mkdtemp", refuse)
    results = tmp_path / "results.json"
    options = [*MADE, "--output", str(tmp_path / "draws.npz"), "--json", str(results)]
    assert command_line.main(["sample", model, *options]) == 1
    said = capsys.readouterr()
    assert "acceptance rate" in said.out and "draws saved" not in said.out and results.exists()


@pytest.mark.parametrize("option", ["--output", "--json", "--plot", None], ids=str)
@pytest.mark.parametrize("place", ["folder", "broken link"])
def test_files_that_cannot_be_written_are_refused_before_the_run(tmp_path, model, capsys, monkeypatch, option, place):
    """As which the default, beside the model, counts too."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(files, "_has_arviz", lambda: False)
    monkeypatch.setattr(command_line, "_run", None)
    suffix = {"--json": ".json", "--plot": ".png"}.get(option, ".npz")
    path = tmp_path / f"model{suffix}"
    path.mkdir() if place == "folder" else path.symlink_to(tmp_path / "nowhere" / "file")
    options = [] if option is None else [option, str(path)]
    assert command_line.main(["sample", model, *options]) == 2
    assert f"error: {option or '--output'}: cannot write {path}: " in capsys.readouterr().err


def test_trying_whether_a_file_can_be_written_changes_nothing(tmp_path):
    old, new, link, target = (tmp_path / name for name in ("old", "new", "link", "target"))
    old.write_text("kept")
    link.symlink_to(target)
    for path in (old, new, link):
        files.check_writable("json", path)
    assert old.read_text() == "kept" and set(tmp_path.iterdir()) == {old, link}
