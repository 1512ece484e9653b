"""The contract of judges, and how judges and step scorers declare themselves to `judges/registry.py`.

A judge compares steps from one state. In: a tree and some of its nodes that share a parent. Out: preferences between
them; none where the judge sees no relevant difference. `prefer` is a generator like every algorithm, so a judge may
call a model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stepladder.core.errors import expect
from stepladder.core.requests import Algorithm, Result
from stepladder.core.step_scorer import Derived, StepScorer
from stepladder.core.trace import Node, Tree
from stepladder.driver import Driver
from stepladder.engines.base import Engine

if TYPE_CHECKING:
    from stepladder.judges.llm.config import LLMJudgeConfig


@dataclass(frozen=True, slots=True)
class Preference:
    """One step preferred to a sibling, both as node ids."""

    chosen: int
    rejected: int
    #: The judge's values of both; None if it only ranks.
    chosen_value: float | None = None
    rejected_value: float | None = None
    reason: str = ""


class Judge(Protocol):
    """Prefers steps to their siblings."""

    #: Stored in every pair it makes.
    name: str

    def prefer(self, tree: Tree, siblings: Sequence[Node]) -> Algorithm[list[Preference]]:
        """The preferences among siblings, the clearest first."""


def once_per_tree(values: Callable[[Tree], Result]) -> Callable[[Tree], Result]:
    """The function with its last result kept: `prefer` is called once per group of siblings of a tree."""
    last: list[tuple[Tree, Result]] = []

    def remembered(tree: Tree) -> Result:
        if not last or last[0][0] is not tree:
            last[:] = [(tree, values(tree))]
        return last[0][1]

    return remembered


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """Everything a judge may be configured with; each judge uses its part."""

    #: Minimum difference between two values, which are between 0 and 1.
    margin: float = 0.01
    #: Discount per step of SPRE values.
    decay: float = 0.9
    #: The model of an LLM judge.
    llm: "LLMJudgeConfig | None" = None
    #: How the gold judge counts steps that follow from an earlier error.
    derived: Derived = "unjudged"


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """A judge that recipes can name. A module declares `JUDGES = {name: JudgeSpec(...)}`."""

    make: Callable[[JudgeOptions], Judge]
    description: str
    #: Whether it needs `JudgeOptions.llm`.
    uses_llm: bool = False
    #: Whether it compares values, so that `JudgeOptions.margin` has an effect.
    uses_margin: bool = True
    #: Whether it only grades steps of questions with a gold decomposition or gold passages.
    needs_gold: bool = False
    #: What to do if it finds no pair in the trees.
    advice: str = "Or explore with more simulations, a larger width or a higher temperature, or lower the margin"


@dataclass(frozen=True, slots=True)
class ScorerOptions:
    """Everything a step scorer may be configured with; each scorer uses its part."""

    #: The folder of the process reward model.
    prm: str | Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    #: Score the text of policies with another tokenizer than the reward model's, instead of raising an error.
    retokenize: bool = True
    #: The model of an LLM scorer, and the folder of its response cache and spend.
    llm: "LLMJudgeConfig | None" = None
    folder: Path | None = None
    #: How the gold judge counts steps that follow from an earlier error.
    derived: Derived = "unjudged"


@dataclass(frozen=True, slots=True)
class ScorerSpec:
    """A step scorer that recipes can name. A module declares `SCORERS = {name: ScorerSpec(...)}`."""

    make: Callable[[ScorerOptions], StepScorer]
    description: str
    #: Whether it needs `ScorerOptions.prm`, and whether it needs `ScorerOptions.llm`.
    uses_prm: bool = False
    uses_llm: bool = False


# --- the public contract test ---------------------------------------------------------------------------------


def check_judge(judge: Judge, trees: Sequence[Tree], *, engine: Engine | None = None) -> None:
    """Test a judge against its contract; raises `ContractViolation` with what is wrong.

    Run it on your own judge in your own tests, with a few `trees` in which it prefers some step. A judge that calls a
    model needs the `engine`.
    """
    expect(bool(getattr(judge, "name", "")), "a judge needs a name: it is stored in every pair")
    found = 0
    for tree in trees:
        for siblings in tree.children_by_node():
            if len(siblings) < 2:
                continue
            (first,), (second,) = (Driver(engine).run([lambda: judge.prefer(tree, siblings)]) for _ in range(2))  # noqa: B023
            expect(first.failure is None, f"prefer failed: {first.failure and first.failure.reason}")
            preferences = first.value or []
            expect(preferences == (second.value or []), "prefer depends on earlier calls")
            _check_preferences(preferences, {node.id for node in siblings})
            found += len(preferences)
    expect(found > 0, "the judge prefers no step in any of the trees, so the test says nothing")


def _check_preferences(preferences: Sequence[Preference], ids: set[int]) -> None:
    pairs = {(each.chosen, each.rejected) for each in preferences}
    expect(len(pairs) == len(preferences), "a preference is given twice")
    for each in preferences:
        expect({each.chosen, each.rejected} <= ids, f"{each} names a node that is not among the siblings")
        expect(each.chosen != each.rejected, f"{each} prefers a step to itself")
        expect((each.rejected, each.chosen) not in pairs, f"{each} contradicts another preference")
        if each.chosen_value is not None and each.rejected_value is not None:
            expect(each.chosen_value >= each.rejected_value, f"{each} prefers the step with the lower value")
