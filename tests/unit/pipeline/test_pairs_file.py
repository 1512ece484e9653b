"""Pairs of other people as a stage of a run: read from what was published or from another run, split, handed on."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records, write_records
from stepladder.core.trace import Action, ActionKind, Author, Pair, Segment, Side
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stages import STAGES, StageResult, StageSpec, Task

RECORD = {
    "instruction": "You answer by searching.",
    "input": "Question: Who built Orm Tower?",
    "prompt": "not looked at",
    "chosen": "I look it up. <query>Who built Orm Tower?</query>",
    "rejected": "I know. <answer>Nobody</answer>",
    "chosen_action_type": "Query Generation",
    "chosen_content": "Who built Orm Tower?",
    "rejected_action_type": "Answer Generation",
    "rejected_content": "Nobody",
    "layer": 0,
}


def published(count: int = 10) -> list[dict[str, Any]]:
    return [{**RECORD, "layer": number % 3} for number in range(count)]


def pair(question: str, judge: str = "spre") -> Pair:
    sides = [
        Side(Segment(Author.POLICY, f"<answer>{word}</answer>"), Action(ActionKind.ANSWER, word), value)
        for word, value in (("Velm", 1.0), ("Oss", 0.5))
    ]
    prompt = Segment(Author.PROMPT, f"Question: {question}\n", (1, 2), (), "v")
    return Pair(question, "prorag", (prompt,), *sides, 0, judge)


def recipe(path: Path, **changes: Any) -> Recipe:
    stages = {"theirs": {"kind": "pairs-file", "path": str(path), **changes}}
    return Recipe.read({"policy": "tiny", "device": "cpu", "agent": "reasonrag-brief", "stages": stages})


def run(recipe: Recipe, tmp_path: Path) -> tuple[dict[str, Any], list[Pair], list[Pair]]:
    """What the stage tells, and the pairs it made: to train on, and held out."""
    report = run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))
    folder = tmp_path / "run" / "theirs" / "pairs"
    train, dev = (list(read_records(folder / name, Pair)) for name in ("train.jsonl", "dev.jsonl"))
    summary = dict(report.stages[0].summary)
    assert json.loads((folder / "stats.json").read_text()) == summary
    return summary, train, dev


def as_array(path: Path) -> Path:
    path = path / "pairs.json"
    path.write_text(json.dumps(published()))
    return path


def as_lines(path: Path) -> Path:
    path = path / "pairs.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in published()))
    return path


def as_gzip(path: Path) -> Path:
    path = path / "pairs.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in published()).encode()))
    return path


# --- what comes out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [as_array, as_lines, as_gzip])
def test_published_pairs_become_pairs_of_the_recipe_s_agent(tmp_path: Path, written: Callable[[Path], Path]) -> None:
    summary, train, dev = run(recipe(written(tmp_path), dev_share=0.2), tmp_path)
    assert (summary["pairs"], summary["train"], summary["dev"], len(train), len(dev)) == (10, 8, 2, 8, 2)
    assert summary["kinds"] == {"query over answer": 10}
    assert summary["depths"] == {"0": 4, "1": 3, "2": 3}
    assert (summary["judge"], summary["gold"]) == ("rag-proguide", None)
    for each in (*train, *dev):
        assert each.agent == "reasonrag-brief"
        assert [segment.text for segment in each.context] == [f"{RECORD['instruction']}\n{RECORD['input']}"]
        assert (each.chosen.written.text, each.rejected.written.text) == (RECORD["chosen"], RECORD["rejected"])
    assert not {each.question_id for each in train} & {each.question_id for each in dev}


def test_a_file_of_our_own_pairs_is_taken_to_the_letter_and_split_by_question(tmp_path: Path) -> None:
    pairs = [pair(f"q{number}", judge) for number in range(10) for judge in ("spre", "gold")]
    write_records(tmp_path / "mine.jsonl", pairs)
    summary, train, dev = run(recipe(tmp_path / "mine.jsonl"), tmp_path)
    assert (summary["train"], summary["dev"], summary["questions"], summary["judge"]) == (18, 2, 10, "gold, spre")
    assert sorted(map(repr, train + dev)) == sorted(map(repr, pairs))
    assert len({each.question_id for each in dev}) == 1, "both pairs of a question are on one side"
    assert train == [each for each in pairs if each not in dev], "in their order"


def test_a_folder_of_another_run_keeps_its_own_split(tmp_path: Path) -> None:
    pairs = [pair(f"q{number}") for number in range(4)]
    write_records(tmp_path / "other" / "train.jsonl", pairs[:1])
    write_records(tmp_path / "other" / "dev.jsonl", pairs[1:])
    _, train, dev = run(recipe(tmp_path / "other", dev_share=0.0), tmp_path)
    assert (train, dev) == (pairs[:1], pairs[1:])


def test_a_folder_without_held_out_pairs_is_split(tmp_path: Path) -> None:
    write_records(tmp_path / "other" / "train.jsonl", [pair(f"q{number}") for number in range(4)])
    summary, _, _ = run(recipe(tmp_path / "other", dev_share=0.25), tmp_path)
    assert (summary["train"], summary["dev"]) == (3, 1)


def test_one_pair_is_learnt_from_and_not_held_out(tmp_path: Path) -> None:
    write_records(tmp_path / "one.jsonl", [pair("q")])
    summary, _, _ = run(recipe(tmp_path / "one.jsonl", dev_share=0.9), tmp_path)
    assert (summary["train"], summary["dev"]) == (1, 0)


def test_what_takes_pairs_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def learn(settings: Config, context: RunContext, task: Task) -> StageResult:
        seen.extend(each.question_id for each in read_records(Path(task.inputs["pairs"]) / "train.jsonl", Pair))
        return StageResult()

    monkeypatch.setitem(STAGES._targets, "learn", StageSpec(Config, learn, inputs=("policy", "pairs")))
    write_records(tmp_path / "mine.jsonl", [pair("q")])
    stages = {"pairs-file": {"path": str(tmp_path / "mine.jsonl")}, "learn": {}}
    made = Recipe.read({"policy": "tiny", "device": "cpu", "stages": stages})
    assert dict(made.stages[1].inputs) == {"policy": "base", "pairs": "pairs-file"}
    run_recipe(made, tmp_path / "run", console=Console(file=StringIO()))
    assert seen == ["q"]


def test_a_path_is_kept_whole_so_that_a_run_can_go_on_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path / "mine.jsonl", [pair("q")])
    monkeypatch.chdir(tmp_path)
    made = recipe(Path("mine.jsonl"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(made, tmp_path)[0]["pairs"] == 1


def test_the_file_counts_by_its_content_and_not_by_its_place(tmp_path: Path) -> None:
    write_records(tmp_path / "mine.jsonl", [pair("q")])
    run(recipe(tmp_path / "mine.jsonl"), tmp_path)
    (tmp_path / "mine.jsonl").rename(tmp_path / "moved.jsonl")
    report = run_recipe(recipe(tmp_path / "moved.jsonl"), tmp_path / "run", console=Console(file=StringIO()))
    assert report.skipped == ("theirs",)
    write_records(tmp_path / "moved.jsonl", [pair("other")])
    with pytest.raises(StepladderError, match=r"'theirs' in .* stages\.theirs\.path: content \w+ -> content \w+"):
        run(recipe(tmp_path / "moved.jsonl"), tmp_path)


# --- what cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.json", None, r"none\.json does not exist; expected a file of RAG-ProGuide, a file of pairs, or a fold"),
        ("folder", {}, r"the folder .*folder has no train\.jsonl; expected"),
        ("folder", {"train.jsonl": "", "dev.jsonl": ""}, r"theirs: .*folder has no training pairs"),
        ("empty.json", "[]", r"theirs: .*empty\.json has no training pairs; expected at least one"),
        ("empty.jsonl", "", r"empty\.jsonl: the file is empty"),
        (
            "other.jsonl",
            '{"question": "Who?"}\n',
            r"other\.jsonl:1: instruction: is missing\. Expected records of RAG-ProGuide",
        ),
        ("tree.jsonl", '{"record":"tree","version":1,"nodes":[]}\n', r"tree\.jsonl:1: found a 'tree' record where a"),
        ("later.jsonl", '{"record":"pair","version":9}\n', r"later\.jsonl:1: schema version 9 is unknown"),
        ("cut.jsonl.gz", b"\x1f\x8b\x08\x00", r"cut\.jsonl\.gz: the gzip data is truncated"),
    ],
)
def test_what_holds_no_pairs_is_refused(
    tmp_path: Path, name: str, content: str | bytes | dict[str, str] | None, said: str
) -> None:
    path = tmp_path / name
    if isinstance(content, dict):
        path.mkdir()
        for each, text in content.items():
            (path / each).write_text(text)
    elif content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(StepladderError, match=said):
        run(recipe(path), tmp_path)
    assert not (tmp_path / "run" / "theirs" / "pairs").exists()


def test_a_missing_file_is_noticed_before_the_first_stage_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(settings: Config, context: RunContext, task: Task) -> StageResult:
        pytest.fail("nothing should run")

    monkeypatch.setitem(STAGES._targets, "first", StageSpec(Config, never))
    stages = {"first": {}, "pairs-file": {"path": str(tmp_path / "none.json")}}
    with pytest.raises(StepladderError, match="does not exist"):
        run_recipe(Recipe.read({"policy": "tiny", "device": "cpu", "stages": stages}), tmp_path / "run")


def test_a_path_must_be_given() -> None:
    with pytest.raises(StepladderError, match=r"stages\.pairs-file\.path: is missing"):
        Recipe.read({"stages": {"pairs-file": {}}})


def test_pairs_of_another_agent_stay_theirs(tmp_path: Path) -> None:
    """Whoever trains on them refuses and counts them; here nothing is renamed."""
    write_records(tmp_path / "mine.jsonl", [replace(pair("q"), agent="prorag")])
    assert run(recipe(tmp_path / "mine.jsonl"), tmp_path)[1][0].agent == "prorag"
