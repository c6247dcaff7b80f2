"""The notebook in `examples`, in a kernel of Jupyter."""

import pathlib
import sys

import pytest

nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("pandas")
NOTEBOOK = pathlib.Path(__file__).parents[1] / "examples/tour.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch):
    # The kernel of this interpreter, whatever others are installed for the user.
    kernel = tmp_path / "kernels/python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(
        '{"argv": ["%s", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "p", "language": "python"}'
        % sys.executable
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output["data"] for output in outputs if "data" in output]
    assert shown[0]["text/plain"] == "10000"
    assert shown[1]["text/html"].startswith("<table>") and "of 830" in shown[1]["text/html"]
    assert shown[2]["text/html"].startswith("<pre>")
    assert shown[-1]["text/plain"].endswith("[{'title': 'New', 'price': 25}])")
