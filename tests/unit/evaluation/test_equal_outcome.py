"""Whether scores tell more than the outcome: steps are compared within right and within wrong episodes."""

import pytest

from stepladder.evaluation.prm.calibration import GradedStep
from stepladder.evaluation.prm.equal_outcome import equal_outcome


def step(score: float, good: bool, right: bool, question: str = "q", kind: str = "query") -> GradedStep:
    return GradedStep(question, kind, score, good, "" if good else "wrong", right=right)


def test_a_model_of_outcomes_has_an_auc_of_a_half() -> None:
    """It scores the steps of right episodes high and of wrong ones low, and so ranks most steps right."""
    steps = [step(2.0, n > 0, True, f"r{n}") for n in range(10)] + [
        step(-2.0, n == 0, False, f"w{n}") for n in range(10)
    ]
    found = equal_outcome(steps)
    assert found["auc"]["mean"] == found["right"]["auc"]["mean"] == found["wrong"]["auc"]["mean"] == 0.5
    assert found["auc"]["pairs"] == 18
    assert (found["right"]["steps"], found["right"]["faulty"], found["wrong"]["faulty"]) == (10, 1, 9)
    assert found["right"]["good"] == 0.9
    assert found["right"]["predicted"] == pytest.approx(0.8808, abs=1e-4)  # sigmoid(2)


def test_numbers_worked_out_by_hand() -> None:
    steps = [
        step(1.0, True, True), step(0.0, False, True), step(3.0, False, True, "a"),  # one of two comparisons is won
        step(-1.0, True, False, "b"), step(-1.0, False, False, "b"),                 # a tie
        step(9.0, False, False, "c", "sub_answer"),                                  # no good step of its kind
    ]  # fmt: skip
    found = equal_outcome(steps)
    assert found["right"]["auc"]["mean"] == 0.5
    assert found["wrong"]["auc"]["mean"] == 0.5
    assert found["auc"]["pairs"] == 3
    assert equal_outcome([*steps, step(5.0, True, True, "d")])["auc"]["mean"] == pytest.approx((1 + 2 + 0.5) / 5)


def test_final_answers_are_the_outcome_and_left_out() -> None:
    answers = [step(5.0, True, True, kind="answer"), step(-5.0, False, True, kind="answer")]
    found = equal_outcome(answers)
    assert found == {
        "auc": None,
        **{
            name: {"steps": 0, "faulty": 0, "good": None, "predicted": None, "auc": None} for name in ("right", "wrong")
        },
    }
