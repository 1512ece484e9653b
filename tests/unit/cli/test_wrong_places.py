"""A path of the wrong kind is an error that says what it is, and what to type."""

from pathlib import Path

import pytest

from stepladder import cli
from stepladder.pipeline.recipe import load_recipe
from stepladder.pipeline.run_folder import RunFolder


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a run, a model, texts and questions."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "mine"
    (run / "sft" / "policy").mkdir(parents=True)
    RunFolder(run).add_session({})
    RunFolder(run).write_recipe(load_recipe("prorag-nano"))
    for folder in ("model", "texts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "texts" / "a.txt").write_text("Rome is in Italy.")
    (tmp_path / "questions.csv").write_text("question,answer\nWhere is Rome?,Italy\n")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("report --run runs", "runs is not a run, but holds some: add the name of one (mine)"),
        ("tree --run runs/mine/sft", "runs/mine/sft is inside of a run: give the run itself, "),
        ("pairs --run runs/mine/sft/policy", "is inside of a run: give the run itself, "),
        ("report --run model", "model is a model, not a run: pass it to `ask`, `eval`, `adapter` and `serve-agent` as"),
        ("report --run questions.csv", "questions.csv is a file; expected the folder of a run"),
        ("prm --run texts", "texts is not a run: it has no run.json. `stepladder run RECIPE --out DIR` makes a run"),
        ("ask runs/mine", "the run is given with --run: stepladder ask --run runs/mine"),
        ("ask --run runs/mine --engine oracle --stage sft", "selects a policy of a run: leave out --engine oracle"),
        ("ask --run runs/mine --model tiny --stage sft", "selects a policy of a run: leave out --model"),
        ("ask --model tiny --stage sft", "selects a policy of a run: add --run DIR, leave out --model"),
        ("tree --run none", "none is not a run: it does not exist. `stepladder run RECIPE --out DIR` makes a run"),
        ("tree --run runs/mine", "runs/mine has no trees yet: `stepladder explore --run runs/mine` makes them"),
        ("export --run runs/mine --out x --to trl", "has no pairs yet: `stepladder pairs --run runs/mine` makes them"),
        ("adapter --model texts --out x", "--model: texts is not a model folder: it has no config.json"),
        ("adapter --out x", "give either --run DIR, a run with a trained policy, or --model DIR with --base NAME"),
        ("run questions.csv --out x", "`stepladder run your-data --set data.name=FILE --set data.index=DIR --out DIR`"),
        ("explore --out runs/mine", "--out: runs/mine is a run already; --run runs/mine adds the stage to it"),
        ("run texts --out x", "texts is a folder; expected a recipe file (.yaml) or one of: prorag-nano, "),
        ("run prorag-nano --out questions.csv", "questions.csv is a file; a run needs a folder"),
        ("run prorag-nano --out texts", "texts contains other files (a.txt) and is not a run; choose another --out"),
    ],
)
def test_the_error_says_what_it_is_and_what_to_type(
    typed: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(typed.split()) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_a_question_may_be_longer_than_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ask", "Where is Rome? " * 400]) == 2
    assert "the oracle can only answer questions of atlas" in capsys.readouterr().err
