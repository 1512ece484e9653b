"""The same questions before and after: what training changed, and what it broke.

In: a `Run` with two evaluations of models on the same questions. Out: a few questions, each with both transcripts and
the gold judge's verdict on every step. Before is the first evaluation in which a model wrote any valid transcript,
after is the last one.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.io.records import read_records
from stepladder.core.trace import Question, Trajectory
from stepladder.evaluate.evaluator import load_scores
from stepladder.oracle.step_judge import judge
from stepladder.pipeline.stage import EVALUATION
from stepladder.reporting.report.run_data import Run
from stepladder.reporting.report.step_view import ShownPassage, ShownStep, readable, shown_passages, shown_step

_TRAJECTORIES = "trajectories.jsonl"
#: What became of a question, by whether it was right before and after; and how many of these are shown.
_SHOWN = {
    (False, True): ("became right", 3),
    (True, False): ("became wrong", 2),
    (False, False): ("wrong both times", 1),
}


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode."""

    stage: str
    answer: str
    right: bool
    f1: float
    #: How the episode ended.
    stop: str
    given: tuple[ShownPassage, ...]
    steps: tuple[ShownStep, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """A question with both transcripts."""

    outcome: str
    question: str
    id: str
    answer: str
    before: Transcript
    after: Transcript


@dataclass(frozen=True, slots=True)
class Transcripts:
    """What is shown, and how many questions there are of each outcome."""

    before: str
    after: str
    counts: dict[str, int]
    compared: tuple[Compared, ...]


def transcripts_of(run: Run) -> Transcripts | None:
    """Questions before and after; None where no two evaluations can be compared."""
    stages = [stage.name for stage in run.played if stage.summary["validity"] > 0]
    scores = {name: _by_id(load_scores(run.folder / name / EVALUATION)) for name in stages}
    alike = [name for name in stages if scores[name].keys() == scores[stages[-1]].keys()]
    if len(alike) < 2:
        return None
    before, after = alike[0], alike[-1]
    outcomes = {key: (row.em == 1, scores[after][key].em == 1) for key, row in scores[before].items()}
    rows = [row for row in scores[before].values() if not row.failure and not scores[after][row.question_id].failure]
    chosen = [
        (words, row.question_id)
        for outcome, (words, most) in _SHOWN.items()
        for row in _varied([row for row in rows if outcomes[row.question_id] == outcome], most)
    ]
    ids = {key for _, key in chosen}
    played = {name: _trajectories(run, name, ids) for name in (before, after)}

    def transcript(stage: str, key: str) -> Transcript:
        return _transcript(stage, played[stage][key], scores[stage][key])

    counts = Counter(outcomes.values())
    return Transcripts(
        before,
        after,
        {"right both times": counts[True, True]} | {words: counts[each] for each, (words, _) in _SHOWN.items()},
        tuple(
            _compared(words, played[after][key].question, transcript(before, key), transcript(after, key))
            for words, key in chosen
        ),
    )


def _by_id(rows: Iterable[QuestionScore]) -> dict[str, QuestionScore]:
    return {row.question_id: row for row in rows}


def _varied(rows: Iterable[QuestionScore], most: int) -> list[QuestionScore]:
    """The first of each kind of question and number of searches before the second of any."""
    seen: Counter[tuple[str, int]] = Counter()
    ranked = []
    for row in rows:
        seen[row.kind, row.hops] += 1
        ranked.append((seen[row.kind, row.hops], row))
    return [row for _, row in sorted(ranked, key=lambda each: each[0])[:most]]


def _trajectories(run: Run, stage: str, ids: Collection[str]) -> dict[str, Trajectory]:
    path = run.folder / stage / EVALUATION / _TRAJECTORIES
    return {each.question.id: each for each in read_records(path, Trajectory) if each.question.id in ids}


def _transcript(stage: str, trajectory: Trajectory, row: QuestionScore) -> Transcript:
    return Transcript(
        stage,
        readable(trajectory.answer or ""),
        row.em == 1,
        row.f1,
        row.stop.value.replace("_", " "),
        shown_passages(trajectory.given),
        tuple(shown_step(step, verdict) for step, verdict in zip(trajectory.steps, judge(trajectory), strict=True)),
    )


def _compared(outcome: str, question: Question, before: Transcript, after: Transcript) -> Compared:
    answers = readable(" | ".join(question.answers[:3]))
    return Compared(outcome, readable(question.text), question.id, answers, before, after)
