"""The answers of a study: whether its arms are comparable, and one sentence per contrast.

In: `StudyResults`. Out: budget lines and verdicts. There is a verdict only when all planned seeds are finished, there
are five of them or more, and both arms kept to the budget.
"""

from dataclasses import dataclass

from stepladder.evaluation.statistics import LEVEL, Interval
from stepladder.reporting.studies.study_ledger import Ledger
from stepladder.reporting.studies.study_results import ArmResult, ContrastResult, StudyResults
from stepladder.reporting.studies.study_spec import EQUAL
from stepladder.reporting.studies.study_statistics import (
    ALPHA,
    MIN_SEEDS,
    POWER,
    power,
    seeds_needed,
    spread,
    t_interval,
)

#: Budgets whose name in a study is another one than in the ledger.
_NAMES = {"judge_calls": "judge calls", "tokens_sampled": "tokens sampled", "tokens_trained": "tokens trained"}


@dataclass(frozen=True, slots=True)
class Breach:
    """An arm that consumed another amount than the study states, or did not count it."""

    arm: str
    what: str
    #: None: not counted.
    found: float | None
    expected: float | None
    #: The contrast that the arms are compared for; None: all of the arm's.
    contrast: str | None = None

    def concerns(self, contrast: ContrastResult) -> bool:
        """Whether it is about an arm of this contrast."""
        return self.arm in (contrast.first, contrast.second) and self.contrast in (None, contrast.name)

    def __str__(self) -> str:
        what = _NAMES.get(self.what, self.what)
        if self.found is None or self.expected is None:
            return f"{self.arm}: {what} were not counted"
        share = f" ({self.found / self.expected - 1:+.0%})" if self.expected else ""
        return f"{self.arm}: {self.found:,.0f} {what} instead of {self.expected:,.0f}{share}"


def breaches(results: StudyResults) -> list[Breach]:
    """Where the arms did not keep to the budget."""
    budget = results.study.budget
    found = []
    for what, amount in budget.amounts().items() if budget is not None else ():
        for arm, other, contrast in _compared(results):
            if not arm.ledgers or (amount == EQUAL and (arm is other or not other.ledgers)):
                continue
            expected = _amount(other.ledger, what) if amount == EQUAL else float(amount)
            own = _amount(arm.ledger, what)
            assert budget is not None
            if own is None or expected is None or abs(own - expected) > budget.tolerance * expected:
                found.append(Breach(arm.name, what, own, expected, contrast))
    return found


def _compared(results: StudyResults) -> list[tuple[ArmResult, ArmResult, str | None]]:
    """The arms whose amounts are to be equal, and the contrast for which."""
    study = results.study
    if study.budget is None or study.budget.between == "baseline":
        return [(arm, results.arm(study.baseline), None) for arm in results.arms]
    return [(results.arm(first), results.arm(second), name) for name, (first, second) in study.contrasts.items()]


def _amount(ledger: Ledger, what: str) -> float | None:
    value: float | None = getattr(ledger, what)
    return value


def verdicts(results: StudyResults) -> dict[str, str]:
    """The answer of each contrast, in one sentence."""
    return {each.name: _verdict(results, each) for each in results.contrasts}


def _verdict(results: StudyResults, contrast: ContrastResult) -> str:
    study, pair = results.study, {contrast.first, contrast.second}
    if len(study.seed_list) < MIN_SEEDS or contrast.interval is None or contrast.p_holm is None:
        return f"no verdict: {len(contrast.differences)} of at least {MIN_SEEDS} seeds"
    if waiting := [each for each in results.unfinished if each.arm in pair]:
        seeds = ", ".join(str(seed) for seed in sorted({each.seed for each in waiting}))
        return f"no verdict yet: not all planned runs are finished (missing: seed {seeds})"
    unequal = [each for each in breaches(results) if each.concerns(contrast)]
    if unequal and study.budget is not None and study.budget.unequal == "no verdict":
        return f"no verdict: the arms are not comparable. {'; '.join(map(str, unequal))}"
    remark = f" The budgets differ: {'; '.join(map(str, unequal))}." if unequal else ""
    return _decision(results, contrast, contrast.interval, contrast.p_holm) + remark


def _decision(results: StudyResults, contrast: ContrastResult, interval: Interval, p: float) -> str:
    study = results.study
    if p <= ALPHA:
        direction = "higher" if interval.mean > 0 else "lower"
        return (
            f"{contrast.first} is {direction} than {contrast.second} in {study.estimand}: {interval.mean:+.3f} "
            f"[{interval.low:+.3f}, {interval.high:+.3f}], Holm p {p_text(p)}"
        )
    effect, count = study.smallest_effect, len(study.contrasts)
    if effect is None:
        return f"undecided: Holm p {p_text(p)}; the study states no smallest effect to plan more seeds for"
    differences = list(contrast.differences.values())
    wide = t_interval(differences, 1 - (1 - LEVEL) / count)  # the level of each of several contrasts
    if -effect < wide.low and wide.high < effect:
        return f"no difference of {effect:g} or more: {_interval_text(wide, count)} lies within +-{effect:g}"
    deviation, seeds = spread(differences).mean, len(differences)
    more = seeds_needed(effect, deviation, ALPHA / count) - seeds
    if more > 0:
        return f"undecided: {more} more seeds would be needed for a difference of {effect:g} (power {POWER:.0%})"
    return (
        f"undecided: Holm p {p_text(p)}, although {seeds} seeds have a power of "
        f"{power(seeds, effect, deviation, ALPHA / count):.0%} for a difference of {effect:g}"
    )


def _interval_text(interval: Interval, contrasts: int) -> str:
    """An interval, and its level if that is that of one of several contrasts."""
    level = f"the {1 - (1 - LEVEL) / contrasts:.1%} interval" if contrasts > 1 else "the interval"
    return f"{level} [{interval.low:+.3f}, {interval.high:+.3f}]"


def p_text(p: float) -> str:
    """A p-value for a table.

    >>> p_text(0.0312), p_text(0.00004)
    ('0.031', '<0.001')
    """
    return f"{p:.3f}" if p >= 0.001 else "<0.001"
