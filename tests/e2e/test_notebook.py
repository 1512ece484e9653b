"""The notebooks in examples/ run from top to bottom, one after the other in one kernel: to start one takes long.

Cells with the tag "parameters" get the values of `SMALL`.
"""

from itertools import chain
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support import ROOT

NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in sorted((ROOT / "examples").glob("*.ipynb"))}


#: What the cells of parameters assign here, by the name of the notebook.
SMALL = {"reward_model": 'sizes = {"sft": 24, "explore": 2, "chains": 8, "eval-prm": 2}'}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each cell shows, by its source."""
    for name, notebook in NOTEBOOKS.items():
        parameters = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
        assert len(parameters) == (name in SMALL)
        for cell in parameters:
            cell.source = SMALL[name]
    cells = list(chain.from_iterable(notebook.cells for notebook in NOTEBOOKS.values()))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    every = nbformat.v4.new_notebook(cells=cells)
    examples = {"metadata": {"path": ROOT / "examples"}}
    NotebookClient(every, timeout=600, kernel_name="python3", resources=examples).execute()
    return {cell.source: "".join(map(_text, cell.outputs)) for cell in cells if cell.cell_type == "code"}


def _text(output: nbformat.NotebookNode) -> str:
    data = output.get("data", {})
    return "".join(
        str(part) for part in (output.get("text", ""), data.get("text/html", ""), data.get("text/plain", ""))
    )


def shown_by(start: str, shown: dict[str, str]) -> str:
    """What the first cell shows that starts like this."""
    return next(text for source, text in shown.items() if source.startswith(start))


@pytest.mark.slow
def test_the_quickstart_shows_a_run_its_trees_and_comparisons(shown: dict[str, str]) -> None:
    assert "after" in shown["run.agent.ask(question).show()"]
    assert "<svg" in shown["run.trees[0]"]
    assert "eval-sft: F1" in shown["run.scores()"]
    assert "exact match" in shown_by("sl.evaluate", shown)
    assert "quickstart" in shown_by("other = ", shown)


@pytest.mark.slow
def test_an_agent_is_trained_on_texts_and_questions(shown: dict[str, str]) -> None:
    assert "question,answer" in shown_by("import json\nimport tempfile\nfrom pathlib import Path\n\nfrom sample", shown)
    assert "(600, 'bm25')" in shown_by("index = ", shown)
    assert "eval-sft" in shown_by('recipe = {\n    "name": "my-data"', shown)
    assert " -> " in shown_by("print(json.loads", shown), "mined decompositions"
    assert "after" in shown["run.agent.ask(asked[0].text).show()"]
    assert "exact match" in shown_by("scores = ", shown)


@pytest.mark.slow
def test_a_reward_model_is_looked_at(shown: dict[str, str]) -> None:
    scored = next(text for source, text in shown.items() if "def show_scores" in source)
    scores = [float(line.split()[0]) for line in scored.splitlines()]
    assert len(scores) == 5, "two searches with their sub-answers, and the answer"
    assert all(0 <= score <= 1 for score in scores)
    assert {line.split(":")[0] for line in shown_by("import random", shown).splitlines() if "lowest" in line} >= {
        "gold",
        "answer_first",
    }
    assert "mean" in shown_by("examination = ", shown)
    assert "SVG" in shown_by("display(SVG", shown)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    stored = nbformat.read(Path(ROOT / "examples" / f"{name}.ipynb"), as_version=4)
    assert all(not cell.outputs and cell.execution_count is None for cell in stored.cells if cell.cell_type == "code")
