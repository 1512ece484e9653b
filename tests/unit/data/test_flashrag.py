"""Questions in FlashRAG's layout become `Question`s with their gold annotation."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.trace import GoldText, Hop, Question
from stepladder.data.formats.base import read_questions
from stepladder.data.formats.rows import QuestionFileError


def load_questions(path: Path) -> tuple[Question, ...]:
    return read_questions(path).questions


def write(path: Path, *lines: Any) -> Path:
    text = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def question(**changes: Any) -> dict[str, Any]:
    return {"id": "q1", "question": "Who built Span One?", "golden_answers": ["Ena Voss"], **changes}


def with_metadata(**metadata: Any) -> dict[str, Any]:
    return question(metadata=metadata)


def test_a_question_with_all_its_gold(tmp_path: Path) -> None:
    line = {
        "id": "q1",
        "question": " Who designed the bridge of Orla? ",
        "golden_answers": ["Ena Voss", "Voss", "Ena Voss", " "],
        "metadata": {
            "type": "bridge",
            "level": "ignored",
            "supporting_facts": {"title": ["Orla", "Span One"], "ids": [["p7"], ["p9", "p10"]]},
            "question_decomposition": [
                {"question": "Which bridge is in Orla?", "answer": "Span One", "support_paragraph_idx": 3},
                {"question": "Who designed #1?", "answer": "Ena Voss"},
            ],
        },
    }
    assert load_questions(write(tmp_path / "dev.jsonl.gz", line)) == (
        Question(
            id="q1",
            text="Who designed the bridge of Orla?",
            answers=("Ena Voss", "Voss"),
            hops=(
                Hop("Which bridge is in Orla?", "Span One", ("p7",), gold_texts=(GoldText("p7", "Orla"),)),
                Hop(
                    "Who designed #1?",
                    "Ena Voss",
                    ("p9", "p10"),
                    aliases=("Voss",),
                    gold_texts=(GoldText("p9", "Span One"), GoldText("p10", "Span One")),
                ),
            ),
            gold_passages=(("p7",), ("p9", "p10")),
            kind="bridge",
        ),
    )


def test_bare_questions(tmp_path: Path) -> None:
    path = write(
        tmp_path / "test.jsonl",
        {"id": 7, "question": "Who?", "golden_answers": "Ena Voss"},
        {"id": "8", "question": "Where?", "golden_answers": ["Orla"], "metadata": {"supporting_facts": {}}},
    )
    assert load_questions(path) == (Question("7", "Who?", ("Ena Voss",)), Question("8", "Where?", ("Orla",)))


def test_hops_get_no_passages_when_it_is_unknown_which_are_theirs(tmp_path: Path) -> None:
    line = with_metadata(
        supporting_facts={"ids": [["p1"]]},
        question_decomposition=[{"question": "a?", "answer": "b"}, {"question": "#1?", "answer": "c"}],
    )
    (loaded,) = load_questions(write(tmp_path / "q.jsonl", line))
    assert [hop.passages for hop in loaded.hops] == [(), ()]
    assert loaded.gold_passages == (("p1",),)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {"id": "q1", "question": "Who?"},
            "'golden_answers' should be .* or a list of them, found nothing",
        ),
        (question(golden_answers=[]), r"'golden_answers' should be .*, found \[\]"),
        (question(golden_answers=["", " "]), "'golden_answers' should be a non-empty string"),
        (question(golden_answers=[1790]), r"'golden_answers' should be .*, found \[1790\]"),
        (question(golden_answers={"a": 1}), "'golden_answers' should be a non-empty string"),
        ({"id": "q1", "golden_answers": ["a"]}, "'question' should be a string, found nothing"),
        (question(question="  "), "'question' is blank"),
        (question(id=""), "'id' should be a non-empty string"),
        (question(metadata="x"), "'metadata' should be an object"),
        (with_metadata(supporting_facts={"ids": ["p1"]}), "'supporting_facts.ids' should be a list of lists"),
        (with_metadata(supporting_facts={"ids": [[]]}), "'supporting_facts.ids' should be a list of lists"),
        (with_metadata(question_decomposition=["a?"]), "'question_decomposition' should be a list of objects"),
        (with_metadata(question_decomposition=[{"question": "a?"}]), "with 'question' and 'answer'"),
        ("x", "expected a JSON object"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: Any, message: str) -> None:
    path = write(tmp_path / "dev.jsonl", question(id="q0"), bad)
    with pytest.raises(QuestionFileError, match=message) as caught:
        load_questions(path)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_broken_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text('{"id": "q1", "question"\n')
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(QuestionFileError, match=r"broken.jsonl:1: not JSON"):
        load_questions(tmp_path / "broken.jsonl")
    with pytest.raises(QuestionFileError, match="the file is empty"):
        load_questions(tmp_path / "empty.jsonl")
