"""What the fictional encyclopedia promises: counts, lengths, gold annotation that holds, splits that do not touch."""

import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from hashlib import sha256
from pathlib import Path

import pytest

from stepladder.data.atlas import SIZES, Atlas, generate_atlas
from stepladder.data.atlas.catalogue import RELATIONS, RELATIONS_OF, TYPES, wordings
from stepladder.data.atlas.facts import Object
from stepladder.data.atlas.names import Namer
from stepladder.data.atlas.questions import MIX
from stepladder.data.atlas.values import MONTHS, Value
from stepladder.errors import UnknownName
from stepladder.trace import Hop, Passage, Question, dumps

CONCLUDED = ("comparison", "yes_no")


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return generate_atlas("small", seed=0)


@pytest.fixture(scope="module")
def questions(atlas: Atlas) -> list[Question]:
    return [question for split in atlas.questions.values() for question in split]


@pytest.fixture(scope="module")
def passages(atlas: Atlas) -> dict[str, Passage]:
    return {passage.id: passage for passage in atlas.passages}


def fingerprint(atlas: Atlas) -> str:
    lines = [dumps(passage) for passage in atlas.passages]
    lines += [dumps(question) for split in atlas.questions.values() for question in split]
    lines.append(repr(atlas.chains))
    return sha256("\n".join(lines).encode()).hexdigest()


# --- size, determinism


def test_the_same_seed_gives_the_same_bytes_whatever_the_hash_seed(atlas: Atlas) -> None:
    script = "from test_atlas import fingerprint, generate_atlas; print(fingerprint(generate_atlas('small', seed=0)))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fingerprint(atlas)


def test_small_has_2000_passages_and_2000_questions_in_the_stated_mix(atlas: Atlas) -> None:
    assert len(atlas.passages) == 2000
    for split, count in SIZES["small"].questions.items():
        assert len(atlas.questions[split]) == count
        seen = Counter((question.searches_needed, question.kind) for question in atlas.questions[split])
        assert {key: pytest.approx(percent * count / 100, abs=1) for key, percent in MIX.items()} == seen
    assert sum(MIX.values()) == 100


def test_sizes_grow_to_100_000_passages() -> None:
    assert list(SIZES) == ["small", "medium", "large"]
    assert SIZES["large"].passages == 100_000


def test_an_unknown_size_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'small'"):
        generate_atlas("smal")


def test_ids_are_unique(atlas: Atlas, questions: list[Question], passages: dict[str, Passage]) -> None:
    assert len(passages) == len(atlas.passages)
    assert len({question.id for question in questions}) == len(questions)
    assert len({passage.title for passage in atlas.passages}) == len(atlas.passages)


# --- names


def test_another_seed_has_other_names(atlas: Atlas) -> None:
    other = generate_atlas("small", seed=1)
    shared = atlas.name_words & other.name_words
    assert len(shared) < 0.05 * len(atlas.name_words)
    names = {entity.name for entity in atlas.world.entities}
    assert not names & {entity.name for entity in other.world.entities if " " in entity.name}


def test_words_to_avoid_are_avoided(atlas: Atlas) -> None:
    other = generate_atlas("small", seed=1, avoid=atlas.name_words)
    assert not atlas.name_words & other.name_words


def test_a_namer_never_repeats_itself() -> None:
    namer = Namer(random.Random(3))
    words = [namer.word(number % 8) for number in range(5000)]
    assert len(set(words)) == len(words)
    assert all(word.isalpha() and word.istitle() and 4 <= len(word) <= 10 for word in words)


# --- the tables


def test_there_are_enough_types_and_relations_with_several_wordings(atlas: Atlas) -> None:
    used = {name for facts in atlas.world.facts for name in facts}
    assert used == set(RELATIONS)
    assert {entity.kind for entity in atlas.world.entities} == set(TYPES)
    assert len(TYPES) >= 10
    assert len(RELATIONS) >= 30
    for relation in RELATIONS.values():
        assert len(set(relation.facts)) >= 3, relation.name
        assert len(set(relation.asks)) >= 2, relation.name
        assert bool(relation.phrases) == relation.to_entity, relation.name
        assert bool(relation.inverse_asks) == bool(relation.inverse_phrases), relation.name
        assert all(text.endswith(".") for text in relation.facts)


def test_every_type_opens_with_one_of_its_own_relations() -> None:
    for row in TYPES.values():
        assert row.lead in {relation.name for relation in RELATIONS_OF[row.name]}
        assert row.alias_wordings
    assert sum(row.share for row in TYPES.values()) == 1000


def test_no_two_relations_share_a_sentence_wording_for_the_same_subject() -> None:
    for kind in TYPES:
        texts = [text for relation in RELATIONS_OF[kind] for text in relation.facts]
        assert len(set(texts)) == len(texts), kind


def test_wordings_use_known_slots_only() -> None:
    for relation in RELATIONS.values():
        for text in wordings(relation):
            assert set(re.findall(r"{(\w+)}", text)) <= {"S", "O", "A", "B", "T", "aT", "aO"}, text


# --- passages


def test_passages_have_40_to_120_words(atlas: Atlas) -> None:
    lengths = [len(passage.text.split()) for passage in atlas.passages]
    assert min(lengths) >= 40
    assert max(lengths) <= 120


def test_passages_are_clean_prose(atlas: Atlas) -> None:
    for passage in atlas.passages:
        text = passage.text
        assert not re.search(r"[{}#]|  |\b(\w+) \1\b", text), text
        assert text.endswith(".")
        for sentence in re.split(r"(?<=\.) ", text):
            assert sentence[0].isupper(), text
        assert not re.search(r"\ba [aeio]|\ban [^aeiou]", text), text


def test_a_passage_states_every_fact_of_its_entity_and_something_else(
    atlas: Atlas, passages: dict[str, Passage]
) -> None:
    world = atlas.world
    for entity in world.entities:
        text = passages[entity.id].text
        for target in world.facts[entity.index].values():
            assert any(spelling in text for spelling in world.spellings(target)), text
        assert all(alias in text for alias in entity.aliases)
        sentences = len(re.findall(r"\.(?: |$)", text))
        joined = sentences + text.count(" and ")
        assert joined > len(world.facts[entity.index]), text


def test_there_are_aliases_homonyms_and_near_duplicates(atlas: Atlas, passages: dict[str, Passage]) -> None:
    entities = atlas.world.entities
    assert sum(bool(entity.aliases) for entity in entities) > 100
    by_name = defaultdict(list)
    for entity in entities:
        by_name[entity.name].append(entity)
    shared = [group for group in by_name.values() if len(group) > 1]
    assert any(len({entity.kind for entity in group}) > 1 for group in shared)
    assert any(len({entity.kind for entity in group}) == 1 for group in shared)
    for group in shared:
        assert all("(" in entity.title for entity in group)
        assert len({entity.described for entity in group}) == len(group)
    twins = [entity for entity in entities if entity.twin >= 0]
    assert len(twins) > 30
    for twin in twins:
        model = entities[twin.twin]
        letters = sum(one != other for one, other in zip(twin.name, model.name))
        assert (letters, len(twin.name), twin.kind) == (1, len(model.name), model.kind)


def test_superlatives_hold(atlas: Atlas) -> None:
    world = atlas.world
    for country in (entity.index for entity in world.entities if entity.kind == "country"):
        longest = world.facts[country]["longest_river"]
        assert isinstance(longest, int)
        rivers = world.subjects(country, "flows_through", "river")
        assert longest == max(rivers, key=lambda river: order(world.facts[river]["river_length"]))


def order(target: Object) -> int:
    assert isinstance(target, Value)
    return target.order


# --- questions


def test_question_texts_are_unique_and_clean(questions: list[Question]) -> None:
    texts = [question.text for question in questions]
    assert len(set(texts)) == len(texts)
    for text in texts + [hop.question for question in questions for hop in question.hops]:
        assert not re.search(r"[{}]|  |\b(\w+) \1\b", text), text
        assert text.endswith("?")
        assert text[0].isupper()
    assert not any("#" in text for text in texts)


def test_questions_do_not_contain_their_answer(questions: list[Question]) -> None:
    for question in questions:
        if question.kind not in CONCLUDED:
            assert not any(answer.lower() in question.text.lower() for answer in question.answers), question.text


def test_gold_passages_are_the_hops_and_state_their_answers(
    questions: list[Question], passages: dict[str, Passage]
) -> None:
    for question in questions:
        assert question.gold_passages == tuple(hop.passages for hop in question.hops if hop.passages)
        assert 1 <= question.searches_needed <= 4
        for hop in question.hops:
            for identifier in hop.passages:
                passage = passages[identifier]
                article = f"{passage.title} {passage.text}"
                assert any(answer in article for answer in (hop.answer, *hop.aliases)), (hop, article)


def test_references_point_to_earlier_hops_and_all_hops_are_used(questions: list[Question]) -> None:
    for question in questions:
        referred = set()
        for position, hop in enumerate(question.hops):
            numbers = {int(number) for number in re.findall(r"#(\d)", hop.question)}
            assert all(0 < number <= position for number in numbers), hop
            referred |= numbers
        assert referred == set(range(1, len(question.hops))), question
        assert (question.answers[0], *question.answers[1:]) == (
            question.hops[-1].answer,
            *question.hops[-1].aliases,
        )
        assert (question.hops[-1].passages == ()) == (question.kind in CONCLUDED)


def test_yes_and_no_are_equally_frequent(questions: list[Question]) -> None:
    answers = Counter(question.answers[0] for question in questions if question.kind == "yes_no")
    assert set(answers) == {"yes", "no"}
    assert abs(answers["yes"] - answers["no"]) < 0.1 * answers.total()


def test_no_fact_is_asked_about_in_two_splits(atlas: Atlas) -> None:
    symmetric = {relation.name for relation in RELATIONS.values() if relation.symmetric}
    ids = {entity.id: entity.index for entity in atlas.world.entities}
    users = defaultdict(set)
    for split, questions in atlas.questions.items():
        for question in questions:
            for subject, relation in atlas.chains[question.id]:
                target = atlas.world.facts[ids[subject]][relation]
                ends = {ids[subject], target} if relation in symmetric else {ids[subject]}
                users[frozenset(ends), relation].add(split)
    assert all(len(splits) == 1 for splits in users.values())
    chains = [{atlas.chains[question.id] for question in split} for split in atlas.questions.values()]
    assert all(not one & other for one in chains for other in chains if one is not other)


def filled(hop: Hop, question: Question) -> str:
    """A sub-question with the answers it refers to in place."""
    return re.sub(r"#(\d)", lambda number: question.hops[int(number[1]) - 1].answer, hop.question)


class Walker:
    """An independent reading of the facts: follows a question hop by hop, with nothing of the question writer."""

    def __init__(self, atlas: Atlas) -> None:
        self.entities = {entity.id: entity for entity in atlas.world.entities}
        self.facts: dict[tuple[str, str], str | Value] = {}
        for entity in atlas.world.entities:
            for relation, target in atlas.world.facts[entity.index].items():
                held = atlas.world.entities[target].id if isinstance(target, int) else target
                self.facts[entity.id, relation] = held
        self.holders = defaultdict(set)
        for (subject, relation), held in self.facts.items():
            if isinstance(held, str):
                self.holders[relation, held, self.entities[subject].kind].add(subject)

    def name(self, held: str | Value) -> str:
        return self.entities[held].name if isinstance(held, str) else held.spellings[0]

    def check(self, question: Question, chain: tuple[tuple[str, str], ...]) -> None:
        left = list(chain)
        for hop in question.hops:
            if not hop.passages:
                continue
            subject, relation = left.pop(0)
            held = self.facts[subject, relation]
            if left and left[0][0] == subject and question.kind == "intersection" and self.is_join(hop):
                _, other = left.pop(0)
                kind = self.entities[subject].kind
                meeting = self.holders[relation, held, kind] & self.holders[other, self.facts[subject, other], kind]
                assert meeting == {subject}
                assert hop.answer == self.name(subject)
            elif hop.answer == self.name(held) and self.is_named(subject, hop, question):
                pass  # functional by construction: one entry in the dictionary
            else:
                assert self.holders[relation, held, self.entities[subject].kind] == {subject}
                assert hop.answer == self.name(subject)
                assert self.is_named(held, hop, question)
        assert not left

    def is_join(self, hop: Hop) -> bool:
        return hop.question.startswith("Which ") and " and " in hop.question

    def is_named(self, known: str | Value, hop: Hop, question: Question) -> bool:
        """Whether a hop names an entity outright or by reference to the hop that found it."""
        assert isinstance(known, str)
        entity = self.entities[known]
        return any(spelling in filled(hop, question) for spelling in entity.spellings)


def test_every_answer_follows_from_the_facts_and_is_the_only_one(atlas: Atlas, questions: list[Question]) -> None:
    walker = Walker(atlas)
    for question in questions:
        walker.check(question, atlas.chains[question.id])


def amount(text: str) -> tuple[int, ...]:
    """The order of a date, a year or a number, read from its spelling."""
    if date := re.fullmatch(r"(\d+) (\w+) (\d+)", text):
        return int(date[3]), MONTHS.index(date[2]), int(date[1])
    return (int(text.split()[0].replace(",", "")),)


def test_conclusions_follow_from_the_answers_before_them(questions: list[Question]) -> None:
    for question in questions:
        if question.kind not in CONCLUDED:
            continue
        last = question.hops[-1]
        text = filled(last, question)
        if same := re.fullmatch(r"Are (.+) and (.+) the same\?", text):
            assert last.answer == ("yes" if same[1] == same[2] else "no")
        elif yes := re.fullmatch(r"Is (.+) (later|earlier|greater|smaller) than (.+)\?", text):
            above = amount(yes[1]) > amount(yes[3])
            assert amount(yes[1]) != amount(yes[3])
            assert last.answer == ("yes" if above == (yes[2] in ("later", "greater")) else "no")
        else:
            which = re.fullmatch(r"Which is (\w+): (.+?) for (.+), or (.+?) for (.+)\?", text)
            assert which, text
            assert amount(which[2]) != amount(which[4])
            above = amount(which[2]) > amount(which[4])
            winner = which[3] if above == (which[1] in ("later", "greater")) else which[5]
            assert any(answer in winner for answer in question.answers), (winner, question.answers)
