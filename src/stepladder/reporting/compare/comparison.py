"""The numbers of a comparison: every line on the same questions.

In: groups of sources. Out: a `Compared`. Only questions that all sources have reached are compared. Where a line has
several seeds, a question's score is its mean over them, and intervals and tests are over questions: they say how sure
the difference is between these trained models. How far other seeds would fall from them, the range over seeds shows.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.trace import StopReason
from stepladder.evaluate.evaluator import METRICS
from stepladder.evaluate.statistics import Interval, mean_interval, paired_difference
from stepladder.reporting.compare.evaluations import Source
from stepladder.reporting.compare.holm import holm
from stepladder.reporting.compare.seed_groups import Group

#: A corrected p-value below this is called beyond noise.
NOISE = 0.05
#: Means that every line has, beside its scores.
MEANS = ("searches_made", "tokens_read", "tokens_written", "malformed")
#: Zero of all questions is what an engine says that does not count.
_COUNTED = ("tokens_read", "tokens_written")


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One evaluation of a line."""

    place: str
    seed: int | None
    #: Means over the compared questions, by metric; None is not known.
    means: Mapping[str, float | None]
    #: What training took; None is not known.
    training_questions: int | None
    training_tokens: int | None
    training_minutes: float | None
    #: Questions that it has and some other source has not; and that it did not reach.
    left_out: int
    cancelled: int
    #: Episodes that broke, counted as wrong.
    failed: int
    #: Why something of its training is not known, by stage.
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One line less another, question by question."""

    of: str
    less: str
    difference: Interval
    p_value: float
    #: By Holm, over all differences that are shown together.
    corrected: float

    @property
    def beyond_noise(self) -> bool:
        """Whether chance explains it badly."""
        return self.corrected < NOISE


@dataclass(frozen=True, slots=True)
class Line:
    """One way to train or to answer."""

    label: str
    agent: str
    seeds: tuple[SeedResult, ...]
    #: F1, EM and the metric that is compared, with 95% intervals.
    scores: Mapping[str, Interval]
    #: By number of searches needed: mean F1.
    by_hops: Mapping[str, float]
    #: The metric of every question, in their order.
    values: tuple[float, ...] = field(repr=False)

    def mean(self, metric: str) -> float | None:
        """The mean over seeds; not known where it is not of one of them."""
        return _mean([seed.means[metric] for seed in self.seeds])

    def range(self, metric: str) -> tuple[float, float] | None:
        """The lowest and the highest seed; None of a single one."""
        means = [mean for seed in self.seeds if (mean := seed.means[metric]) is not None]
        return (min(means), max(means)) if len(means) > 1 else None

    @property
    def training_questions(self) -> float | None:
        """Distinct questions, as a mean over seeds."""
        return _mean([seed.training_questions for seed in self.seeds])

    @property
    def training_tokens(self) -> float | None:
        """Tokens written, as a mean over seeds."""
        return _mean([seed.training_tokens for seed in self.seeds])

    @property
    def training_minutes(self) -> float | None:
        """Time, as a mean over seeds."""
        return _mean([seed.training_minutes for seed in self.seeds])

    @property
    def tokens(self) -> float | None:
        """Tokens read and written a question."""
        read, written = self.mean("tokens_read"), self.mean("tokens_written")
        return None if read is None or written is None else read + written


@dataclass(frozen=True, slots=True)
class Compared:
    """All lines, side by side."""

    metric: str
    #: Questions that are compared, and those of them for which the metric is known.
    questions: int
    known: int
    #: By number of searches needed: how many of them.
    hops: Mapping[str, int]
    lines: tuple[Line, ...]
    reference: str
    #: Every other line less the reference, by label.
    differences: Mapping[str, Difference]

    def every_two(self, told: Callable[[], None] = lambda: None) -> list[Difference]:
        """Every line less every one after it, corrected over all of them. `told` is called after each."""
        return _differences(list(combinations(self.lines, 2)), told)


def compare_lines(
    groups: Sequence[Group], metric: str = "f1", *, against: str | None = None, sort: str | None = None
) -> Compared:
    """Compare lines by a metric. `against`: the label of the reference, the first line if left out. `sort`: by the mean
    of another metric, the highest first; without it lines stay in their order.
    """
    for name in (metric, *([sort] if sort else [])):
        if name not in METRICS:
            raise unknown_name("metric", name, METRICS)
    labels = [group.label for group in groups]
    if against is not None and against not in labels:
        raise unknown_name("line to compare against:", against, labels)
    common = _common([source for group in groups for source in group.sources])
    known = [each for each in common if all(_value(source, metric, each) is not None for source in _all(groups))]
    if not known:
        raise StepladderError(
            f"'{metric}' is not known for any of the {len(common):,} questions that are compared: the data does not "
            "tell it; choose another --metric"
        )
    wanted = dict.fromkeys([*MEANS, "f1", "em", metric, *([sort] if sort else [])])
    lines = [_line(group, common, known, metric, tuple(wanted)) for group in groups]
    reference = next(line for line in lines if line.label == (against or labels[0]))
    others = [line for line in lines if line is not reference]
    differences = _differences([(line, reference) for line in others])
    if sort is not None:
        # Python's sort keeps equals in order; what is not known comes last.
        means = {line.label: line.mean(sort) for line in lines}
        lines.sort(key=lambda line: (means[line.label] is None, -(means[line.label] or 0.0)))
    rows = _all(groups)[0].rows
    hops = Counter(str(rows[each].hops) for each in common)
    return Compared(
        metric,
        len(common),
        len(known),
        {each: hops[each] for each in sorted(hops, key=int)},
        tuple(lines),
        reference.label,
        {each.of: each for each in differences},
    )


def _all(groups: Sequence[Group]) -> list[Source]:
    return [source for group in groups for source in group.sources]


def _common(sources: Sequence[Source]) -> list[str]:
    """The questions that all sources have, in the order of the first."""
    common = [each for each in sources[0].rows if all(each in source.rows for source in sources)]
    if not common:
        fewest = min(combinations(sources, 2), key=lambda two: len(two[0].rows.keys() & two[1].rows.keys()), default=())
        names = " and ".join(source.place for source in fewest) or sources[0].place
        shared = f"{names} share none" if len(fewest) == 2 else f"{names} has reached none"
        if fewest and fewest[0].rows.keys() & fewest[1].rows.keys():
            shared = f"{names} share the fewest"
        raise StepladderError(
            f"no question is in all of the {len(sources)} evaluations: {shared}. Compare evaluations of the same split"
        )
    for source in sources[1:]:
        for each in common:
            ours, theirs = sources[0].rows[each], source.rows[each]
            if (ours.kind, ours.hops) != (theirs.kind, theirs.hops):
                raise StepladderError(
                    f"the question {each} is another one in {source.place} ({theirs.kind or 'no kind'}, {theirs.hops} "
                    f"searches) than in {sources[0].place} ({ours.kind or 'no kind'}, {ours.hops} searches): these "
                    "evaluations are of different data"
                )
    return common


def _value(source: Source, metric: str, question: str) -> float | None:
    return METRICS[metric](source.rows[question])


def _line(group: Group, common: Sequence[str], known: Sequence[str], metric: str, wanted: Sequence[str]) -> Line:
    def averaged(name: str, questions: Sequence[str]) -> list[float]:
        return [fmean(_value(source, name, each) or 0.0 for source in group.sources) for each in questions]

    values = averaged(metric, known)
    f1 = averaged("f1", common)
    by_hops: dict[str, list[float]] = {}
    for each, score in zip(common, f1, strict=True):
        by_hops.setdefault(str(group.sources[0].rows[each].hops), []).append(score)
    scores = {"f1": mean_interval(f1), "em": mean_interval(averaged("em", common))}
    if metric not in scores:
        scores[metric] = mean_interval(values)
    agents = dict.fromkeys(source.agent for source in group.sources if source.agent)
    return Line(
        group.label,
        ", ".join(agents),
        tuple(_seed(source, common, wanted) for source in group.sources),
        scores,
        {hops: fmean(each) for hops, each in sorted(by_hops.items(), key=lambda item: int(item[0]))},
        tuple(values),
    )


def _seed(source: Source, common: Sequence[str], wanted: Sequence[str]) -> SeedResult:
    rows, training = [source.rows[each] for each in common], source.training
    return SeedResult(
        source.place,
        source.seed,
        {name: _mean_of(rows, name) for name in wanted},
        None if training is None else training.questions,
        None if training is None else training.tokens_written,
        None if training is None else training.minutes,
        len(source.rows) - len(common),
        source.cancelled,
        sum(row.stop is StopReason.FAILED for row in rows),
        {} if training is None else {stage.stage: stage.problem for stage in training.stages if stage.problem},
    )


def _mean_of(rows: Sequence[QuestionScore], metric: str) -> float | None:
    """The mean over the questions for which it is known."""
    values = [value for value in map(METRICS[metric], rows) if value is not None]
    if not values or (metric in _COUNTED and not any(values)):
        return None
    return fmean(values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _differences(pairs: Sequence[tuple[Line, Line]], told: Callable[[], None] = lambda: None) -> list[Difference]:
    found = []
    for ours, theirs in pairs:
        found.append(paired_difference(ours.values, theirs.values))
        told()
    corrected = holm([each.p_value for each in found])
    return [
        Difference(ours.label, theirs.label, each.difference, each.p_value, p)
        for (ours, theirs), each, p in zip(pairs, found, corrected, strict=True)
    ]
