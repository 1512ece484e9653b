"""The notebook in examples/ runs from top to bottom."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support import ROOT

NOTEBOOK = ROOT / "examples/quickstart.ipynb"


@pytest.mark.slow
def test_the_quickstart_notebook_runs_and_shows_its_results() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": NOTEBOOK.parent}}
    ).execute()
    outputs = {
        cell.source: "".join(
            str(output.get("data", {}).get("text/html", "")) + str(output.get("data", {}).get("text/plain", ""))
            for output in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    assert (
        "answered after" in outputs["run.agent.ask(question).show()"]
        or "after" in outputs["run.agent.ask(question).show()"]
    )
    assert "<svg" in outputs["run.trees[0]"]
    assert "eval-sft: F1" in outputs["run.scores()"]
    assert "exact match" in next(shown for source, shown in outputs.items() if source.startswith("sl.evaluate"))
    assert "quickstart" in next(shown for source, shown in outputs.items() if "sl.compare" in source)


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")
