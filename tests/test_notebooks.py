"""The notebooks run from top to bottom. Run as a program, this file stores their outputs."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Jupyter's own


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_runs(path):
    execute(path)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_outputs_are_stored_with_a_plot(path):
    cells = pytest.importorskip("nbformat").read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)  # progress bars, and paths of one machine


def execute(path):
    """The notebook with the outputs of a fresh process."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=folder, record_timing=False).execute()
    return notebook


if __name__ == "__main__":
    import nbformat

    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(FOLDER.glob("*.ipynb")):
        notebook = execute(path)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, path)
