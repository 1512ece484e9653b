"""The numbers of a comparison: all arms on the same questions.

In: evaluations grouped into arms. Out: a `RunComparison`. Only questions that all evaluations contain are compared.
With several seeds, the score of a question is its mean over seeds, and intervals and tests are over questions: they
quantify the difference between these trained models. The variance over seeds is reported separately, as a range.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.display import Showable
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.trace import StopReason
from stepladder.evaluation.evaluator import METRICS
from stepladder.evaluation.statistics import Interval, mean_interval, paired_difference
from stepladder.pipeline.policy_choice import Regression
from stepladder.reporting.compare.evaluations import EvaluationSource
from stepladder.reporting.compare.seed_groups import SeedGroup
from stepladder.reporting.eval_table import UPPER_BOUND

#: Significance level for corrected p-values.
ALPHA = 0.05
#: Metrics that every arm reports besides its scores.
MEANS = ("searches_made", "tokens_read", "tokens_written", "malformed")
#: If these are 0 for all questions, the engine did not count them.
_COUNTED = ("tokens_read", "tokens_written")


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One evaluation of an arm."""

    path: str
    seed: int | None
    #: Means over the compared questions, by metric; None if unknown.
    means: Mapping[str, float | None]
    #: Training cost; None if unknown.
    training_questions: int | None
    training_tokens: int | None
    training_minutes: float | None
    #: Questions that are not in all evaluations, and questions that were not evaluated.
    excluded: int
    cancelled: int
    #: Failed episodes, counted as wrong.
    failed: int
    #: Why the training questions are unknown, by stage.
    problems: Mapping[str, str]
    #: Set if the stage that trained the evaluated policy ended worse than it began.
    worse: Regression | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two arms, paired by question."""

    arm: str
    against: str
    difference: Interval
    p_value: float
    #: Holm-corrected p-value, over all differences that are reported together.
    corrected: float

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is below `ALPHA`."""
        return self.corrected < ALPHA


@dataclass(frozen=True, slots=True)
class Arm:
    """One method: evaluations that differ only in their seed."""

    label: str
    agent: str
    seeds: tuple[SeedResult, ...]
    #: F1, EM and the compared metric, with 95% intervals.
    scores: Mapping[str, Interval]
    #: Mean F1 by number of searches needed.
    by_hops: Mapping[str, float]
    #: The compared metric per question.
    values: tuple[float, ...] = field(repr=False)

    def mean(self, metric: str) -> float | None:
        """The mean over seeds; None if unknown for any seed."""
        return _mean([seed.means[metric] for seed in self.seeds])

    def range(self, metric: str) -> tuple[float, float] | None:
        """The lowest and the highest seed; None for a single seed."""
        means = [mean for seed in self.seeds if (mean := seed.means[metric]) is not None]
        return (min(means), max(means)) if len(means) > 1 else None

    def training(self, what: str) -> float | None:
        """Questions, tokens or minutes of training, mean over seeds; None if unknown for any seed."""
        return _mean([getattr(seed, f"training_{what}") for seed in self.seeds])

    @property
    def worse(self) -> str | None:
        """A note if the policy of a seed is worse on dev questions than the one it was trained from."""
        against = [seed.worse.against for seed in self.seeds if seed.worse is not None]
        share = f"{len(against)} of {len(self.seeds)} seeds " if len(against) < len(self.seeds) else ""
        return f"{share}worse than {' or '.join(dict.fromkeys(against))} on dev" if against else None

    @property
    def tokens(self) -> float | None:
        """Tokens read and written per question."""
        read, written = self.mean("tokens_read"), self.mean("tokens_written")
        return None if read is None or written is None else read + written


@dataclass(frozen=True, slots=True, repr=False)
class RunComparison(Showable):
    """All arms on the same questions."""

    metric: str
    #: Compared questions, and those of them for which the metric is known.
    questions: int
    scored: int
    #: Number of questions by number of searches needed.
    hops: Mapping[str, int]
    arms: tuple[Arm, ...]
    reference: str
    #: Every other arm vs. the reference, by label.
    differences: Mapping[str, Difference]

    def pairwise(self, on_progress: Callable[[], None] = lambda: None) -> list[Difference]:
        """All pairs of arms, corrected over all pairs. `on_progress` is called after each."""
        return _differences(list(combinations(self.arms, 2)), on_progress)

    def __repr__(self) -> str:
        return f"RunComparison({', '.join(arm.label for arm in self.arms)})"


def comparison_json(comparison: RunComparison, pairwise: Sequence[Difference]) -> dict[str, Any]:
    """Everything as JSON-compatible data; unknown values are null. `pairwise`: differences between all pairs."""

    def plain(each: Difference | None) -> dict[str, Any] | None:
        return None if each is None else {**asdict(each), "significant": each.significant}

    return {
        "metric": comparison.metric,
        "questions": comparison.questions,
        "scored": comparison.scored,
        "by_hops": dict(comparison.hops),
        "reference": comparison.reference,
        "arms": [
            {
                "label": arm.label,
                "agent": arm.agent,
                "worse": arm.worse,
                "scores": {
                    name: {**asdict(score), "over_seeds": arm.range(name)} for name, score in arm.scores.items()
                },
                "difference": plain(comparison.differences.get(arm.label)),
                **{name: arm.mean(name) for name in MEANS},
                "by_hops": dict(arm.by_hops),
                **{f"training_{what}": arm.training(what) for what in ("questions", "tokens", "minutes")},
                "seeds": [asdict(seed) for seed in arm.seeds],
            }
            for arm in comparison.arms
        ],
        "pairwise": [plain(each) for each in pairwise],
    }


def compare_arms(
    groups: Sequence[SeedGroup], metric: str = "f1", *, against: str | None = None, sort: str | None = None
) -> RunComparison:
    """Compare arms by a metric. `against`: label of the reference (default: the first arm). `sort`: metric to sort the
    arms by, highest first (default: unsorted).
    """
    for name in (metric, *([sort] if sort else [])):
        if name not in METRICS:
            raise unknown_name("metric", name, METRICS)
    labels = [group.label for group in groups]
    if against is not None and against + UPPER_BOUND in labels:
        against += UPPER_BOUND
    if against is not None and against not in labels:
        raise unknown_name("arm to compare against:", against, labels)
    sources = [source for group in groups for source in group.sources]
    common = _common(sources)
    scored = [each for each in common if all(METRICS[metric](source.rows[each]) is not None for source in sources)]
    if not scored:
        raise StepladderError(
            f"'{metric}' is unknown for all of the {len(common):,} compared questions: the data lacks it; "
            "choose another --metric"
        )
    metrics = dict.fromkeys([*MEANS, "f1", "em", metric, *([sort] if sort else [])])
    arms = [_arm(group, common, scored, metric, tuple(metrics)) for group in groups]
    reference = next(arm for arm in arms if arm.label == (against or labels[0]))
    others = [arm for arm in arms if arm is not reference]
    differences = _differences([(arm, reference) for arm in others])
    if sort is not None:
        # The sort is stable; unknown means come last.
        means = {arm.label: arm.mean(sort) for arm in arms}
        arms.sort(key=lambda arm: (means[arm.label] is None, -(means[arm.label] or 0.0)))
    hops = Counter(str(sources[0].rows[each].hops) for each in common)
    return RunComparison(
        metric,
        len(common),
        len(scored),
        {each: hops[each] for each in sorted(hops, key=int)},
        tuple(arms),
        reference.label,
        {each.arm: each for each in differences},
    )


def _common(sources: Sequence[EvaluationSource]) -> list[str]:
    """The questions that all evaluations contain, in the order of the first."""
    common = [each for each in sources[0].rows if all(each in source.rows for source in sources)]
    if not common:
        pairs = combinations(sources, 2)
        fewest = min(pairs, key=lambda two: len(two[0].rows.keys() & two[1].rows.keys()), default=sources)
        share = "share the fewest" if set.intersection(*(set(each.rows) for each in fewest)) else "share none"
        raise StepladderError(
            f"no question is in all of the {len(sources)} evaluations: {' and '.join(each.path for each in fewest)} "
            f"{share}. Compare evaluations of the same split"
        )
    for source in sources[1:]:
        for each in common:
            ours, theirs = sources[0].rows[each], source.rows[each]
            if (ours.kind, ours.hops) != (theirs.kind, theirs.hops):
                raise StepladderError(
                    f"question {each} differs between {sources[0].path} ({ours.kind or 'no kind'}, {ours.hops} "
                    f"searches) and {source.path} ({theirs.kind or 'no kind'}, {theirs.hops} searches): these "
                    "evaluations use different data"
                )
    return common


def _arm(group: SeedGroup, common: Sequence[str], scored: Sequence[str], metric: str, metrics: Sequence[str]) -> Arm:
    def averaged(name: str, questions: Sequence[str]) -> list[float]:
        return [fmean(METRICS[name](source.rows[each]) or 0.0 for source in group.sources) for each in questions]

    values = averaged(metric, scored)
    f1 = averaged("f1", common)
    by_hops: dict[str, list[float]] = {}
    for each, score in zip(common, f1, strict=True):
        by_hops.setdefault(str(group.sources[0].rows[each].hops), []).append(score)
    scores = {"f1": mean_interval(f1), "em": mean_interval(averaged("em", common))}
    if metric not in scores:
        scores[metric] = mean_interval(values)
    agents = dict.fromkeys(source.agent for source in group.sources if source.agent)
    return Arm(
        group.label,
        ", ".join(agents),
        tuple(_seed(source, common, metrics) for source in group.sources),
        scores,
        {hops: fmean(each) for hops, each in sorted(by_hops.items(), key=lambda item: int(item[0]))},
        tuple(values),
    )


def _seed(source: EvaluationSource, common: Sequence[str], metrics: Sequence[str]) -> SeedResult:
    rows, provenance = [source.rows[each] for each in common], source.provenance
    return SeedResult(
        source.path,
        source.seed,
        {name: _mean_of(rows, name) for name in metrics},
        None if provenance is None else provenance.questions,
        None if provenance is None else provenance.tokens_written,
        None if provenance is None else provenance.minutes,
        len(source.rows) - len(common),
        source.cancelled,
        sum(row.stop is StopReason.FAILED for row in rows),
        {} if provenance is None else {stage.stage: stage.problem for stage in provenance.stages if stage.problem},
        source.worse,
    )


def _mean_of(rows: Sequence[QuestionScore], metric: str) -> float | None:
    """The mean over the questions for which the metric is known."""
    values = [value for value in map(METRICS[metric], rows) if value is not None]
    if not values or (metric in _COUNTED and not any(values)):
        return None
    return fmean(values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _differences(pairs: Sequence[tuple[Arm, Arm]], on_progress: Callable[[], None] = lambda: None) -> list[Difference]:
    found = []
    for one, other in pairs:
        found.append(paired_difference(one.values, other.values))
        on_progress()
    corrected = holm([each.p_value for each in found])
    return [
        Difference(one.label, other.label, each.difference, each.p_value, p)
        for (one, other), each, p in zip(pairs, found, corrected, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the smallest of m p-values is multiplied by m, the next by m - 1, and so on.

    The result is made monotone. Rejecting p-values below 0.05 keeps the family-wise error rate below 0.05, whatever the
    dependence between the tests.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    scaled = np.minimum(np.asarray(p_values)[order] * np.arange(len(order), 0, -1), 1.0)
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(scaled)
    return [float(p) for p in corrected]
