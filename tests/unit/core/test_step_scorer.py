"""The contract of step scorers, and the test of it that users run on their own."""

from collections.abc import Callable, Sequence

import pytest

from stepladder.core.errors import ContractViolation
from stepladder.core.step_scorer import (
    StepScorer,
    StepScores,
    check_step_scorer,
    logit,
    raise_errors,
    sigmoid,
)
from stepladder.core.trace import Action, ActionKind, Author, Question, Segment, Step, Trajectory


def trajectory(*queries: str) -> Trajectory:
    written = [Step((), Segment(Author.POLICY, each), Action(ActionKind.QUERY, each)) for each in queries]
    return Trajectory(Question("q", "Where?", ("here",)), "prorag", tuple(written))


TRAJECTORIES = [trajectory("a", "bb"), trajectory("ccc"), trajectory()]


class Lengths(StepScorer):
    """Longer queries are better; `change` breaks the result of a call in some way."""

    max_batch, concurrency = 8, 2

    def __init__(self, change: Callable[[list[StepScores]], list[StepScores]] = lambda found: found) -> None:
        self.change = change

    def score(self, trajectories: Sequence[Trajectory]) -> list[StepScores]:
        found = [tuple(len(step.action.content) / 4 for step in each.steps) for each in trajectories]
        return self.change([*found])


def test_a_scorer_with_probabilities_alone_keeps_the_contract() -> None:
    check_step_scorer(Lengths(), TRAJECTORIES)
    (first, second), *_ = raise_errors(Lengths().score_logits(TRAJECTORIES))
    assert first == pytest.approx(-1.0986, abs=1e-4)
    assert second == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: [*found, ()], "an empty batch must give an empty list"),
        (lambda found: found[:2], "3 trajectories gave 2 results"),
        (lambda found: [each[:1] for each in found], "a trajectory of 2 steps got"),
        (lambda found: [list(each) for each in found], "not a tuple with one number per step"),
        (lambda found: [ValueError("no")] * len(found), "not a tuple with one number per step"),
        (lambda found: [tuple(2 * x for x in each) for each in found], "between 0 and 1"),
        (lambda found: [tuple(x / len(found) for x in each) for each in found], "depends on its batch"),
    ],
)
def test_violations_are_named(change: Callable[[list[StepScores]], list[StepScores]], message: str) -> None:
    with pytest.raises(ContractViolation, match=message):
        check_step_scorer(Lengths(change), TRAJECTORIES)


def test_logits_and_probabilities_must_agree() -> None:
    class Reversed(Lengths):
        def score_logits(self, trajectories: Sequence[Trajectory]) -> list[StepScores]:
            return [tuple(-1.0 for _ in each.steps) for each in trajectories]

    with pytest.raises(ContractViolation, match=r"above 0 where its probability is above 0\.5"):
        check_step_scorer(Reversed(), TRAJECTORIES)


def test_sizes_and_trajectories_must_make_sense() -> None:
    class Zero(Lengths):
        max_batch = 0

    with pytest.raises(ContractViolation, match="both must be at least 1"):
        check_step_scorer(Zero(), TRAJECTORIES)
    with pytest.raises(ContractViolation, match="must have a step"):
        check_step_scorer(Lengths(), [trajectory()])


def test_errors_stay_errors_as_logits_and_are_raised_on_demand() -> None:
    broken = Lengths(lambda found: [ValueError("no scores"), *found[1:]])
    assert isinstance(broken.score_logits(TRAJECTORIES)[0], ValueError)
    with pytest.raises(ValueError, match="no scores"):
        raise_errors(broken.score(TRAJECTORIES))


@pytest.mark.parametrize(("x", "p"), [(0.0, 0.5), (1000.0, 1.0), (-1000.0, 0.0), (2.0, 0.8808), (-2.0, 0.1192)])
def test_sigmoid(x: float, p: float) -> None:
    assert sigmoid(x) == pytest.approx(p, abs=1e-4)
    assert sigmoid(logit(p)) == pytest.approx(p, abs=1e-5)
