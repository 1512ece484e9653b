"""Transcripts of the same questions before and after training: what improved and what regressed.

In: a `RunData` with two evaluations of models on the same questions. Out: a few questions with both transcripts and the
gold judge's verdict on every step. Before: the first evaluation with any valid transcript. After: the last evaluation.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.io.records import read_records
from stepladder.core.trace import Step, Trajectory
from stepladder.evaluation.evaluator import load_scores
from stepladder.oracle.step_judge import judge
from stepladder.oracle.step_verdicts import Verdict
from stepladder.pipeline.stage import EVALUATION
from stepladder.reporting.report.run_data import RunData
from stepladder.reporting.run_tables import model_evaluations

_TRAJECTORIES = "trajectories.jsonl"
#: (right before, right after) -> label, and how many of these questions are shown.
_OUTCOMES = {
    (False, True): ("fixed", 3),
    (True, False): ("regressed", 2),
    (False, False): ("wrong in both", 1),
}


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode with its score."""

    stage: str
    trajectory: Trajectory
    score: QuestionScore

    @property
    def steps(self) -> Iterable[tuple[Step, Verdict | None]]:
        """Every step with the verdict of the gold judge."""
        return zip(self.trajectory.steps, judge(self.trajectory), strict=True)


@dataclass(frozen=True, slots=True)
class Transcripts:
    """The selected questions, and the number of questions per outcome."""

    before: str
    after: str
    counts: dict[str, int]
    #: Outcome, transcript before and transcript after.
    pairs: list[tuple[str, Transcript, Transcript]]


def transcripts_of(run: RunData) -> Transcripts | None:
    """Transcripts before and after training; None without two comparable evaluations."""
    stages = [stage.name for stage in model_evaluations(run.report) if stage.summary["validity"] > 0]
    scores = {name: {row.question_id: row for row in load_scores(run.folder / name / EVALUATION)} for name in stages}
    comparable = [name for name in stages if scores[name].keys() == scores[stages[-1]].keys()]
    if len(comparable) < 2:
        return None
    before, after = comparable[0], comparable[-1]
    outcomes = {key: (row.em == 1, scores[after][key].em == 1) for key, row in scores[before].items()}
    rows = [row for row in scores[before].values() if not row.failure and not scores[after][row.question_id].failure]
    chosen = [
        (label, row.question_id)
        for outcome, (label, most) in _OUTCOMES.items()
        for row in _varied([row for row in rows if outcomes[row.question_id] == outcome], most)
    ]
    played = {name: _trajectories(run, name, {key for _, key in chosen}) for name in (before, after)}

    def transcript(stage: str, key: str) -> Transcript:
        return Transcript(stage, played[stage][key], scores[stage][key])

    counts = Counter(outcomes.values())
    return Transcripts(
        before,
        after,
        {"right in both": counts[True, True]} | {label: counts[each] for each, (label, _) in _OUTCOMES.items()},
        [(label, transcript(before, key), transcript(after, key)) for label, key in chosen],
    )


def _varied(rows: Iterable[QuestionScore], most: int) -> list[QuestionScore]:
    """The first row of each (kind of question, number of searches) before the second of any."""
    seen: Counter[tuple[str, int]] = Counter()
    ranked = []
    for row in rows:
        seen[row.kind, row.hops] += 1
        ranked.append((seen[row.kind, row.hops], row))
    return [row for _, row in sorted(ranked, key=lambda each: each[0])[:most]]


def _trajectories(run: RunData, stage: str, ids: Collection[str]) -> dict[str, Trajectory]:
    path = run.folder / stage / EVALUATION / _TRAJECTORIES
    return {each.question.id: each for each in read_records(path, Trajectory) if each.question.id in ids}
