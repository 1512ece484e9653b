"""Which right samples are imitated: what they state was found before, and their question has the wanted difficulty."""

from dataclasses import replace

import pytest

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Action, ActionKind, Author, Passage, Question, Segment, Step, StopReason, Trajectory
from stepladder.train.rft.config import RFTConfig
from stepladder.train.rft.filters import filter_trajectories
from stepladder.train.sft.config import SFTConfig
from stepladder.train.transcripts.sample_checks import SampleRules, is_supported, solved_shares
from tests.support.samples import QUESTION

ORM = Passage("orm", "Orm Tower", "Orm Tower was designed by Ada Tarn.")
ADA = Passage("ada", "Ada Tarn", "Ada Tarn was born in Velm.")


def episode(*actions: tuple[ActionKind, str, tuple[Passage, ...]], question: Question = QUESTION) -> Trajectory:
    """An episode: the kind and the content of each step, and the passages that it found."""
    steps = [
        Step((), Segment(Author.POLICY, content), Action(kind, content), passages)
        for kind, content, passages in actions
    ]
    return Trajectory(question, "prorag", tuple(steps), StopReason.ANSWERED)


def answering(answer: str, sub_answer: str = "Ada Tarn", question: Question = QUESTION) -> Trajectory:
    """Both searches, a sub-answer, an answer."""
    return episode(
        (ActionKind.QUERY, "Orm Tower", (ORM,)),
        (ActionKind.SUB_ANSWER, sub_answer, ()),
        (ActionKind.QUERY, "Ada Tarn", (ADA,)),
        (ActionKind.ANSWER, answer, ()),
        question=question,
    )


def test_what_is_stated_was_found_before() -> None:
    assert is_supported(answering("Velm"))
    assert not is_supported(answering("Oss")), "no passage says so"
    assert not is_supported(answering("Velm", sub_answer="Bo Lind")), "a sub-answer without support"
    late = answering("Velm").steps
    early = replace(answering("Velm"), steps=(late[1], late[0], *late[2:]))
    assert not is_supported(early), "the passage was found after the sub-answer"
    assert not is_supported(episode((ActionKind.ANSWER, "Velm", ()))), "nothing was searched"


def test_a_choice_need_not_be_in_a_passage() -> None:
    assert is_supported(answering("yes"))
    which = replace(QUESTION, text="Which is older, Oss or Velm?")
    assert is_supported(answering("Oss", question=which))
    assert not is_supported(answering("Os", question=which)), "a part of a word is not named"


def test_questions_of_the_wanted_difficulty_are_kept() -> None:
    lucky, easy = (replace(QUESTION, id=name) for name in ("lucky", "easy"))
    played = [answering(answer, question=lucky) for answer in ("Velm", "Oss", "Oss", "Oss")]
    played += [answering("Velm", question=easy)] * 4
    assert solved_shares(played, 1.0) == {"lucky": 0.25, "easy": 1.0}
    for rules, kept, rejected in (
        (SampleRules(), ["lucky", "easy"], {"right_answer": 3, "distinct": 3}),
        (SampleRules(least_solved=0.5), ["easy"], {"right_answer": 3, "solved_share": 1, "distinct": 3}),
        (SampleRules(most_solved=0.9), ["lucky"], {"right_answer": 3, "solved_share": 4}),
    ):
        found = filter_trajectories(played, None, rules=rules, threshold=0)
        assert [each.question.id for each in found.kept] == kept
        counts = {name: found.rejected_by.count(name) for name in found.rejected_by if name}
        assert counts == rejected


def test_nothing_left_says_which_rule_was_too_strict() -> None:
    found = filter_trajectories([answering("Velm", "Bo Lind")], None, rules=SampleRules(supported=True), threshold=0)
    with pytest.raises(StepladderError, match=r"the filter 'supported' rejected the last of them .*set supported to"):
        found.expect_some(None)
    found = filter_trajectories([answering("Velm")], None, rules=SampleRules(most_solved=0.5), threshold=0)
    with pytest.raises(StepladderError, match="between least_solved and most_solved: widen them"):
        found.expect_some(None)


def test_shares_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(StepladderError, match=r"expected least_solved <= most_solved, found 0\.5 and 0\.2"):
        RFTConfig.read({"least_solved": 0.5, "most_solved": 0.2})
    with pytest.raises(StepladderError, match="supported"):
        SFTConfig.read({"source": "mined", "supported": True}, "recipe")
