"""Exports hold the text of the pairs to the letter, in the shape that other programs read."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from stepladder import Pair, Question, Step, Trajectory
from stepladder.agents.prorag import ProRAGBrief
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Action, ActionKind, Author, Passage, Segment, Side
from stepladder.oracle.engine import gold_action
from stepladder.preferences.export import EXPORTS, ExportResult, export, read_rag_proguide

#: As ReasonRAG's own script writes them.
PROGUIDE_FIELDS = [
    *("instruction", "input", "prompt", "chosen", "rejected"),
    *("chosen_action_type", "chosen_content", "rejected_action_type", "rejected_content", "layer"),
]


@pytest.fixture
def pairs(question: Question) -> list[Pair]:
    """Every step of a gold transcript, preferred to giving up and to nonsense: ten pairs of five steps."""
    agent, made = ProRAGBrief(), []
    found = (Passage("p1", "Orm Tower", "By Ada Tarn."), Passage("p2", "Ada Tarn", "Born in \u201cVelm\u201d, née Oß."))
    odd = "\r\n\u2028 hm\t"  # characters that careless readers take for the end of a line
    state = Trajectory(question, agent.name)
    while state.answer is None:
        context = agent.render(state)
        best = gold_action(state, agent.kinds)
        gives_up = Action(ActionKind.ANSWER, "Nobody knows", "I give up.")
        chosen = Side(Segment(Author.POLICY, agent.write(best, state), (1, 2), (-0.1, -0.2), "v"), best, 0.9)
        nonsense = Side(Segment(Author.POLICY, odd), Action(ActionKind.MALFORMED, odd, problem="no tags"), 0.0)
        for worse in (Side(Segment(Author.POLICY, agent.write(gives_up, state)), gives_up, 0.1), nonsense):
            made.append(Pair(question.id, agent.name, context, chosen, worse, len(state.steps), "gold"))
        read = context[len(state.context()) :]
        state = state.extend(Step(read, chosen.written, best, found if best.kind is ActionKind.QUERY else ()))
    return made


def seen(pair: Pair) -> str:
    """What the policy had in view."""
    return "".join(segment.text for segment in pair.context)


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def exported(format: str, pairs: list[Pair], folder: Path) -> ExportResult:
    return export(format, {"train": pairs[2:], "dev": pairs[:2]}, folder, source="nano")


# --- every format ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", EXPORTS)
def test_every_format_counts_its_pairs_and_explains_itself(format: str, pairs: list[Pair], tmp_path: Path) -> None:
    result = exported(format, pairs, tmp_path / "out")
    assert result.pairs == {"train": 8, "dev": 2}
    assert set(result.files) == {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()
    }
    card = (tmp_path / "out" / "README.md").read_text()
    assert "8 train, 2 dev" in card
    assert "from `nano`" in card
    assert str(tmp_path) not in card
    assert all(f"| `{name}` | {rows} |" in card for name, rows in result.rows.items())


@pytest.mark.parametrize("format", EXPORTS)
def test_the_same_pairs_give_the_same_bytes_and_replace_the_older_export(
    format: str, pairs: list[Pair], tmp_path: Path
) -> None:
    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}

    exported(format, pairs, tmp_path / "out")
    first = contents()
    exported(format, pairs, tmp_path / "out")
    assert contents() == first


@pytest.mark.parametrize("format", EXPORTS)
def test_pairs_are_read_once_so_a_stream_will_do(format: str, pairs: list[Pair], tmp_path: Path) -> None:
    result = export(format, {"train": (pair for pair in pairs), "dev": iter(())}, tmp_path / "out", source="nano")
    assert result.pairs == {"train": 10}
    assert not any("dev" in name for name in result.files)


def test_nothing_to_train_on_is_an_error_and_leaves_nothing_behind(pairs: list[Pair], tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="found no pairs at all, expected at least one"):
        export("trl", {"train": []}, tmp_path / "out", source="nano")
    with pytest.raises(StepladderError, match="found only dev pairs"):
        export("trl", {"train": [], "dev": pairs}, tmp_path / "out", source="nano")
    with pytest.raises(StepladderError, match="question 'q1' at depth 0 has no prompt"):
        export("trl", {"train": [pairs[1], replace(pairs[0], context=())]}, tmp_path / "out", source="nano")
    assert list(tmp_path.iterdir()) == []


def test_unknown_names_are_refused_with_the_nearest(pairs: list[Pair], tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match=r"unknown export format 'llamafactory'. Did you mean 'llama-factory'"):
        export("llamafactory", {"train": pairs}, tmp_path / "out", source="nano")
    with pytest.raises(StepladderError, match="unknown split of pairs 'test'"):
        export("trl", {"train": pairs, "test": pairs}, tmp_path / "out", source="nano")


def test_a_folder_of_something_else_is_not_replaced(pairs: list[Pair], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StepladderError, match="not part of an export"):
        exported("trl", pairs, tmp_path)
    (tmp_path / "export.json").write_text('{"files": {}}')
    with pytest.raises(StepladderError, match="not part of an export"):
        exported("trl", pairs, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_the_folder_one_stands_in_is_not_replaced(
    pairs: list[Pair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StepladderError, match="current directory"):
        exported("trl", pairs, Path())


def test_an_export_that_was_worked_in_is_not_replaced(pairs: list[Pair], tmp_path: Path) -> None:
    out = tmp_path / "out"
    exported("llama-factory", pairs, out)
    (out / "saves" / "dpo").mkdir(parents=True)
    (out / "saves" / "dpo" / "model.safetensors").write_text("weights")
    with pytest.raises(StepladderError, match=r"saves/dpo/model.safetensors was added or edited since"):
        exported("llama-factory", pairs, out)

    exported("llama-factory", pairs, tmp_path / "other")
    (tmp_path / "other" / "dpo.yaml").write_text("model_name_or_path: mine")
    with pytest.raises(StepladderError, match=r"dpo.yaml was added or edited since"):
        exported("llama-factory", pairs, tmp_path / "other")


# --- rag-proguide ------------------------------------------------------------------------------------------


def test_rag_proguide_records_have_the_published_fields(pairs: list[Pair], tmp_path: Path) -> None:
    exported("rag-proguide", pairs, tmp_path / "out")
    first, second, *_ = json.loads((tmp_path / "out" / "train.json").read_text(encoding="utf-8"))
    assert list(first) == PROGUIDE_FIELDS
    assert (first["instruction"], first["input"]) == (seen(pairs[2]), "")
    assert first["chosen"] == "<step>[1] tells it.</step><subanswer>Ada Tarn</subanswer>"
    assert (first["chosen_action_type"], first["chosen_content"]) == ("Evidence Extraction", "Ada Tarn")
    assert (first["rejected_action_type"], first["rejected_content"]) == ("Answer Generation", "Nobody knows")
    assert (second["rejected_action_type"], second["rejected_content"]) == ("Other", "")
    assert first["layer"] == 1


def test_rag_proguide_comes_back_with_the_same_words(pairs: list[Pair], tmp_path: Path) -> None:
    export("rag-proguide", {"train": pairs}, tmp_path / "out", source="nano")
    back = list(read_rag_proguide(tmp_path / "out" / "train.json", agent="prorag-brief"))
    assert len(back) == len(pairs)
    for pair, again in zip(pairs, back):
        assert seen(again) == seen(pair)
        assert (again.agent, again.depth) == (pair.agent, pair.depth)
        for side, other in ((pair.chosen, again.chosen), (pair.rejected, again.rejected)):
            assert other.written == Segment(Author.POLICY, side.written.text)
            assert other.action.content == side.action.content
            kind = side.action.kind
            assert other.action.kind is (ActionKind.EVIDENCE if kind is ActionKind.SUB_ANSWER else kind)


RECORD = {
    "instruction": "You are helpful.",
    "input": "Question: Where is Oss?",
    "prompt": "System: You are helpful.\nUser: Question: Where is Oss?",
    "chosen": "So I search. <query>Oss</query>",
    "rejected": "So I search. <query>where",
    "chosen_action_type": "Query Generation",
    "chosen_content": "Oss",
    "rejected_action_type": "Query Generation",
    "rejected_content": "",
    "layer": 0,
    "reward_gap": {"unknown": "fields are ignored"},
}


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.jsonl", "a.jsonl.gz"])
def test_published_files_are_read_as_arrays_or_lines_plain_or_packed(name: str, tmp_path: Path) -> None:
    array = json.dumps([RECORD, RECORD], indent=2)
    content = "\ufeff" + (array if ".jsonl" not in name else f"{json.dumps(RECORD)}\n\n{json.dumps(RECORD)}\n")
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    pair, other = read_rag_proguide(path)
    assert pair.context == (Segment(Author.PROMPT, "You are helpful.\nQuestion: Where is Oss?"),)
    assert pair.chosen.action == Action(ActionKind.QUERY, "Oss")
    assert pair.rejected.action.kind is ActionKind.MALFORMED
    assert "not closed" in pair.rejected.action.problem
    assert (pair.agent, pair.depth, pair.judge) == ("reasonrag", 0, "rag-proguide")
    assert pair.question_id != other.question_id


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"chosen": None}, "record 2: chosen: expected a string, found nothing"),
        ({"chosen": ""}, "record 2: chosen: expected a string with at least 1 character"),
        ({"layer": "1"}, "record 2: layer: expected an integer, found '1'"),
        ({"layer": -1}, "record 2: layer: expected greater than or equal to 0"),
        ({"chosen_action_type": "Guess"}, "chosen_action_type: expected 'Query Generation', "),
        ({"instruction": "", "input": ""}, "record 2: 'instruction' and 'input' are both empty"),
    ],
)
def test_a_bad_field_is_named_with_file_record_and_value(
    change: dict[str, object], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([RECORD, RECORD | change]))
    with pytest.raises(StepladderError) as error:
        list(read_rag_proguide(path))
    assert str(path) in str(error.value)
    assert problem in str(error.value)


def test_in_a_file_of_lines_the_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    short = {key: value for key, value in RECORD.items() if key != "rejected"}
    path.write_text(f"{json.dumps(RECORD)}\n\n{json.dumps(short)}\n")
    with pytest.raises(StepladderError, match=r"a.jsonl:3: rejected: is missing. Expected records of RAG-ProGuide"):
        list(read_rag_proguide(path))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.json", b"", "the file is empty"),
        ("a.json", b'[{"instruction"', "not JSON"),
        ("a.jsonl", b"{\xff}", "not UTF-8"),
        ("a.jsonl", b"3", "a.jsonl:1: expected a JSON object, found 3"),
        ("a.json.gz", b"plain", "gzip"),
        ("a.json.gz", gzip.compress(b"[]" * 999, mtime=0)[:-9], "truncated or corrupt"),
        ("missing", None, "no such file"),
    ],
)
def test_files_that_are_no_data_are_refused(name: str, content: bytes | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StepladderError, match=problem):
        list(read_rag_proguide(path))


def test_what_was_published_can_be_exported_again(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([RECORD]))
    export("trl", {"train": read_rag_proguide(path)}, tmp_path / "out", source="RAG-ProGuide")
    (row,) = lines(tmp_path / "out" / "preference" / "train.jsonl")
    assert row == {
        "prompt": "You are helpful.\nQuestion: Where is Oss?",
        "chosen": RECORD["chosen"],
        "rejected": RECORD["rejected"],
    }


# --- llama-factory -----------------------------------------------------------------------------------------


def test_llama_factory_entries_name_their_files_and_columns(pairs: list[Pair], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = exported("llama-factory", pairs, out)
    info = json.loads((out / "dataset_info.json").read_text())
    assert {name for name, entry in info.items() if entry.get("ranking")} == {
        "stepladder_pairs",
        "stepladder_pairs_dev",
    }
    for entry in info.values():
        for row in lines(out / entry["file_name"]):
            assert set(row) == set(entry["columns"].values())
    # A step that wins over two siblings is one step.
    assert result.rows == {"pairs.jsonl": 8, "steps.jsonl": 4, "pairs_dev.jsonl": 2, "steps_dev.jsonl": 1}


def test_llama_factory_rows_are_the_policys_text_with_only_the_prompt_as_instruction(
    pairs: list[Pair], tmp_path: Path
) -> None:
    export("llama-factory", {"train": pairs}, tmp_path / "out", source="nano")
    for pair, row in zip(pairs, lines(tmp_path / "out" / "pairs.jsonl"), strict=True):
        assert row["instruction"] == pair.context[0].text
        assert row["instruction"] + row["chosen"] == seen(pair) + pair.chosen.written.text
        assert row["instruction"] + row["rejected"] == seen(pair) + pair.rejected.written.text
    for pair, row in zip(pairs[::2], lines(tmp_path / "out" / "steps.jsonl"), strict=True):
        assert (row["instruction"], row["output"]) == (seen(pair), pair.chosen.written.text)


def test_llama_factory_training_files_hold_reasonrags_settings(pairs: list[Pair], tmp_path: Path) -> None:
    exported("llama-factory", pairs, tmp_path / "unnamed")
    export("llama-factory", {"train": pairs}, tmp_path / "named", source="nano", model="org/model: 7B")
    unnamed = yaml.safe_load((tmp_path / "unnamed" / "dpo.yaml").read_text())
    named = yaml.safe_load((tmp_path / "named" / "dpo_lora.yaml").read_text())
    assert unnamed["model_name_or_path"] == "MODEL"
    assert (unnamed["stage"], unnamed["pref_beta"], unnamed["pref_loss"]) == ("dpo", 0.3, "sigmoid")
    assert (unnamed["learning_rate"], unnamed["num_train_epochs"], unnamed["warmup_ratio"]) == (1e-6, 1.0, 0.2)
    assert (unnamed["lr_scheduler_type"], unnamed["cutoff_len"]) == ("cosine", 10000)
    assert unnamed["eval_dataset"] == "stepladder_pairs_dev"
    assert named["model_name_or_path"] == "org/model: 7B"
    assert (named["finetuning_type"], named["learning_rate"], named["num_train_epochs"]) == ("lora", 5e-6, 3.0)
    assert named["val_size"] == 0.1  # without dev pairs, a tenth is held out
    assert "eval_dataset" not in named


# --- trl ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [None, "preference", "conversational", "prompt_completion"])
def test_the_trl_folder_is_a_data_set_with_its_splits_and_columns(
    config: str | None, pairs: list[Pair], tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets", reason="the library `datasets` is not installed")
    exported("trl", pairs, tmp_path / "out")
    data = datasets.load_dataset(str(tmp_path / "out"), config, cache_dir=str(tmp_path / "cache"))
    assert list(data) == ["train", "dev"]
    for split, expected in (("train", pairs[2:]), ("dev", pairs[:2])):
        if config == "prompt_completion":
            rows = [(row["prompt"], row["completion"]) for row in data[split]]
            assert rows == [(seen(pair), pair.chosen.written.text) for pair in expected[::2]]
            continue
        rows = [_text(row["prompt"] + row[side]) for row in data[split] for side in ("chosen", "rejected")]
        sides = [(pair, side) for pair in expected for side in (pair.chosen, pair.rejected)]
        assert rows == [seen(pair) + side.written.text for pair, side in sides]
        assert set(data[split].column_names) == {"prompt", "chosen", "rejected"}


def _text(message: str | list[dict[str, str]]) -> str:
    return message if isinstance(message, str) else "".join(turn["content"] for turn in message)


def test_the_trl_card_says_that_no_chat_template_was_applied(pairs: list[Pair], tmp_path: Path) -> None:
    exported("trl", pairs, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "no chat template has been applied" in card
    compile(card.split("```python\n")[1].split("```")[0], "card", "exec")
