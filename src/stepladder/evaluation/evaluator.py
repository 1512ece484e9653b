"""Evaluation: run one episode per question, score it, and report confidence intervals.

In: a driver, an agent, questions. Out: an `Evaluation`: one score and one trajectory per question, a summary with 95%
confidence intervals, and a paired comparison with another evaluation of the same questions. `save` writes a folder with
`summary.json`, `scores.jsonl` (the rows) and `trajectories.jsonl`.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import QuestionScore, failed_score, score
from stepladder.core.display import Showable
from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.core.io.masking import masked
from stepladder.core.io.records import write_records
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import AnswerKind, Question, StopReason, Trajectory
from stepladder.driver import Driver, Interrupted, Outcome, OutcomeCallback
from stepladder.evaluation.statistics import Comparison, Interval, interval_text, mean_interval, paired_difference
from stepladder.explore.episode import Cost, EpisodeConfig, episode, metered
from stepladder.explore.guided import Guide, guided_search
from stepladder.oracle.engine import OracleEngine
from stepladder.oracle.step_judge import GoldScorer

_SUMMARY, _SCORES, _TRAJECTORIES = "summary.json", "scores.jsonl", "trajectories.jsonl"
_VERSION_KEY = "stepladder_evaluation"
_ROW = TypeAdapter(QuestionScore)
#: Kinds of answer that are right or wrong: their only metric is accuracy.
_RIGHT_OR_WRONG = (AnswerKind.CHOICE, AnswerKind.YES_NO, AnswerKind.NUMBER)

#: Metrics that are fields of a row.
_FIELDS = (
    *("em", "f1", "precision", "recall", "cover_em", "gold_recall", "steps", "searches", "redundant_queries"),
    *("judged", "over_search", "under_search", "tokens_read", "tokens_written"),
)
#: The metrics that are averaged over questions, and their value for a question (None if unknown).
METRICS: dict[str, Callable[[QuestionScore], float | None]] = {
    **{name: attrgetter(name) for name in _FIELDS},
    "searches_made": lambda row: row.searches if row.searches_made is None else row.searches_made,
    "malformed": lambda row: float(row.malformed_steps > 0),
    "format_errors": lambda row: float(row.malformed_steps),
    "repaired": lambda row: float(row.repaired_steps),
    "forced": lambda row: float(row.forced),
    "accuracy": lambda row: row.em if row.answer_kind in _RIGHT_OR_WRONG else None,
}
#: Metrics of episodes that continue after a slip; left out where they are 0 or add nothing.
_OPTIONAL = ("format_errors", "repaired", "forced")
#: Fields of a row that are written only where they are not 0.
_OPTIONAL_FIELDS = ("repaired_steps", "forced")


@dataclass(frozen=True, slots=True)
class Summary:
    """An evaluation in numbers."""

    questions: int
    metrics: dict[str, Interval]
    #: How episodes ended, by stop reason.
    stops: dict[str, int]
    #: Why questions were not answered exactly, by cause.
    misses: dict[str, int]
    #: EM and F1 by number of gold hops, and by kind of question; where gold passages are known also the share of
    #: questions for which all were found, and the mean F1 of these.
    by_hops: dict[str, dict[str, float]]
    by_kind: dict[str, dict[str, float]]
    #: Failed episodes, by reason.
    failures: dict[str, int]
    #: Questions that an interrupted run did not reach; they are excluded from all averages.
    cancelled: int

    def as_json(self) -> dict[str, Any]:
        """Plain data, with the metrics at the top level."""
        data = asdict(self)
        return {"questions": data.pop("questions"), **data.pop("metrics"), **data}


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation(Showable):
    """The scores of all questions, in order; the trajectory of a failed episode is None."""

    scores: tuple[QuestionScore, ...]
    trajectories: tuple[Trajectory | None, ...]
    #: Why the run ended early (Ctrl-C, or an engine that went down); None if it completed.
    stopped_by: Interrupted | BackendDown | None = None
    #: Whether gold annotations were used to answer (the oracle, or candidates chosen by the gold judge).
    upper_bound: bool = False
    #: What a paid policy has spent; empty if it is free.
    paid: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        f1 = f", F1 {interval_text(self.summary().metrics['f1'])}" if self.scores else ""
        return f"Evaluation({len(self.scores)} questions{f1}{', upper bound' if self.upper_bound else ''})"

    def summary(self) -> Summary:
        """Means with confidence intervals, and counts."""
        return summarize(self.scores)

    def as_json(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The summary as plain data, after the settings of the evaluation."""
        plain: dict[str, Any] = masked({**settings, "upper_bound": self.upper_bound, **self.summary().as_json()})
        return plain

    def save(self, folder: Path, settings: dict[str, Any], *, overwrite: bool = False) -> None:
        """Write summary, rows and trajectories atomically."""
        check_output_folder(folder, overwrite=overwrite)
        with atomic_folder(folder, what="evaluation") as fresh:
            summary = {_VERSION_KEY: 1, **self.as_json(settings)}
            (fresh / _SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
            rows = "".join(json.dumps(_plain_row(row)) + "\n" for row in self.scores)
            (fresh / _SCORES).write_text(rows, encoding="utf-8")
            write_records(fresh / _TRAJECTORIES, [each for each in self.trajectories if each is not None])


def check_output_folder(folder: Path, *, overwrite: bool = False) -> None:
    """Raise an error unless the folder is new or empty, or holds an evaluation that may be overwritten."""
    if not folder.exists() and not folder.is_symlink():
        parent = next(each for each in folder.absolute().parents if each.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise StepladderError(f"{folder} cannot be written: {parent} is not a writable folder")
        return
    if not folder.is_dir():
        raise StepladderError(f"{folder} is a file or a broken link; choose another folder")
    names = {each.name if each.is_file() else f"{each.name}/" for each in folder.iterdir()}
    if names and not (names <= {_SUMMARY, _SCORES, _TRAJECTORIES} and _is_evaluation(folder)):
        raise StepladderError(f"{folder} contains files that are not part of an evaluation; choose another folder")
    if Path.cwd().is_relative_to(folder.resolve()):
        raise StepladderError(f"{folder} is the current directory, which cannot be replaced from inside")
    if names and not overwrite:
        raise StepladderError(f"{folder} already contains an evaluation; pass overwrite (--overwrite) to replace it")


def _is_evaluation(folder: Path) -> bool:
    try:
        return _VERSION_KEY in json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def evaluate(
    driver: Driver,
    agent: Agent,
    questions: Sequence[Question],
    settings: EpisodeConfig = EpisodeConfig(),  # noqa: B008 - frozen
    *,
    guide: Guide | None = None,
    seed: int = 0,
    watch: OutcomeCallback | None = None,
) -> Evaluation:
    """Run and score every question; with a guide, several candidates are sampled and the driver's scorer chooses.

    If the run ends early (Ctrl-C, or an engine that goes down after it had worked), the remaining questions are marked
    as cancelled and `stopped_by` holds the reason.
    """
    if not questions:
        raise StepladderError("no questions to evaluate")
    for question in questions:
        if not question.answers:
            raise StepladderError(f"question {question.id!r} has no answers: it cannot be scored")

    stopped_by: Interrupted | BackendDown | None = None
    outcomes: Sequence[Outcome[tuple[Trajectory, Cost]]]
    try:
        jobs = [partial(metered_answer, agent, each, settings, guide, seed_of(seed, each.id)) for each in questions]
        outcomes = driver.run(jobs, watch)
    except (Interrupted, BackendDown) as stopped:
        outcomes, stopped_by = stopped.outcomes, stopped
        if isinstance(stopped, BackendDown) and all(outcome.value is None for outcome in outcomes):
            raise
    scores = tuple(_score(question, outcome) for question, outcome in zip(questions, outcomes, strict=True))
    sees_gold = isinstance(driver.engine, OracleEngine) or (guide is not None and isinstance(driver.scorer, GoldScorer))
    played = tuple(None if outcome.value is None else outcome.value[0] for outcome in outcomes)
    return Evaluation(scores, played, stopped_by, sees_gold)


def metered_answer(
    agent: Agent, question: Question, settings: EpisodeConfig, guide: Guide | None, seed: int
) -> Algorithm[tuple[Trajectory, Cost]]:
    """One episode, or a guided search, and what it cost."""
    cost = Cost()
    if guide is None:
        answer = episode(agent, question, settings, seed)
    else:
        answer = guided_search(agent, question, settings, guide, seed)
    return (yield from metered(answer, cost)), cost


def _score(question: Question, outcome: Outcome[tuple[Trajectory, Cost]]) -> QuestionScore:
    if outcome.failure is not None:
        return failed_score(question, outcome.failure.stop, outcome.failure.reason)
    assert outcome.value is not None
    trajectory, cost = outcome.value
    return replace(
        score(trajectory),
        tokens_read=cost.usage.read,
        tokens_written=cost.usage.written,
        searches_made=cost.searches,
    )


def summarize(scores: Iterable[QuestionScore]) -> Summary:
    """Means with confidence intervals over the questions that were reached. Failed episodes count as zeros."""
    rows = list(scores)
    reached = [row for row in rows if row.stop is not StopReason.CANCELLED]
    metrics = {}
    for name, value_of in METRICS.items():
        known = [value for value in map(value_of, reached) if value is not None]
        if known and not (name in _OPTIONAL and _adds_nothing(name, known, reached)):
            metrics[name] = mean_interval(known)
    return Summary(
        questions=len(reached),
        metrics=metrics,
        stops=_counted(row.stop.value for row in reached),
        misses=_counted(row.miss.value for row in reached if row.miss is not None),
        by_hops=_grouped(reached, lambda row: str(row.hops)),
        by_kind=_grouped(reached, lambda row: row.kind or "unnamed"),
        failures=_counted(row.failure for row in reached if row.failure),
        cancelled=len(rows) - len(reached),
    )


#: The end of an error about episodes or trees.
FULL_WINDOW = (
    "filled the model's context window before its answer: use a model with a larger window, fewer or shorter passages "
    "(--topk 1, in a recipe search.k), or an agent with a shorter prompt (-brief)"
)


def check_played(scores: Sequence[QuestionScore]) -> None:
    """Raise if no episode says anything about the policy: all have failed, or the context window is too small."""
    reached = [row for row in scores if row.stop is not StopReason.CANCELLED]
    if reached and all(row.stop is StopReason.FAILED for row in reached):
        raise StepladderError(f"every episode failed: {reached[0].failure}")
    if reached and all(row.stop is StopReason.CONTEXT_LIMIT for row in reached):
        raise StepladderError(f"every episode {FULL_WINDOW}")


def compare(ours: Sequence[QuestionScore], theirs: Sequence[QuestionScore], metric: str = "f1") -> Comparison:
    """The paired difference `ours - theirs` of a metric, over the questions that both evaluations reached."""
    by_id = {row.question_id: row for row in theirs if row.stop is not StopReason.CANCELLED}
    pairs = [
        (METRICS[metric](row), METRICS[metric](by_id[row.question_id]))
        for row in ours
        if row.stop is not StopReason.CANCELLED and row.question_id in by_id
    ]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known:
        raise StepladderError(f"the two evaluations share no question with a known '{metric}'")
    return paired_difference([a for a, _ in known], [b for _, b in known])


def load_scores(folder: Path) -> tuple[QuestionScore, ...]:
    """The rows of a saved evaluation."""
    path = folder / _SCORES
    if not path.is_file():
        raise StepladderError(f"{folder} is not a saved evaluation: it has no {_SCORES} (`eval --out DIR` writes it)")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            rows.append(_ROW.validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "row"
            raise StepladderError(f"{path}:{number}: not a row of an evaluation: {where}: {first['msg']}") from error
    return tuple(rows)


def _adds_nothing(name: str, values: Sequence[float], rows: Sequence[QuestionScore]) -> bool:
    return not any(values) or (name == "format_errors" and all(row.malformed_steps <= 1 for row in rows))


def _plain_row(row: QuestionScore) -> dict[str, Any]:
    left_out = {name for name in _OPTIONAL_FIELDS if not getattr(row, name)} | (
        {"judged"} if row.judged is None else set()
    )
    left_out |= {"answer_kind"} if row.answer_kind is AnswerKind.TEXT else set()
    return {name: value for name, value in asdict(row).items() if name not in left_out}


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _grouped(rows: Sequence[QuestionScore], key: Callable[[QuestionScore], str]) -> dict[str, dict[str, float]]:
    groups: dict[str, list[QuestionScore]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {name: _group_numbers(group) for name, group in sorted(groups.items())}


def _group_numbers(rows: Sequence[QuestionScore]) -> dict[str, float]:
    numbers = {"questions": len(rows), "em": fmean(row.em for row in rows), "f1": fmean(row.f1 for row in rows)}
    known = [row for row in rows if row.gold_recall is not None]
    found = [row for row in known if row.gold_recall == 1]
    if known:
        numbers["found"] = len(found) / len(known)
    if found:
        numbers["f1_found"] = fmean(row.f1 for row in found)
    return numbers
