"""A user's own prompt and hint for an agent: what they replace, and what is refused."""

from pathlib import Path

import pytest

from stepladder.agents import AGENTS, make_agent
from stepladder.core.errors import StepladderError
from tests.support.prompted_texts import IDLE, LENIENT, SEARCH, play
from tests.support.samples import QUESTION


def file(folder: Path, text: str, name: str = "own.txt") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_prompt_and_a_hint_can_be_replaced(tmp_path: Path) -> None:
    hint = "My action was invalid: I put the query between <search> and </search>."
    agent = make_agent(
        "search-r1",
        play=LENIENT,
        prompt=file(tmp_path, "Think, then search. {question}\n"),
        hint=file(tmp_path, hint, "hint.txt"),
    )
    trajectory = play(agent, [IDLE, "<answer>Velm</answer>"])
    assert trajectory.steps[0].read[0].text == f"Think, then search. {QUESTION.text}\n"
    assert trajectory.steps[1].read[0].text == f"\n{hint}\n"
    assert make_agent("search-r1").hint != hint


STATES = (
    "begin_reasoning: Q {question}\ndocument_analysis: D {question} {passages}\nreasoning: R {question} {history}\n"
)


def test_an_agent_with_a_prompt_per_state_takes_them_from_yaml(tmp_path: Path) -> None:
    own = file(tmp_path, STATES + "answer_generation: A {question} {history}\n", "own.yaml")
    agent = make_agent("reasonrag", play=LENIENT, prompt=own)
    trajectory = play(agent, [SEARCH["reasonrag"], "Ada Tarn", "<answer>Velm</answer>"])
    assert [step.read[0].text[:1] for step in trajectory.steps] == ["Q", "D", "R"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("search-r1", "No slot here.", "the placeholder {question} is missing"),
        ("rag", "Question: {question}", "the placeholder {passages} is missing"),
        ("search-r1", "{question} {context}", "unknown placeholder or single brace"),
        ("search-r1", '{question} {"answer": 1}', "Double other braces"),
        ("reasonrag", "{question}", "expected one text for each of begin_reasoning, document_analysis"),
        ("reasonrag", STATES, "found begin_reasoning, document_analysis, reasoning"),
        ("reasonrag", STATES + "answer_generation: '{question}'", "answer_generation: the placeholder {history} is"),
        ("reasonrag", "a: [", "expected YAML with begin_reasoning"),
    ],
)
def test_a_wrong_prompt_file_is_one_clear_error(tmp_path: Path, name: str, text: str, problem: str) -> None:
    with pytest.raises(StepladderError) as caught:
        make_agent(name, prompt=file(tmp_path, text))
    assert problem in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("search-r1", "Try: <search>another query</search>"),
        ("search-r1", "<think>So</think><answer>I do not know</answer>"),
        ("react", "Write it like this:\nAction: Finish[your answer]"),
        ("research", 'Reply with {"answer": "yours"}'),
        ("reasonrag", "So the answer is what you say next."),
        ("direct", " "),
    ],
)
def test_a_hint_that_would_be_an_action_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(StepladderError, match=r"it would be read as an action itself|the file is empty"):
        make_agent(name, hint=file(tmp_path, text))


def test_files_that_cannot_be_read_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match=r"prompt .*none.txt cannot be read: No such file"):
        make_agent("direct", prompt=tmp_path / "none.txt")
    with pytest.raises(StepladderError, match="not a regular file"):
        make_agent("direct", prompt=tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StepladderError, match="expected UTF-8 text"):
        make_agent("direct", hint=tmp_path / "binary")


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_no_hint_is_an_action(name: str, tmp_path: Path) -> None:
    own = tmp_path / "hint.txt"
    own.write_text(make_agent(name).hint)
    assert make_agent(name, hint=own).hint == make_agent(name).hint
