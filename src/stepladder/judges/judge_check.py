"""The public contract test of judges: `check_judge`."""

from collections.abc import Sequence

from stepladder.core.errors import expect
from stepladder.core.trace import Tree
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.judges.base import Judge, Preference


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
