"""Scores of answers and trajectories, against hand-worked numbers and against a second implementation."""

import string

import pytest
from hypothesis import given, strategies as st

from stepladder import Question, Step, Trajectory
from stepladder.core.answer_metrics import (
    Miss,
    QuestionScore,
    covers,
    failed_score,
    normalize,
    score,
    score_answer,
    token_overlap,
)
from stepladder.core.trace import Action, ActionKind, Author, Hop, Passage, Segment, StopReason, Usage

# --- Answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Beatles", "beatles"),
        ("  U.S.A.  ", "usa"),
        ("state-of-the-art", "stateoftheart"),  # punctuation goes first: no article is left to remove
        ("an A to the\tB", "to b"),
        ("«Der» Turm – 3½", "«der» turm – 3½"),  # only ASCII punctuation counts, as in the official script
        ("The The", ""),
    ],
)
def test_normalise(text: str, expected: str) -> None:
    assert normalize(text) == expected


def test_f1_by_hand() -> None:
    # predicted {red, red, fox, ran}, accepted {red, fox, fox}: 2 shared, precision 2/4, recall 2/3, F1 4/7
    assert token_overlap("red, red fox ran", "The red fox fox") == pytest.approx((4 / 7, 2 / 4, 2 / 3))


def test_yes_and_no_have_no_partial_credit() -> None:
    assert token_overlap("yes", "yes it is") == (0, 0, 0)
    assert token_overlap("no one knows", "No.") == (0, 0, 0)
    assert token_overlap("noanswer", "noanswer given") == (0, 0, 0)
    assert token_overlap("Yes!", "yes") == (1, 1, 1)
    assert token_overlap("yes man", "the yes men") == pytest.approx((1 / 2, 1 / 2, 1 / 2))  # part of longer answers


def test_an_answer_of_articles_alone_matches_exactly_but_has_no_f1() -> None:
    assert score_answer("The The", ("the the",)).em == 1
    assert score_answer("The The", ("the the",)).f1 == 0


def test_the_alias_with_the_best_f1_is_scored() -> None:
    result = score_answer("Edson Pelé", ("Edson Arantes do Nascimento", "Pelé"))
    # against the first: 1/2, 1/4, F1 1/3; against the second: 1/2, 1/1, F1 2/3
    assert (result.em, result.f1, result.precision, result.recall) == pytest.approx((0, 2 / 3, 1 / 2, 1))


def test_exact_match_counts_with_any_alias() -> None:
    assert score_answer("pele", ("Edson Arantes do Nascimento", "Pele")).em == 1


def test_cover_em_wants_whole_tokens_in_order() -> None:
    assert covers("He lived in New York, NY", "new york")
    assert not covers("York, the New", "New York")
    assert not covers("artist", "art")
    assert not covers("something", "the")  # nothing is left of the answer
    assert score_answer("I think it is Pelé.", ("Edson", "Pelé")).cover_em == 1


def test_no_prediction_scores_zero() -> None:
    result = score_answer(None, ("the", "x"))
    assert (result.em, result.f1, result.precision, result.recall, result.cover_em) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("prediction", [None, "Velm"])
def test_without_accepted_answers_there_is_no_score(prediction: str | None) -> None:
    with pytest.raises(ValueError, match="no accepted answer"):
        score_answer(prediction, ())


def second_opinion(prediction: str, answer: str) -> tuple[float, float, float]:
    """HotpotQA's F1, worked out by crossing off tokens one by one."""

    def tokens(text: str) -> list[str]:
        kept = "".join(character for character in text.lower() if character not in string.punctuation)
        return [token for token in kept.split() if token not in ("a", "an", "the")]

    ours, theirs = tokens(prediction), tokens(answer)
    for special in (["yes"], ["no"], ["noanswer"]):
        if (ours == special) != (theirs == special):
            return 0, 0, 0
    left, same = list(theirs), 0
    for token in ours:
        if token in left:
            left.remove(token)
            same += 1
    if not same:
        return 0, 0, 0
    return 2 * same / (len(ours) + len(theirs)), same / len(ours), same / len(theirs)


words = st.sampled_from(["yes", "No", "noanswer", "the", "A", "an", "Red", "fox", "fox!", "été", "U.S.", "1889", "-"])
texts = st.lists(words, max_size=6).map(" ".join)


@given(texts, texts)
def test_f1_agrees_with_a_second_implementation(prediction: str, answer: str) -> None:
    assert token_overlap(prediction, answer) == pytest.approx(second_opinion(prediction, answer))


@given(st.one_of(st.none(), texts, st.text()), st.lists(st.one_of(texts, st.text()), min_size=1, max_size=3))
def test_scores_are_shares_and_agree_with_each_other(prediction: str | None, answers: list[str]) -> None:
    result = score_answer(prediction, answers)
    for value in (result.em, result.f1, result.precision, result.recall, result.cover_em):
        assert 0 <= value <= 1
    assert min(result.precision, result.recall) <= result.f1 + 1e-12
    assert result.f1 <= max(result.precision, result.recall) + 1e-12
    if result.em:
        assert result.cover_em == 1
        assert result.f1 == 1 or not normalize(prediction or "")
    assert result.f1 >= max(score_answer(prediction, [each]).f1 for each in answers)


@given(texts, texts)
def test_precision_is_recall_the_other_way_round(one: str, other: str) -> None:
    f1, precision, recall = token_overlap(one, other)
    assert token_overlap(other, one) == (f1, recall, precision)


@given(texts, texts, st.data())
def test_case_articles_and_punctuation_do_not_count(prediction: str, answer: str, data: st.DataObject) -> None:
    plain = score_answer(prediction, (answer,))
    assert score_answer(prediction.swapcase(), (answer.upper(),)) == plain
    assert score_answer(" the ".join(["", *prediction.split(), ""]), (answer,)) == plain
    position = data.draw(st.integers(0, len(prediction)))
    mark = data.draw(st.sampled_from(string.punctuation))
    assert score_answer(prediction[:position] + mark + prediction[position:], (answer,)) == plain


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalize(text)
    assert normalize(once) == once


# --- Trajectories ---------------------------------------------------------------------------------------

QUESTION = Question(
    id="q1",
    text="Where was the architect of the Old Tower born?",
    answers=("Velm", "City of Velm"),
    hops=(
        Hop("Who built the Old Tower?", "Ana Rook", passages=("tower",)),
        Hop("Where was #1 born?", "Velm", passages=("rook", "rook-2")),
        Hop("So the answer is?", "Velm"),
    ),
    gold_passages=(("tower",), ("rook", "rook-2")),
    kind="bridge",
)


def step(kind: ActionKind, content: str, *found: str) -> Step:
    passages = tuple(Passage(id, id, "text") for id in found)
    return Step((), Segment(Author.POLICY, content), Action(kind, content), passages, usage=Usage(10, 2))


def query(content: str, *found: str) -> Step:
    return step(ActionKind.QUERY, content, *found)


def answer(content: str) -> Step:
    return step(ActionKind.ANSWER, content)


def episode(*steps: Step, question: Question = QUESTION, stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    return Trajectory(question, "prorag", steps, stop)


def test_a_good_episode() -> None:
    assert score(episode(query("old tower", "tower", "x"), query("Ana Rook", "rook-2"), answer("the Velm"))) == (
        QuestionScore(
            question_id="q1",
            kind="bridge",
            hops=2,
            prediction="the Velm",
            stop=StopReason.ANSWERED,
            em=1,
            f1=1,
            precision=1,
            recall=1,
            cover_em=1,
            gold_recall=1,
            steps=3,
            searches=2,
            redundant_queries=0,
            over_search=0,
            under_search=0,
            malformed_steps=0,
            tokens_read=30,
            tokens_written=6,
        )
    )


def test_searching_too_much_and_in_circles() -> None:
    result = score(
        episode(
            query("The old tower?", "tower"),
            query("old tower", "tower"),  # the same, normalised
            query("Ana Rook", "y"),
            query("OLD TOWER", "tower"),
            step(ActionKind.MALFORMED, "hm"),
            answer("Orn"),
        )
    )
    assert (result.searches, result.over_search, result.under_search) == (4, 2, 0)
    assert result.redundant_queries == 2
    assert result.malformed_steps == 1
    assert result.gold_recall == 1 / 2
    assert result.miss is Miss.RETRIEVAL


def test_answering_with_too_few_searches() -> None:
    early = score(episode(query("old tower", "tower"), answer("Velm")))
    assert (early.over_search, early.under_search) == (0, 1)
    gave_up = score(episode(query("old tower", "tower"), stop=StopReason.STEP_LIMIT))
    assert gave_up.under_search == 0  # it did not answer


def test_passages_given_beforehand_are_one_search() -> None:
    given = Trajectory(
        QUESTION, "rag", (answer("Velm"),), StopReason.ANSWERED, given=(Passage("rook", "", ""), Passage("z", "", ""))
    )
    assert (score(given).searches, score(given).gold_recall) == (1, 1 / 2)


def test_an_agent_that_never_searches_is_measured_alike() -> None:
    result = score(episode(answer("Velm")))
    assert (result.em, result.searches, result.gold_recall) == (1, 0, 0)
    assert (result.over_search, result.under_search) == (0, 1)
    assert result.miss is None  # right is right, however it was come by


def test_without_annotation_nothing_is_made_up() -> None:
    bare = Question("q2", "Who?", ("Ana",))
    result = score(episode(query("who", "x"), answer("Bob"), question=bare))
    assert (result.hops, result.gold_recall, result.over_search, result.under_search) == (0, None, None, None)
    assert result.miss is Miss.UNKNOWN


def test_a_wrong_answer_with_everything_found_is_a_reading_error() -> None:
    assert score(episode(query("q", "tower", "rook"), answer("Orn"))).miss is Miss.READING


@pytest.mark.parametrize("stop", [StopReason.MALFORMED, StopReason.STEP_LIMIT, StopReason.CONTEXT_LIMIT])
def test_no_answer_is_named_before_missing_passages(stop: StopReason) -> None:
    result = score(episode(query("q"), stop=stop))
    assert (result.prediction, result.f1, result.gold_recall) == (None, 0, 0)
    assert result.miss is Miss.NO_ANSWER


@pytest.mark.parametrize("stop", [StopReason.FAILED, StopReason.CANCELLED])
def test_a_failed_episode_counts_as_zero_and_keeps_its_reason(stop: StopReason) -> None:
    result = failed_score(QUESTION, stop, "the server answered 500")
    assert (result.question_id, result.kind, result.hops, result.stop) == ("q1", "bridge", 2, stop)
    assert (result.em, result.f1, result.gold_recall, result.over_search, result.under_search) == (0, 0, 0, 0, 0)
    assert result.failure == "the server answered 500"
    assert result.miss is Miss.FAILED
    assert failed_score(Question("q2", "Who?", ("Ana",)), stop, "").gold_recall is None


def test_unfinished_and_finished_episodes_are_not_confused() -> None:
    with pytest.raises(ValueError, match="'q1' has not ended"):
        score(Trajectory(QUESTION, "prorag"))
    with pytest.raises(ValueError, match="'answered' has a trajectory"):
        failed_score(QUESTION, StopReason.ANSWERED, "")
