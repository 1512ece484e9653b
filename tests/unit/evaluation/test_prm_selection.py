"""How useful scores are to choose: between steps at one place, and between episodes of one question."""

from dataclasses import replace

import pytest

from stepladder.agents import make_agent
from stepladder.core.trace import Action, ActionKind, Author, Segment, Step, StopReason, Trajectory
from stepladder.evaluation.prm.calibration import GradedStep, graded_steps
from stepladder.evaluation.prm.selection import best_of, difficulty_auc, peer_auc, selection_report
from stepladder.oracle.control_chains import rebuild_trajectory, turns_of
from tests.support.samples import PASSAGES, QUESTION


def step(score: float, good: bool, question: str = "q", place: int = 0, kind: str = "query") -> GradedStep:
    return GradedStep(question, kind, score, good, "" if good else "wrong", place)


def test_only_steps_at_one_place_of_one_question_are_compared() -> None:
    steps = [
        step(1.0, True), step(0.0, False), step(1.0, False),  # 1.5 of 2
        step(-9.0, True, place=1), step(-9.0, True, kind="answer"), step(-9.0, True, "r"),  # no rival
        step(0.0, True, "s"), step(3.0, False, "s"),  # 0 of 1
    ]  # fmt: skip
    found = peer_auc(steps)
    assert found is not None
    assert (found["mean"], found["pairs"]) == (0.5, 3)
    assert peer_auc(steps[3:6]) is None


def test_difficulty_alone_predicts_an_answer_from_the_other_answers_to_its_question() -> None:
    easy = [step(0.0, True, "easy"), step(0.0, True, "easy"), step(0.0, False, "easy")]
    hard = [step(0.0, False, "hard"), step(0.0, False, "hard"), step(0.0, False, "only once"), step(0.0, True, "one")]
    found = difficulty_auc([*easy, *hard])
    assert found is not None
    # Good ones are predicted at 0.5, 0.5; faulty ones at 1, 0, 0. Questions with one answer have no others.
    assert found["mean"] == pytest.approx(4 / 6)


def trajectory(answer: str | None, question: str = "q") -> Trajectory:
    steps = ()
    if answer is not None:
        written = Segment(Author.POLICY, answer)
        steps = (Step((), written, Action(ActionKind.ANSWER, answer)),)
    stop = StopReason.ANSWERED if steps else None
    return Trajectory(replace(QUESTION, id=question, answers=("Velm",)), "prorag-brief", steps, stop=stop)


def test_the_best_of_several_episodes_is_chosen_by_score() -> None:
    right, wrong = trajectory("Velm"), trajectory("Oss")
    scores = [[5.0, 0.0], [-1.0, 1.0], [9.0, 9.0]]
    found = best_of([right, wrong, replace(wrong, steps=(), stop=None)], scores)
    assert found is not None
    means = {name: each["mean"] for name, each in found.items() if isinstance(each, dict)}
    # The third has no answer, so it is never chosen.
    assert means == {
        "last": 0.0, "least": 1.0, "mean": 1.0, "vote": 1.0, "weighted": 1.0,
        "random": pytest.approx(1 / 3), "oracle": 1.0, "flat": 0.0,
    }  # fmt: skip
    assert (found["questions"], found["episodes"]) == (1, 3)
    assert best_of([right], [[1.0]]) is None
    flat = best_of([right, right, wrong, wrong], [*scores, [0.0]])
    assert flat is not None
    assert flat["flat"]["mean"] == 0.0, "one question, right and wrong"
    flat = best_of([wrong, wrong], scores[:2])
    assert flat is not None
    assert flat["flat"]["mean"] == 1.0


@pytest.mark.parametrize(("logit_of_wrong", "chosen"), [(1.0, 1.0), (3.0, 0.0)])
def test_a_weighted_vote_multiplies_probability_and_count(logit_of_wrong: float, chosen: float) -> None:
    right, wrong = trajectory("Velm"), trajectory("Oss")
    # Twice 0.41 is more than 0.73, and less than 0.95.
    found = best_of([wrong, right, trajectory("velm.")], [[logit_of_wrong], [-2.0], [-0.364]])
    assert found is not None
    assert (found["vote"]["mean"], found["weighted"]["mean"]) == (1.0, chosen)
    assert found["least"]["mean"] == 0.0


def test_answers_after_a_fault_are_counted_apart() -> None:
    agent = make_agent("prorag-brief")
    answer = Action(ActionKind.ANSWER, QUESTION.answers[0])
    useless = (Action(ActionKind.QUERY, "Which river is the longest?"), tuple(PASSAGES[:1]))
    origin = Trajectory(QUESTION, agent.name, ())
    chains = [rebuild_trajectory(agent, origin, turns) for turns in ([(answer, ())], [useless, (answer, ())])]
    assert all(turns_of(chain.steps) for chain in chains)
    scores = [[1.0] * len(chain.steps) for chain in chains]
    graded = graded_steps(chains, scores)
    assert [(each.kind, each.place, each.after_fault) for each in graded if each.kind == "answer"] == [
        ("answer", 0, False),
        ("answer", 1, True),
    ]
    report = selection_report(graded, chains, scores)
    assert report["answers"]["after_fault"]["answers"] == report["answers"]["before_fault"]["answers"] == 1
