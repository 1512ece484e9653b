"""Answers that are more than a short text: choices, yes and no, numbers with units, lists."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.answer_metrics import AnswerScore, score_question
from stepladder.core.io.records import dumps, loads
from stepladder.core.questions.answer_kinds import chosen_option
from stepladder.core.trace import AnswerKind, Question
from stepladder.data.formats.base import read_questions
from stepladder.data.formats.rows import QuestionFileError
from tests.support.question_files import write

CITIES = ("Paris", "Rome", "New York", "York")
MEDQA = {
    "question": "Capital of Italy?",
    "options": {"A": "Paris", "B": "Rome", "C": "Oslo", "D": "Bern"},
    "answer": "Rome",
    "answer_idx": "B",
    "meta_info": "step1",
}
RIGHT, WRONG = AnswerScore(1, 1, 1, 1, 1), AnswerScore()


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        *[(text, "B") for text in ("B", "b", "(B)", "[B]", "B.", "B)", "B. Rome", "(b) rome", "B: Rome", "**B**")],
        *[
            (text, "B")
            for text in ("option B", "Option (B)", "The correct answer is B", "Answer: B. Rome", "Rome", "rome!")
        ],
        *[
            (text, "B")
            for text in ("B. Paris", "It must be Rome.", "I think the answer is B because it is so", "B, Rome")
        ],
        *[("A", "A"), ("the Paris", "A"), ("New York", "C"), ("It is in New York", "C"), ("York", "D")],
        *[(text, None) for text in ("", "A city in Italy", "Paris or Rome", "Berlin", "E", "E. Rome and Paris", "...")],
        *[(text, None) for text in ("either option A or option B", "I do not know", "Romeo")],
    ],
)
def test_an_option_is_chosen_by_its_letter_or_its_text(text: str, letter: str | None) -> None:
    index = chosen_option(text, CITIES)
    assert (None if index is None else "ABCD"[index]) == letter


@pytest.mark.parametrize(
    "text", ["answer " * 60, "answer  : " * 60, "the best option is" * 60, "answer" + " " * 20_000]
)
def test_repetitive_texts_take_no_time(text: str) -> None:
    assert chosen_option(f"{text}zz", CITIES) is None
    assert chosen_option(f"So the {text}zz", CITIES) is None


def test_texts_that_begin_like_a_letter_are_texts() -> None:
    options = ("S. aureus", "E. coli", "B-cells", "Vitamin A", "C. difficile")
    for text, letter in {"E. coli": "B", "E. coli infection": "B", "B-cells": "C", "Vitamin A": "D"}.items():
        assert "ABCDE"[chosen_option(text, options) or 0] == letter
    assert [chosen_option(text, options) for text in ("E", "E. C. difficile", "E) S. aureus", "A, C")] == [
        4,
        4,
        4,
        None,
    ]


def test_a_choice_is_right_or_wrong_in_every_metric() -> None:
    question = Question("q", "Capital?", ("Rome",), options=CITIES)
    assert [score_question(each, question) for each in ("B", "rome", "A. Paris", "Rome or Paris", None)] == [
        *(RIGHT, RIGHT, WRONG, WRONG, WRONG)
    ]
    assert score_question(r"Paris is wrong, so \boxed{\text{B}}", question) == RIGHT
    vitamins = Question("q", "Which?", ("A",), options=("B", "A"))  # letters count before texts
    assert [score_question(each, vitamins).em for each in ("A", "B")] == [0, 1]


def test_yes_and_no_are_read_in_sentences() -> None:
    question = Question("q", "Both?", ("no",), answer_kind=AnswerKind.YES_NO)
    right = ("No", "no, only one is", "The answer is no.", "false")
    assert [score_question(each, question) for each in right] == [RIGHT] * 4
    assert [score_question(each, question) for each in ("Yes", "neither", "yes and no", "")] == [WRONG] * 4


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (
            "3.5 km",
            ("3.5 km", "3,500 m", "3.5", "it is 3.5 kilometers long", "2.17 miles", "in 1889: 3.5 km"),
            ("35 km", "3.5 kg"),
        ),
        (
            "1,200",
            (
                "1200",
                "1,200 people",
                "1\u202f200",
                r"It is \boxed{1200}",
                "twelve hundred",
                "1.2 thousand",
                "one thousand two hundred",
            ),
            ("1,201", "12", ""),
        ),
        ("12", ("twelve", "12.0", "Twelve apostles"), ("twenty", "twelfth", "-12")),
        ("1914", ("1914", "1914-1918"), ("1915", "19140")),
        ("8 billion", ("8,000,000,000", "eight billion people"), ("8 million",)),
        ("50%", ("50 percent", "50", "fifty percent"), ("0.5",)),
        ("-40", ("-40", "\u221240 degrees"), ("40",)),
        ("1e6", ("1,000,000", "1.0E+6", "a total of one million"), ("1", "6")),
        ("1", ("one, two at most", "1 egg"), ("1e6", "3")),
        ("121", ("one hundred and twenty-one",), ("one hundred", "twenty-one")),
    ],
)
def test_numbers_are_compared_by_amount(answer: str, right: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    question = Question("q", "How much?", (answer,), answer_kind=AnswerKind.NUMBER)
    assert {each: score_question(each, question) for each in right} == dict.fromkeys(right, RIGHT)
    assert {each: score_question(each, question) for each in wrong} == dict.fromkeys(wrong, WRONG)


def test_lists_are_compared_as_sets_of_items() -> None:
    items = (("Rome", "Roma"), ("Trinidad and Tobago",), ("Washington, D.C.",))
    question = Question("q", "Which?", ("Rome; Trinidad and Tobago; Washington, D.C.",), items=items)
    assert question.answer_kind is AnswerKind.LIST
    for text in ("Washington DC; roma; Trinidad and Tobago", "Trinidad and Tobago, Washington, D.C. and Rome"):
        assert score_question(text, question) == RIGHT
    assert score_question("- Rome\n- Oslo\n- rome", question) == AnswerScore(0, 0.4, 0.5, 1 / 3, 0)
    more = score_question("Rome; Oslo; Washington D.C.; Trinidad and Tobago", question)
    assert (more.em, more.cover_em, more.recall, more.precision) == (0, 1, 1, 0.75)
    assert [score_question(each, question) for each in ("Oslo", "", None)] == [WRONG] * 3


def test_new_fields_are_stored_only_where_they_are_used() -> None:
    plain = Question("q", "Where?", ("Rome",))
    assert not {"options", "items", "answer_kind"} & set(json.loads(dumps(plain)))
    for question in (
        replace(plain, options=CITIES),
        replace(plain, items=(("Rome",),)),
        replace(plain, answer_kind=AnswerKind.NUMBER),
    ):
        assert loads(dumps(question), Question) == question
    with pytest.raises(ValueError, match="not among its options"):
        replace(plain, options=("Paris", "Oslo"))
    with pytest.raises(ValueError, match="but no options"):
        replace(plain, answer_kind=AnswerKind.CHOICE)


def test_medqa_files_are_read_in_both_layouts(tmp_path: Path) -> None:
    hub = {**MEDQA, "metamap_phrases": ["italy"]}
    listed = {"id": "mine", "question": "Capital?", "options": ["Paris", "Rome"], "answer": "B"}
    unanswered = {"question": "Capital?", "options": {"A": "Paris", "B": "Rome"}}
    first, second, third, fourth = read_questions(
        write(tmp_path / "test.jsonl", MEDQA, hub, listed, unanswered)
    ).questions
    assert first == Question(
        "1", "Capital of Italy?", ("Rome",), kind="step1", options=("Paris", "Rome", "Oslo", "Bern")
    )
    assert replace(second, id="1") == first
    assert (third.id, third.answers, third.shown_answers) == ("mine", ("Rome",), ("B. Rome",))
    assert fourth.answers == ()


def test_options_whose_texts_look_like_names_or_indexes(tmp_path: Path) -> None:
    groups = {"question": "Blood group?", "options": {"A": "AB", "B": "A", "C": "0"}, "answer": "A", "answer_idx": "B"}
    numbers = {"question": "How many?", "options": {"A": 1, "B": 2, "C": 3}, "answer": 2, "answer_idx": "B"}
    alone = {"question": "How many?", "options": [1, 2, 3], "answer": 2}
    letter = {"question": "Blood group?", "options": ["AB", "A"], "answer": "A"}
    named = {"question": "Which?", "options": {str(n): f"text {n}" for n in range(1, 12)}, "answer_idx": 2}
    found = read_questions(write(tmp_path / "test.jsonl", groups, numbers, alone, letter, named)).questions
    assert [each.answers for each in found] == [("A",), ("2",), ("2",), ("AB",), ("text 2",)]
    assert found[-1].options[:2] == ("text 1", "text 2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer": "Athens"}, '"Athens" is not among the options: A. Paris, B. Rome, C. Oslo, D. Bern'),
        ({"answer_idx": "E"}, '"E" is not among the options'),
        ({"answer_idx": "A"}, "'answer_idx' is \"A\", and 'answer' is another option"),
        ({"options": {"A": "Rome"}}, "'options' should be an object or a list with 2 to 26 texts"),
        ({"options": {"A": "Rome", "B": " "}}, "'options' should be"),
        ({"options": "Rome"}, "'options' should be"),
    ],
)
def test_a_question_whose_options_lack_the_answer_is_an_error_that_names_the_row(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "test.jsonl", MEDQA, {**MEDQA, **changes})
    with pytest.raises(QuestionFileError) as error:
        read_questions(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert message in str(error.value)


def test_flashrag_files_have_choices_by_index_and_other_kinds_in_their_metadata(tmp_path: Path) -> None:
    rows = [
        {"id": "c", "question": "Capital?", "choices": ["Paris", "Rome"], "golden_answers": [1]},
        {"id": "n", "question": "How long?", "golden_answers": ["3 km"], "metadata": {"answer_kind": "number"}},
        {"id": "l", "question": "Which?", "golden_answers": ["Rome", ["Oslo", "Kristiania"]]}
        | {"metadata": {"answer_kind": "list"}},
    ]
    choice, number, items = read_questions(write(tmp_path / "test.jsonl", *rows)).questions
    assert (choice.options, choice.answers) == (("Paris", "Rome"), ("Rome",))
    assert number.answer_kind is AnswerKind.NUMBER
    assert (items.answers, items.items) == (("Rome; Oslo",), (("Rome",), ("Oslo", "Kristiania")))
    with pytest.raises(QuestionFileError, match="5 is not among the options"):
        read_questions(write(tmp_path / "test.jsonl", {**rows[0], "golden_answers": [5]}))
    with pytest.raises(QuestionFileError, match=r"test.jsonl:2: the answer nothing is not among the options"):
        read_questions(write(tmp_path / "test.jsonl", rows[1], {**rows[0], "golden_answers": None}))
    with pytest.raises(QuestionFileError, match=r"test.jsonl:2: the answer nothing is not among the options"):
        read_questions(write(tmp_path / "test.jsonl", rows[1], {"id": "c", "question": "?", "choices": ["a", "b"]}))


def test_tables_have_kinds_in_a_column(tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text("question,answer,answer_kind\nBoth?,yes,yes_no\nWhich?,Rome; Oslo,list\nWho?,Ada,\n")
    questions = read_questions(path).questions
    assert [each.answer_kind.value for each in questions] == ["yes_no", "list", "text"]
    assert questions[1].items == (("Rome",), ("Oslo",))
    for row, message in (
        ("Both?,maybe,yes_no", "is neither yes nor no"),
        ("Long?,very,number", "has no number"),
        ("Who?,Ada,name", "should be text, yes_no, number or list"),
    ):
        path.write_text(f"question,answer,answer_kind\n{row}\n")
        with pytest.raises(QuestionFileError, match=message):
            read_questions(path)
