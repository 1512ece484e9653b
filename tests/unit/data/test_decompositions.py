"""Decompositions derived from annotations: their questions read well, and the gold judge accepts their episodes."""

from typing import Any

import pytest

from stepladder.agents import make_agent
from stepladder.core.trace import Hop, Passage, Question
from stepladder.data.decompositions.gold_passages import GoldPassage
from stepladder.data.decompositions.passage_chains import chain_hops
from stepladder.data.decompositions.triples import triple_hops
from stepladder.data.formats.musique import as_question
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.oracle.engine import OracleEngine
from stepladder.oracle.step_judge import judge
from stepladder.retrieval.index.bm25 import BM25Index

RAIN = GoldPassage("Rain (1950 film)", ("1",), "Rain is a 1950 film directed by Ada Orm, with music by Bo Ulm.")
DUST = GoldPassage("Dust", ("2",), "Dust is a 1960 film. It was directed by Ena Voss.")
ADA = GoldPassage("Ada Orm", ("3",), "Ada Orm (born 1900) was a film director. She lived in Velm.")
ENA = GoldPassage("Ena Voss (director)", ("4", "5"), "Ena Voss (born 1910) was a film director. She lived in Kolm.")
VELM = GoldPassage("Velm, Orland", ("6",), "Velm is a town. It has 700 people.")


def asked(hops: tuple[Hop, ...]) -> list[tuple[str, str]]:
    return [(hop.question, hop.answer) for hop in hops]


# --- Triples --------------------------------------------------------------------------------------------


def test_a_chain_of_triples_refers_back() -> None:
    hops = triple_hops(
        "When was the director of Rain (1950 Film) born?",
        ("1900", "in 1900"),
        [("Rain", "director", "Ada Orm"), ("Ada Orm", "date of birth", "1900")],
        [RAIN, ADA],
        is_comparison=False,
    )
    assert hops == (
        Hop("Who directed Rain (1950 film)?", "Ada Orm", ("1",)),
        Hop("When was #1 born?", "1900", ("3",), ("in 1900",)),
    )


def test_a_comparison_over_a_bridge_concludes() -> None:
    text = "Which film has the director who was born first, Rain or Dust?"
    hops = triple_hops(
        text,
        ("Rain",),
        [
            ("Rain", "director", "Ada Orm"),
            ("Dust", "director", "Ena Voss"),
            ("Ada Orm", "date of birth", "1900"),
            ("Ena Voss (director)", "date of birth", "1910"),
        ],
        [RAIN, DUST, ADA, ENA],
        is_comparison=True,
    )
    assert asked(hops) == [
        ("Who directed Rain?", "Ada Orm"),
        ("Who directed Dust?", "Ena Voss"),
        ("When was #1 born?", "1900"),
        ("When was #2 born?", "1910"),
        (f"{text} Rain: #3; Dust: #4.", "Rain"),
    ]
    assert [hop.passages for hop in hops] == [("1",), ("2",), ("3",), ("4", "5"), ()]


def test_several_objects_of_one_relation_are_one_hop() -> None:
    triples = [("Ada Orm", "country of citizenship", "Orland"), ("Ada Orm", "country of citizenship", "Ulmia")]
    hops = triple_hops("Is she of two countries?", ("yes",), triples, [ADA], is_comparison=True)
    assert hops[0] == Hop("Which country is Ada Orm a citizen of?", "Orland and Ulmia", ("3",), ("Orland", "Ulmia"))
    assert len(hops) == 2


def test_what_the_last_triple_does_not_answer_is_concluded() -> None:
    triples = [("Ada Orm", "father", "Bo Orm"), ("Bo Orm", "father", "Cid Orm")]
    golds = [ADA, GoldPassage("Bo Orm", ("7",))]
    assert len(triple_hops("Who is her grandfather?", ("Cid Orm",), triples, golds, is_comparison=False)) == 2
    assert len(triple_hops("Is she of a long line?", ("yes",), triples, golds, is_comparison=False)) == 3


def test_a_title_that_is_another_name_is_found_by_what_is_left() -> None:
    triples = [("Rain", "composer", "Bo Ulm"), ("Bo Ulm", "date of birth", "1901")]
    golds = [RAIN, GoldPassage("B. the Elder", ("8",))]
    hops = triple_hops("When was he born?", ("1901",), triples, golds, is_comparison=False)
    assert [hop.passages for hop in hops] == [("1",), ("8",)]


def test_no_hops_without_the_passages_of_all() -> None:
    triples = [("Rain", "director", "Ada Orm"), ("Ada Orm", "date of birth", "1900")]
    assert triple_hops("When?", ("1900",), triples, [RAIN], is_comparison=False) == ()
    assert triple_hops("When?", ("1900",), triples, [RAIN, GoldPassage("Ada Orm", ())], is_comparison=False) == ()
    bare = triple_hops("When?", ("1900",), triples, [], is_comparison=True)  # nothing is known about passages at all
    assert asked(bare) == [("Who directed Rain?", "Ada Orm"), ("When was #1 born?", "1900")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("#1 >> spouse", "Who was #1 married to?"),
        (
            "Orm >> located in the administrative territorial entity",
            "Which administrative territory is Orm located in?",
        ),
        ("Orm >> length of the tail", "What is the length of the tail of Orm?"),
        ("what is #2 's rank in #3", "What is #2's rank in #3?"),
        ("Name the place.", "Name the place."),
        (">>", ">>?"),
    ],
)
def test_relations_become_questions(given: str, expected: str) -> None:
    assert as_question(given) == expected


# --- Chains ---------------------------------------------------------------------------------------------


def test_a_bridge_goes_by_the_title_that_is_mentioned() -> None:
    hops = chain_hops("When was the director of Rain born?", ("1900",), [ADA, RAIN], "bridge")
    assert hops == (
        Hop("Who is the director of Rain?", "Ada Orm", ("1",)),
        Hop("When was #1 born?", "1900", ("3",)),
    )


def test_a_bridge_without_a_phrase_for_it() -> None:
    text = "Rain was made by somebody of which year of birth?"
    assert asked(chain_hops(text, ("1900",), [RAIN, ADA], "bridge")) == [
        ("Which film director is connected with Rain?", "Ada Orm"),
        (f"About #1: {text}", "1900"),
    ]


def test_a_bridge_that_the_question_only_describes() -> None:
    text = "In what year was the maker of a movie of 1950 born?"
    assert asked(chain_hops(text, ("1900",), [RAIN, ADA], "bridge")) == [
        (f"Which film director is meant in the question: {text}", "Ada Orm"),
        (f"About #1: {text}", "1900"),
    ]


def test_a_clause_whose_subject_is_the_name_is_not_cut_in_two() -> None:
    text = "Where is the magazine based that Ada Orm writes for?"
    magazine = GoldPassage("Dust Weekly", ("2",), "Dust Weekly is a magazine. It is based in Kolm.")
    writer = GoldPassage("Ada Orm", ("3",), "Ada Orm is a poet. She writes for Dust Weekly.")
    assert asked(chain_hops(text, ("Kolm",), [writer, magazine], "bridge")) == [
        ("Which magazine is connected with Ada Orm?", "Dust Weekly"),
        (f"About #1: {text}", "Kolm"),
    ]


def test_an_answer_that_is_another_name_of_the_bridge_is_an_alias() -> None:
    ada = GoldPassage("Ada Orm", ("3",), "Adelaide Ormond, known as Ada Orm, was a film director.")
    hops = chain_hops("Which person born as Ormond directed Rain?", ("Adelaide Ormond",), [RAIN, ada], "bridge")
    assert [(hop.answer, hop.aliases) for hop in hops] == [("Ada Orm", ("Adelaide Ormond",)), ("Adelaide Ormond", ())]


def test_a_place_is_mentioned_without_its_country() -> None:
    text = "How many people has the town in which Ada Orm lived?"
    hops = chain_hops(text, ("700",), [ADA, VELM], "bridge")
    assert [(hop.answer, hop.passages) for hop in hops] == [("Velm, Orland", ("3",)), ("700", ("6",))]


def test_a_comparison_asks_for_both_and_concludes() -> None:
    text = "Which film came out first, Rain or Dust?"
    marked = GoldPassage(DUST.title, DUST.ids, DUST.text, "It was directed by Ena Voss.")
    assert chain_hops(text, ("Rain",), [RAIN, marked], "comparison") == (
        Hop("What is the film Rain?", "Rain is a 1950 film directed by Ada Orm, with music by Bo Ulm", ("1",)),
        Hop("What is the film Dust?", "It was directed by Ena Voss", ("2",)),
        Hop(f"{text} #1. #2.", "Rain"),
    )


def test_long_sentences_are_cut() -> None:
    long = GoldPassage("Rain", ("1",), f"Rain is a film {'and more ' * 40}.")
    told = chain_hops("Rain or Dust?", ("Rain",), [long, DUST], "comparison")[0].answer
    assert len(told.split()) == 31
    assert told.endswith(" ...")


@pytest.mark.parametrize(
    ("golds", "answer"),
    [
        ([RAIN, ENA], "1910"),  # neither mentions the other
        ([RAIN, ADA], "Kolm"),  # the answer is nowhere
        ([RAIN], "1950"),
        ([RAIN, GoldPassage("Ada Orm", ("3",))], "1900"),  # a text is missing
        ([RAIN, GoldPassage("Ada Orm", (), ADA.text)], "1900"),  # an id is missing
    ],
    ids=["unlinked", "no answer", "alone", "no text", "no id"],
)
def test_chains_that_cannot_be_told(golds: list[GoldPassage], answer: str) -> None:
    assert chain_hops("When was the director of Rain born?", (answer,), golds, "bridge") == ()


def test_a_question_of_one_hop() -> None:
    painter = GoldPassage("Painter", ("9",), "A painter paints.")
    hops = chain_hops("What is Ada Orm's occupation?", ("painter",), [ADA, painter], "occupation")
    assert hops == (Hop("What is Ada Orm's occupation?", "painter", ("3",)),)


# --- Play -----------------------------------------------------------------------------------------------


def questions() -> list[Question]:
    made: list[tuple[str, str, Any]] = [
        ("bridge", "1900", chain_hops("When was the director of Rain born?", ("1900",), [RAIN, ADA], "bridge")),
        ("comparison", "Rain", chain_hops("Which film is older, Rain or Dust?", ("Rain",), [RAIN, DUST], "comparison")),
        (
            "triples",
            "1910",
            triple_hops(
                "When was the director of Dust born?",
                ("1910",),
                [("Dust", "director", "Ena Voss"), ("Ena Voss", "date of birth", "1910")],
                [DUST, ENA],
                is_comparison=False,
            ),
        ),
    ]
    return [
        Question(kind, f"{kind}?", (answer,), hops, tuple(hop.passages for hop in hops if hop.passages), kind)
        for kind, answer, hops in made
    ]


@pytest.mark.parametrize("name", ["prorag-brief", "reasonrag-brief", "search-r1-brief"])
def test_gold_play_answers_and_is_judged_good(name: str) -> None:
    agent = make_agent(name)
    passages = [Passage(each.ids[0], each.title, each.text) for each in (RAIN, DUST, ADA, ENA, VELM)]
    driver = Driver(OracleEngine(agent), BM25Index.from_passages(passages))
    asked = questions()
    settings = EpisodeConfig(max_steps=12, k=1)
    outcomes = driver.run([lambda each=each: episode(agent, each, settings, 0) for each in asked])  # type: ignore[misc]
    for question, outcome in zip(asked, outcomes):
        assert outcome.value is not None
        assert outcome.value.answer == question.answers[0]
        verdicts = judge(outcome.value)
        assert all(verdict is not None and verdict.good for verdict in verdicts), (question.id, verdicts)
