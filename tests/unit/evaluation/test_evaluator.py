"""Evaluation: rows, summary, saving, comparing, and what happens when episodes fail."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from stepladder.agents import make_agent
from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.io.records import read_records
from stepladder.core.requests import Generate, Generation
from stepladder.core.trace import Question, StopReason, Trajectory
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.evaluation.evaluator import Evaluation, check_output_folder, compare, evaluate, load_scores, summarize
from stepladder.oracle.engine import OracleEngine
from stepladder.reporting.eval_table import comparison_line, print_summary
from tests.support.samples import WordRetriever


@pytest.fixture
def questions(question: Question) -> list[Question]:
    return [replace(question, id=f"q{number}") for number in range(6)]


def by_script(questions: list[Question], *answers: str) -> Evaluation:
    """Each question answered directly; an answer of "!" breaks its episode."""

    def say(request: Generate) -> str:
        assert request.trajectory is not None
        answer = answers[int(request.trajectory.question.id[1:])]
        if answer == "!":
            raise RuntimeError("boom")
        return f"<answer>{answer}</answer>"

    return evaluate(Driver(ScriptedEngine(say, max_batch=1)), make_agent("direct"), questions)


def test_the_oracle_is_right_and_searches_as_often_as_needed(questions: list[Question]) -> None:
    agent = make_agent("prorag")
    result = evaluate(Driver(OracleEngine(agent), WordRetriever()), agent, questions)
    summary = result.summary()
    assert summary.metrics["em"].mean == 1.0
    assert (summary.metrics["searches"].mean, summary.metrics["over_search"].mean) == (2.0, 0.0)
    assert summary.stops == {"answered": 6}
    assert summary.misses == {}


def test_means_intervals_and_causes(questions: list[Question]) -> None:
    summary = by_script(questions, "Velm", "velm city", "Oss", "Velm", "the Velm", "?").summary()
    assert summary.metrics["em"].mean == pytest.approx(4 / 6)
    assert summary.metrics["em"].low < 4 / 6 < summary.metrics["em"].high
    assert summary.misses == {"retrieval": 2}, "nothing was searched, so no gold passage was found"
    assert summary.metrics["under_search"].mean == 1.0
    assert summary.by_kind == {
        "bridge": {"questions": 6, "em": pytest.approx(4 / 6), "f1": pytest.approx(4 / 6), "found": 0.0}
    }


def test_groups_tell_what_was_found_and_what_was_made_of_it(questions: list[Question]) -> None:
    agent = make_agent("prorag")
    rows = evaluate(Driver(OracleEngine(agent), WordRetriever()), agent, questions).scores
    mixed = [replace(rows[0], f1=0.5, em=0.0), replace(rows[1], gold_recall=0.5, f1=0.0, em=0.0), *rows[2:4]]
    (group,) = summarize([*mixed, replace(rows[4], gold_recall=None, f1=0.0)]).by_hops.values()
    assert group["found"] == 0.75, "all gold passages, of the four questions that have some"
    assert group["f1_found"] == pytest.approx((0.5 + 1 + 1) / 3)


def test_failed_episodes_count_as_zero_and_say_why(questions: list[Question]) -> None:
    summary = by_script(questions, "Velm", "!", "Velm", "!", "Velm", "Velm").summary()
    assert summary.questions == 6
    assert summary.metrics["em"].mean == pytest.approx(4 / 6)
    assert summary.failures == {"RuntimeError: boom": 2}
    assert summary.misses == {"failed": 2}


def test_questions_not_reached_are_in_no_average(questions: list[Question]) -> None:
    scores = by_script(questions, "Velm", "Velm", "Velm", "Oss", "Velm", "Velm").scores
    cut = [*scores[:4], *(replace(row, stop=StopReason.CANCELLED, em=0.0) for row in scores[4:])]
    summary = summarize(cut)
    assert (summary.questions, summary.cancelled, summary.metrics["em"].mean) == (4, 2, 0.75)


def test_an_evaluation_is_saved_whole_and_read_back(questions: list[Question], tmp_path: Path) -> None:
    result = by_script(questions, "Velm", "!", "Oss", "Velm", "Velm", "Velm")
    result.save(tmp_path / "run", {"agent": "direct"})
    assert load_scores(tmp_path / "run") == result.scores
    kept = [trajectory for trajectory in result.trajectories if trajectory is not None]
    assert list(read_records(tmp_path / "run" / "trajectories.jsonl", Trajectory)) == kept
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["agent"], summary["em"]["mean"]) == ("direct", pytest.approx(4 / 6))


def test_only_an_evaluation_is_ever_replaced_and_only_when_asked(questions: list[Question], tmp_path: Path) -> None:
    result = by_script(questions, *["Velm"] * 6)
    result.save(tmp_path / "run", {})
    with pytest.raises(StepladderError, match="already contains an evaluation"):
        result.save(tmp_path / "run", {})
    result.save(tmp_path / "run", {"agent": "again"}, overwrite=True)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["agent"] == "again"

    thesis = tmp_path / "run" / "thesis.txt"
    thesis.write_text("precious")
    with pytest.raises(StepladderError, match="not part of an evaluation"):
        result.save(tmp_path / "run", {}, overwrite=True)
    assert thesis.read_text() == "precious"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "scores.jsonl").write_text("mine")  # the name alone does not make it ours
    with pytest.raises(StepladderError, match="not part of an evaluation"):
        result.save(tmp_path / "mine", {}, overwrite=True)


class DyingEngine(ScriptedEngine):
    """Answers three questions, then goes down."""

    left = 3

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        self.left -= 1
        if self.left < 0:
            raise BackendDown("the server is gone")
        return super().generate(requests)


def test_what_was_finished_before_an_engine_went_down_is_kept(questions: list[Question]) -> None:
    engine = DyingEngine(lambda request: "<answer>Velm</answer>", max_batch=1)
    result = evaluate(Driver(engine), make_agent("direct"), questions)
    assert str(result.stopped_by) == "the server is gone"
    assert (result.summary().questions, result.summary().cancelled) == (3, 3)
    assert result.scores[-1].failure == "the server is gone"
    with pytest.raises(BackendDown):  # nothing was finished: there is nothing to keep
        evaluate(Driver(engine), make_agent("direct"), questions)


def test_two_runs_are_compared_question_by_question(questions: list[Question]) -> None:
    better = by_script(questions, *["Velm"] * 6).scores
    worse = by_script(questions, *["Oss"] * 6).scores
    comparison = compare(better, tuple(reversed(worse)), "em")
    assert comparison.difference.mean == 1.0
    assert comparison.p_value == pytest.approx(2 / 2**6)
    assert "+1.000" in comparison_line(comparison, "em")
    with pytest.raises(StepladderError, match="share no question"):
        compare(better, [replace(row, question_id="other") for row in worse])


def test_a_folder_that_is_no_evaluation(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match=r"has no scores\.jsonl"):
        load_scores(tmp_path)
    (tmp_path / "scores.jsonl").write_text('{"question_id": "q"}\n')
    with pytest.raises(StepladderError, match=r"scores.jsonl:1: not a row"):
        load_scores(tmp_path)


def test_rows_that_cannot_be_averaged_are_refused(questions: list[Question], tmp_path: Path) -> None:
    by_script(questions, *["Velm"] * 6).save(tmp_path / "run", {})
    path = tmp_path / "run" / "scores.jsonl"
    whole = path.read_text()
    for bad in ('"em": "a"', '"em": NaN'):
        path.write_text(whole.replace('"em": 1.0', bad, 1))
        with pytest.raises(StepladderError, match=r"scores.jsonl:1: not a row of an evaluation"):
            load_scores(tmp_path / "run")


def test_places_that_cannot_be_written_are_refused_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StepladderError, match="is not a writable folder"):
        check_output_folder(tmp_path / "file" / "run")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StepladderError, match="broken link"):
        check_output_folder(tmp_path / "link")
    check_output_folder(tmp_path / "new" / "run")


def test_a_folder_is_not_replaced_from_inside(
    questions: list[Question], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_script(questions, *["Velm"] * 6).save(tmp_path / "run", {})
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(StepladderError, match="from inside"):
        check_output_folder(Path(), overwrite=True)


def test_nothing_to_evaluate_or_to_score_against(question: Question) -> None:
    driver, agent = Driver(ScriptedEngine({})), make_agent("direct")
    with pytest.raises(StepladderError, match="no questions"):
        evaluate(driver, agent, [])
    with pytest.raises(StepladderError, match="'q1' has no answers"):
        evaluate(driver, agent, [replace(question, answers=())])


def test_the_table_can_be_read(questions: list[Question]) -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    print_summary(
        console, by_script(questions, "Velm", "!", "Oss", "Velm", "Velm", "Velm").summary(), "direct by script"
    )
    text = console.export_text()
    assert "direct by script, 6 questions" in text
    assert "exact match" in text
    assert "failed 1x: RuntimeError: boom" in text
