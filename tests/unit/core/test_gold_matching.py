"""A gold passage is recognized in any index: by id, by title, by text; and nothing else is."""

from dataclasses import replace

import pytest

from stepladder.core.answer_metrics import gold_recall
from stepladder.core.io.records import dumps, loads
from stepladder.core.questions.excerpts import gold_text
from stepladder.core.questions.gold_matching import gold_found, hop_found, is_gold
from stepladder.core.trace import GoldText, Hop, Passage, Question

ORLA = (
    "Orla is a town on the river Velm, in the north of the country. It was founded in 1204 by monks. "
    "The old bridge of the town, Span One, was designed by the engineer Ena Voss and was opened on 4 March 1871. "
    "Until 1950 it carried a railway. Today about nine thousand people live in the town, most of them fishermen."
)
GOLD = gold_text("p7", "Orla", ORLA, ["Ena Voss"], about="Who designed the bridge of Orla?")
ANSWERS = ("Ena Voss",)


def found(text: str, title: str = "Orla", key: str = "99") -> Passage:
    return Passage(key, title, text)


def part(start: int, end: int) -> str:
    return " ".join(ORLA.split()[start:end])


def test_an_excerpt_is_a_short_window_around_the_answer() -> None:
    assert GOLD.excerpts == (
        "old bridge of the town, Span One, was designed by the engineer Ena Voss and was opened on 4 March 1871. Until "
        "1950 it carried a",
    )


@pytest.mark.parametrize(
    ("passage", "gold"),
    [
        (found(ORLA, key="p7"), True),
        (found(ORLA), True),
        (found(ORLA, "ORLA"), True),
        (found(ORLA, "Orla (town)"), True),
        (found(ORLA, "wiki: Orla > History"), True),
        (found(ORLA, ""), True),
        (found(ORLA, "Towns on the Velm"), True),  # a nearly complete excerpt
        (found(f"Some other text before it. {ORLA} And more."), True),
        (found(part(0, 40)), True),
        (found(part(34, 60)), True),
        (found(part(0, 30)), False),  # the half without the answer
        (found(part(45, 80)), False),
        (found("Orla is a town in the south. Ena Voss was its mayor for many years, until she moved to Velm."), False),
        (found("Ena Voss was an engineer.", "Ena Voss"), False),
        (found("Span One is a bridge.", key="p7"), False),  # the same id and title, another text
        (found("Dust is a film of 1960 by Ada Orm.", "Dust", key="p7"), False),  # the same id in a foreign index
    ],
)
def test_title_and_text_decide(passage: Passage, gold: bool) -> None:
    assert is_gold(passage, GOLD, ANSWERS) is gold


def test_two_things_with_one_name_are_told_apart_by_their_suffixes() -> None:
    film = GoldText("f", "Rain (1932 film)")
    assert is_gold(found("A film by Ada Orm.", "Rain"), film, ("Ada Orm",))
    assert not is_gold(found("A song by Ada Orm.", "Rain (song)"), film, ("Ada Orm",))
    assert not is_gold(found("It rains.", "Rain"), film, ("Ada Orm",))


def test_with_only_a_title_a_passage_must_contain_the_answer() -> None:
    titled = GoldText("p7", "Orléans Bridge")
    assert is_gold(found("It was designed by Ena Voss.", "the Orleans bridge"), titled, ANSWERS)
    assert not is_gold(found("It carries a road.", "Orleans Bridge"), titled, ANSWERS)
    assert is_gold(found("It carries a road.", "Orleans Bridge"), titled, ("yes",))
    assert is_gold(found("It carries a road.", "Orléans Bridge", "p7"), titled, ANSWERS)
    assert not is_gold(found("By Ena Voss.", "Velm Bridge", "p7"), titled, ANSWERS)
    assert is_gold(found("It carries a road.", "", "p7"), titled, ANSWERS)


def test_short_sentences_do_not_identify_a_passage_with_another_title() -> None:
    short = gold_text("r", "Rain", "It was directed by Ada Orm.", ["Ada Orm"])
    assert is_gold(found("It was directed by Ada Orm.", "Rain"), short, ("Ada Orm",))
    assert not is_gold(found("It was directed by Ada Orm.", "Dust"), short, ("Ada Orm",))


VILLAGE = (
    "{0} is a village in the administrative district of Gmina Orm, within Velm County, in the east of the country. "
    "It lies approximately {1} km north of Orm and has {1}00 inhabitants, most of them fishermen."
)


def test_two_villages_of_one_district_are_told_apart() -> None:
    text, answers = VILLAGE.format("Dunmore", 5), ("Velm County",)
    gold = gold_text("v", "Dunmore", text, answers)
    other = VILLAGE.format("Ashby", 5)
    for title, own in (("", ""), ("Dunmore and Ashby", "Ashby"), ("page 3", "page 3"), ("Villages", "Villages")):
        assert is_gold(found(text, title), gold, answers)
        assert not is_gold(found(other, own), gold, answers)
    assert is_gold(found(text.split(" ", 1)[1], ""), gold, answers)  # cut behind its name
    assert is_gold(found(text.rsplit(" ", 14)[0], "page 3"), gold, answers)
    late = replace(gold, excerpts=(" ".join(text.split()[10:]),))  # without its name
    assert is_gold(found(text, "Dunmoor"), late, answers)
    for title in ("", "Ashby"):
        assert not is_gold(found(VILLAGE.format("Ashby", 7), title), late, answers)
    assert not is_gold(found(VILLAGE.format("Ashby", 5).replace("most", "some"), "Ashby"), late, answers)


def test_a_date_in_another_order_is_the_same_answer() -> None:
    dated = gold_text("p7", "Orla", ORLA, ["March 4, 1871"])
    assert "4 March 1871" in dated.excerpts[0]
    assert is_gold(found(part(30, 60)), dated, ("March 4, 1871",))
    assert not is_gold(found(part(0, 38)), dated, ("March 4, 1871",))


def test_annotated_sentences_say_which_place_is_meant() -> None:
    text = f"{part(0, 20)} Velm is a name. {part(20, 60)} The river Velm is deep and cold and has many fish."
    meant = gold_text("p7", "Orla", text, ["Velm"], supporting="The river Velm is deep and cold and has many fish.")
    assert [excerpt.count("deep and cold") for excerpt in meant.excerpts] == [1]


def test_sentences_as_answers_are_found_by_their_words() -> None:
    summary = "The old bridge of the town, Span One, was designed by the engineer Ena Voss and was opened on ..."
    (excerpt,) = gold_text("p7", "Orla", ORLA, [summary]).excerpts
    assert "designed by the engineer Ena Voss" in excerpt


def test_texts_without_spaces_are_compared_by_characters() -> None:
    text = "奥尔拉是维尔姆河畔的一座小镇，镇上的老桥由工程师埃娜设计，于一八七一年建成通车，今天仍在使用。"
    gold = gold_text("p", "奥尔拉", text, ["埃娜"])
    assert is_gold(found(text[15:], "奥尔拉"), gold, ("埃娜",))
    assert not is_gold(found("维尔姆是一条河。", "奥尔拉"), gold, ("埃娜",))
    others = "".join(chr(0x4E00 + 7 * number % 5000) for number in range(2000))
    (excerpt,) = gold_text("p", "奥尔拉", text + others, ["埃娜"]).excerpts
    assert "老桥由工程师埃娜设计" in excerpt
    assert len(excerpt) < 40


QUESTION = Question(
    "q",
    "Who designed the bridge of the town where Ada Orm was born?",
    ("Ena Voss",),
    (
        Hop("Where was Ada Orm born?", "Orla", ("p1",)),
        Hop("Who designed the bridge of #1?", "Ena Voss", ("p7", "p8"), gold_texts=(GOLD,)),
    ),
    (("p1",), ("p7", "p8")),
)


def test_every_gold_passage_is_looked_for_by_what_is_known_of_it() -> None:
    other = found("Ada Orm was born in Orla.", "Ada Orm", "p1")
    assert gold_found(QUESTION, [other]) == (True, False)  # of the first only the id is known
    assert gold_found(QUESTION, [other, found(ORLA)]) == (True, True)
    assert gold_recall(QUESTION, [found(ORLA)]) == 1 / 2
    assert gold_found(QUESTION, [found("Another text.", "Another", "p8")]) == (False, True)
    assert hop_found(QUESTION.hops[1], [found(part(22, 60))])
    assert not hop_found(QUESTION.hops[1], [])
    bare = replace(QUESTION, hops=(), gold_texts=(GOLD,))
    assert gold_found(bare, [found(ORLA)]) == (False, True)


def test_records_keep_what_identifies_a_gold_passage_and_store_nothing_where_there_is_nothing() -> None:
    assert loads(dumps(QUESTION), Question) == QUESTION
    bare = replace(QUESTION, hops=tuple(replace(hop, gold_texts=()) for hop in QUESTION.hops))
    assert "gold_texts" not in dumps(bare)
    assert '"excerpts"' not in dumps(replace(bare, gold_texts=(GoldText("p7", "Orla"),)))
    assert len(dumps(QUESTION)) - len(dumps(bare)) < 300
