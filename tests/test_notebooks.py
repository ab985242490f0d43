"""The notebooks run from top to bottom."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Jupyter's own


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_runs(path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
