"""The LLM that grades final answers: what it is asked, what it costs, and how it agrees with exact match."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepladder.cli import app, main
from stepladder.core.answer_metrics import failed_score, score
from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.requests import Generate
from stepladder.core.trace import Action, ActionKind, Author, Question, Segment, Step, StopReason, Trajectory
from stepladder.engines.scripted import ScriptedEngine
from stepladder.engines.spend.budget import max_usage, open_paid_engine
from stepladder.engines.spend.prices import Budget
from stepladder.evaluation.answer_judge import Agreement, judge_answers
from stepladder.evaluation.evaluator import Evaluation, load_scores
from stepladder.judges.llm.llm_judge import LLMJudge
from stepladder.judges.llm.prompts import answer_prompt
from tests.support import openai_server
from tests.support.openai_server import Answer, Server, fails, says
from tests.support.paid_calls import content

server = openai_server.server

ANSWERS = ("Velm", "the city of Velm", "Oss", "Oss and Velm")


def questions(count: int = len(ANSWERS)) -> list[Question]:
    return [Question(f"q{number}", f"Where, number {number}?", ("Velm", "Velm on the Oss")) for number in range(count)]


def evaluation() -> Evaluation:
    """Four answers, one of them exact; one question without an answer, one not reached."""
    rows = []
    for question, answer in zip(questions(), ANSWERS):
        step = Step((), Segment(Author.POLICY, answer), Action(ActionKind.ANSWER, answer))
        rows.append(score(Trajectory(question, "direct", (step,), StopReason.ANSWERED)))
    silent, missed = questions(6)[4:]
    rows += [failed_score(silent, StopReason.FAILED, "no"), failed_score(missed, StopReason.CANCELLED, "stopped")]
    return Evaluation(tuple(rows), (None,) * 6)


def verdict(prompt: str) -> str:
    answer = prompt.partition("<answer>\n")[2].partition("\n</answer>")[0]
    return json.dumps({"reason": "I know.", "correct": "Velm" in answer and "Oss" not in answer})


def test_every_answer_is_graded_once_and_silence_is_wrong() -> None:
    asked: list[str] = []

    def judge(request: Any) -> str:
        asked.append(request.context[0].text)
        return verdict(asked[-1])

    judged, agreement = judge_answers(evaluation(), questions(6), ScriptedEngine(judge))
    assert [row.judged for row in judged.scores] == [1, 1, 0, 0, 0, None]
    assert len(asked) == 4
    assert "<accepted_answers>\nVelm\nVelm on the Oss\n</accepted_answers>" in asked[0]
    assert judged.summary().metrics["judged"].mean == pytest.approx(2 / 5)
    assert agreement == Agreement(answers=4, both=1, neither=2, judge_only=1, em_only=0)
    assert agreement.share == 0.75
    assert agreement.kappa == pytest.approx((0.75 - 0.5) / 0.5)
    assert (
        "agrees with exact match on 75.0% of 4 answers (kappa 0.50): it accepts 1 that EM rejects" in agreement.line()
    )


def test_a_bad_reply_is_sent_back_once_and_then_left_out() -> None:
    asked: list[int] = []

    def judge(request: Any) -> str:
        asked.append(len(request.context))
        return '{"correct": "yes"}' if "<answer>\nOss\n" in request.context[0].text else '{"correct": true}'

    judged, agreement = judge_answers(evaluation(), questions(6), ScriptedEngine(judge))
    assert [row.judged for row in judged.scores] == [1, 1, None, 1, 0, None]
    assert agreement.failed == 1
    assert sorted(asked) == [1, 1, 1, 1, 3]
    with pytest.raises(StepladderError, match="the answer judge gave no verdict"):
        judge_answers(evaluation(), questions(6), ScriptedEngine(lambda _: "?"))


def test_verdicts_are_cached_and_the_budget_is_hard(server: Server, tmp_path: Path) -> None:
    server.answer = lambda body, _: says(verdict(content(body)), usage={"prompt_tokens": 300, "completion_tokens": 20})

    request = Generate((Segment(Author.PROMPT, answer_prompt(questions()[1], ANSWERS[1])),))
    most = max_usage(request).read + LLMJudge().max_tokens

    def opened(tokens: int) -> Any:
        return closing(
            open_paid_engine("m", tmp_path, url=server.url, budget=Budget.parse(f"{tokens}tok"), concurrency=1)
        )

    with opened(most + 500) as engine, pytest.raises(BackendDown, match=r"the budget of .* is spent"):
        judge_answers(evaluation(), questions(6), engine)
    before = len(server.requests)
    assert before == 2
    with opened(90_000) as engine:
        judge_answers(evaluation(), questions(6), engine)
    assert len(server.requests) == 4, "nothing is asked twice"


def test_eval_prints_the_agreement_and_saves_the_verdicts(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(body: dict[str, Any], _: int) -> Answer:
        return says('{"correct": true}', usage={"prompt_tokens": 9, "completion_tokens": 3})

    server.answer = answer
    words = ["eval", "--data", "atlas-small", "--limit", "5", "--answer-judge", "gpt", "--answer-judge-url", server.url]
    with pytest.raises(SystemExit) as done:
        app([*words, "--out", str(tmp_path / "out"), "--budget", "1Mtok"])
    assert not done.value.code
    assert "agrees with exact match on 100.0% of 5 answers" in capsys.readouterr().out.replace("\n", " ")
    assert [row.judged for row in load_scores(tmp_path / "out")] == [1] * 5
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["answer_judge"], summary["agreement"]["both"], summary["judged"]["mean"]) == ("gpt", 5, 1.0)
    assert (tmp_path / "out.paid" / "replies.jsonl").exists()


def test_a_judge_that_fails_does_not_lose_the_evaluation(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = lambda *_: fails(404, "no such model")
    judge = ["--answer-judge", "gpt", "--answer-judge-url", server.url]
    words = ["eval", "--data", "atlas-small", "--limit", "3", "--out", str(tmp_path / "out"), *judge]
    assert main(words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "out, without verdicts: add --overwrite" in said
    assert "has no chat API of model 'gpt'" in said
    assert [(row.em, row.judged) for row in load_scores(tmp_path / "out")] == [(1, None)] * 3

    server.answer = lambda *_: says('{"correct": true}')
    assert main([*words, "--overwrite"]) == 0
    assert [row.judged for row in load_scores(tmp_path / "out")] == [1] * 3
