"""Questions with nothing but answers: ways through the corpus, and questions set aside."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stepladder.agents import make_agent
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage, Question
from stepladder.data.data_config import DataConfig
from stepladder.data.dataset import DataSet
from stepladder.data.sampling import held_out, with_fewer, with_warmup
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.train.sft.demonstrations import gold_demonstrations
from stepladder.train.sft.weak_decomposition import decompose_questions, weak_decomposition

PASSAGES = (
    Passage("1", "The Glass Orchard", "The Glass Orchard is a novel by the writer Ilse Varn, printed in 1931."),
    Passage("2", "Ilse Varn", "Ilse Varn was a writer. She was born in the harbour town of Pellam."),
    Passage("3", "Mount Teal", "Mount Teal is a mountain in Orrin. Its summit is 2,310 metres above the sea."),
    Passage("4", "Orchards", "An orchard is a piece of land on which fruit trees grow."),
)
#: Both searched and read one by one, so that a passage further down does not help.
INDEX = BM25Index.from_passages(PASSAGES)


def found(text: str, *answers: str, k: int = 1) -> Question:
    (outcome,) = Driver(None, INDEX).run([partial(weak_decomposition, Question("q", text, answers), k)])
    assert outcome.value is not None
    return outcome.value


def test_a_passage_with_the_answer_that_the_question_finds_is_one_hop() -> None:
    question = found("How high is Mount Teal?", "2,310 metres")
    assert [(hop.question, hop.answer, hop.passages) for hop in question.hops] == [
        ("How high is Mount Teal?", "2,310 metres", ("3",))
    ]
    assert question.gold_passages == (("3",),)


def test_two_passages_that_lead_to_each_other_are_two_hops() -> None:
    question = found("Where was the writer of The Glass Orchard born?", "Pellam")
    assert [hop.passages for hop in question.hops] == [("1",), ("2",)]
    assert [hop.answer for hop in question.hops] == ["Ilse Varn", "Pellam"]
    assert "#1" in question.hops[1].question


@pytest.mark.parametrize("answer", ["yes", "Quillon", "fruit trees"])
def test_where_no_way_is_seen_the_question_stays_as_it_is(answer: str) -> None:
    assert found("Where was the writer of The Glass Orchard born?", answer).hops == ()


def test_a_decomposition_that_is_known_is_kept() -> None:
    known = found("How high is Mount Teal?", "2,310 metres")
    (outcome,) = Driver(None, INDEX).run([partial(weak_decomposition, replace(known, answers=("Pellam",)), 1)])
    assert outcome.value is not None
    assert outcome.value.hops == known.hops


def test_mined_questions_are_played_like_gold_ones() -> None:
    questions = [
        Question("a", "Where was the writer of The Glass Orchard born?", ("Pellam",)),
        Question("b", "How high is Mount Teal?", ("2,310 metres",)),
        Question("c", "Who lives in Quillon?", ("Nobody",)),
    ]
    agent, settings = make_agent("prorag-brief"), EpisodeConfig(max_steps=8, k=1)
    assert gold_demonstrations(agent, questions, INDEX, settings, seed=0).kept == ()
    made = gold_demonstrations(agent, decompose_questions(questions, INDEX, 1), INDEX, settings, seed=0)
    assert {each.question.id: len(each.queries) for each in made.kept} == {"a": 2, "b": 1}
    assert made.dropped == {"no_decomposition": 1}


def test_searches_that_fail_are_told() -> None:
    class Broken(BM25Index):
        def __init__(self) -> None: ...

        def search(self, *_: object) -> list[tuple[Passage, ...]]:
            raise RuntimeError("no answer from the server")

    with pytest.raises(StepladderError, match=r"1 of 1 searches failed; the first: .*no answer from the server"):
        decompose_questions([Question("q", "How high is Mount Teal?", ("2,310 metres",))], Broken(), 1)


# --- questions set aside


def data(**splits: int) -> DataSet:
    questions = {
        split: tuple(Question(f"{split} {number}", "?", ("a",)) for number in range(count))
        for split, count in splits.items()
    }
    return DataSet("the data", questions, PASSAGES)


def sizes(some: DataSet) -> dict[str, int]:
    return {split: len(some.split(split)) for split in some.questions}


def test_dev_becomes_the_test_and_a_part_of_train_the_dev() -> None:
    held = held_out(data(train=20, dev=7), 5)
    assert sizes(held) == {"train": 15, "dev": 5, "test": 7}
    assert {question.id.split()[0] for question in held.split("test")} == {"dev"}
    ids = [question.id for split in ("train", "dev") for question in held.split(split)]
    assert len(set(ids)) == 20
    assert held.split("dev") == held_out(data(train=20, dev=7), 5).split("dev")
    assert held.passages is PASSAGES


def test_a_test_that_is_there_stays_the_test() -> None:
    held = held_out(data(train=20, dev=7, test=3), 5)
    assert {question.id.split()[0] for question in held.split("test")} == {"test"}


@pytest.mark.parametrize("split", ["train", "all"])
def test_questions_without_any_splits_get_them(split: str) -> None:
    held = held_out(data(**{split: 20}), 5)
    assert sizes(held) == {"train": 10, "dev": 5, "test": 5}
    assert len({question.id for each in held.questions for question in held.split(each)}) == 20


def test_too_many_cannot_be_held_out() -> None:
    with pytest.raises(StepladderError, match=r"20 train questions, and data\.holdout=20 sets aside 20 as dev: none"):
        held_out(data(train=20, dev=1), 20).split("dev")
    both = r"20 train questions, and data\.holdout=10 sets aside 10 as dev and 10 as test: .* --set data.* at most 9"
    with pytest.raises(StepladderError, match=both):
        held_out(data(train=20), 10).split("dev")
    with pytest.raises(StepladderError, match="no train questions"):
        held_out(data(test=20), 5)


def test_a_part_of_train_can_be_for_the_warm_up_alone() -> None:
    parted = with_warmup(held_out(data(train=20, dev=7), 5), 6)
    assert sizes(parted) == {"train": 9, "dev": 5, "test": 7, "warmup": 6}
    ids = [question.id for split in ("train", "warmup", "dev") for question in parted.split(split)]
    assert len(set(ids)) == 20
    assert parted.split("warmup") == with_warmup(held_out(data(train=20, dev=7), 5), 6).split("warmup")
    assert parted.passages is PASSAGES
    assert sizes(with_warmup(data(all=20), 6)) == {"train": 14, "warmup": 6}


def test_methods_are_compared_on_the_same_fewer_questions() -> None:
    parted = with_warmup(held_out(data(train=20, dev=7), 5), 6)
    few, more = (with_fewer(parted, count) for count in (3, 5))
    assert sizes(few) == {**sizes(parted), "train": 3}
    assert set(few.split("train")) < set(more.split("train")) < set(parted.split("train"))
    assert sizes(with_fewer(data(all=20), 4)) == {"train": 4}
    with pytest.raises(StepladderError, match=r"has 9 train questions that are neither held out nor for sft; .*=10 is"):
        with_fewer(parted, 10).split("train")
    with pytest.raises(StepladderError, match=r"not held out, and data\.warmup=20 sets aside 20 for sft.* at most 19"):
        with_warmup(data(train=20), 20).split("warmup")


def test_a_recipe_can_hold_questions_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("question,answer\n" + "".join(f"How high is hill {n}?,{n} metres\n" for n in range(30)))
    opened = DataConfig(name=str(file), holdout=4).open()
    assert sizes(opened) == {"train": 22, "dev": 4, "test": 4}
    opened = DataConfig(name=str(file), holdout=4, warmup=10).open()
    assert sizes(opened) == {"train": 12, "dev": 4, "test": 4, "warmup": 10}
