"""An LLM that grades final answers, where exact match and F1 misjudge them: other forms of a name, full sentences.

In: a scored evaluation and the engine of a judge. Out: the same evaluation with a verdict for every answer (`judged`, 1
or 0; None if the judge failed), and an `Agreement` with exact match. No answer at all is wrong without a request. The
judge's responses are cached and its spend is limited by its engine (`LLMJudgeConfig.open_engine`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Question, StopReason
from stepladder.driver import Driver, OutcomeCallback
from stepladder.engines.base import Engine
from stepladder.evaluation.evaluator import Evaluation
from stepladder.judges.llm.llm_judge import LLMJudge
from stepladder.judges.llm.prompts import answer_prompt
from stepladder.judges.llm.verdicts import read_correct


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the judge's verdicts compare with exact match, over the answers that it graded."""

    answers: int
    #: Answers that both accept, that both reject, that only the judge accepts, and that only exact match accepts.
    both: int
    neither: int
    judge_only: int
    em_only: int
    #: Answers without a verdict.
    failed: int = 0

    @property
    def share(self) -> float:
        """The share of the answers on which both agree."""
        return (self.both + self.neither) / max(self.answers, 1)

    @property
    def kappa(self) -> float:
        """Cohen's kappa: the agreement beyond chance."""
        judge, em = (self.both + self.judge_only), (self.both + self.em_only)
        n = max(self.answers, 1)
        chance = (judge * em + (n - judge) * (n - em)) / n**2
        return 1.0 if chance == 1 else (self.share - chance) / (1 - chance)

    def line(self) -> str:
        """One line for people."""
        failed = f"; no verdict on {self.failed:,}" if self.failed else ""
        return (
            f"the answer judge agrees with exact match on {self.share:.1%} of {self.answers:,} answers (kappa "
            f"{self.kappa:.2f}): it accepts {self.judge_only:,} that EM rejects, and rejects {self.em_only:,} that EM "
            f"accepts{failed}"
        )


def judge_answers(
    evaluation: Evaluation, questions: Sequence[Question], engine: Engine, watch: OutcomeCallback | None = None
) -> tuple[Evaluation, Agreement]:
    """Grade all answers of an evaluation. Raises `BackendDown` if the budget ends, with every paid verdict cached."""
    by_id = {question.id: question for question in questions}
    judge = LLMJudge("score")
    graded = [row for row in evaluation.scores if row.prediction is not None]
    outcomes = Driver(engine).run([partial(_grade, judge, by_id[row.question_id], row) for row in graded], watch)
    verdicts = {row.question_id: outcome.value for row, outcome in zip(graded, outcomes, strict=True)}
    failures = [outcome.failure.reason for outcome in outcomes if outcome.failure is not None]
    if graded and len(failures) == len(graded):
        raise StepladderError(f"the answer judge gave no verdict: {failures[0]}")
    scores = tuple(
        row if row.stop is StopReason.CANCELLED else replace(row, judged=_judged(row, verdicts))
        for row in evaluation.scores
    )
    return replace(evaluation, scores=scores), agreement(scores)


def agreement(scores: Sequence[QuestionScore]) -> Agreement:
    """The agreement of the verdicts with exact match, over all answers."""
    answered = [row for row in scores if row.prediction is not None]
    pairs = [(bool(row.judged), row.em == 1) for row in answered if row.judged is not None]
    both, neither, judge_only, em_only = map(pairs.count, ((True, True), (False, False), (True, False), (False, True)))
    return Agreement(len(pairs), both, neither, judge_only, em_only, failed=len(answered) - len(pairs))


def _judged(row: QuestionScore, verdicts: dict[str, bool | None]) -> int | None:
    if row.stop is StopReason.CANCELLED:
        return None
    verdict = verdicts[row.question_id] if row.prediction is not None else False
    return None if verdict is None else int(verdict)


def _grade(judge: LLMJudge, question: Question, row: QuestionScore) -> Algorithm[bool]:
    assert row.prediction is not None
    return judge.ask(answer_prompt(question, row.prediction), read_correct)
