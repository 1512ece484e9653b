"""The gold judge: every fault by example, whatever the wording; and hundreds of spoilt steps on Atlas."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest

from stepladder import Question, Step, Trajectory, Tree
from stepladder.agents import make_agent
from stepladder.core.requests import Algorithm, Score
from stepladder.core.step_scorer import check_step_scorer
from stepladder.core.trace import ActionKind, Hop, Node, StopReason
from stepladder.data.atlas import Atlas
from stepladder.data.atlas.catalogue import RELATIONS, RELATIONS_OF, TYPES, Relation
from stepladder.data.atlas.world import Entity
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.oracle.decomposition import fill_references, hop_answers, references, supports
from stepladder.oracle.engine import OracleEngine
from stepladder.oracle.step_judge import Fault, GoldJudge, GoldScorer, judge, judge_tree
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.index.bm25 import BM25Index
from tests.support.atlas import cached_atlas
from tests.support.judged_steps import answer, evidence, faults, finished, last, malformed, query, sub_answer
from tests.support.samples import PASSAGES, QUESTION, WordRetriever

TOWER, ARCHITECT, CITY = PASSAGES


FIRST = (query("Who designed Orm Tower?", TOWER), sub_answer("Ada Tarn"))
BOTH = (*FIRST, query("Where was Ada Tarn born?", ARCHITECT), sub_answer("Velm"))


# --- Queries --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ("Orm Tower is an office tower of steel and glass that was opened in Velm in 1931", "ok"),
        ("an office tower of steel and glass in Velm, opened in 1931", "ok"),
        ("an office tower of steel", "ok"),
        ("a tower", "wrong"),
        ("Velm is a city by the sea", "wrong"),
    ],
)
def test_an_answer_that_is_a_sentence_may_be_retold(told: str, verdict: str) -> None:
    sentence = "Orm Tower is an office tower of steel and glass that was opened in Velm in 1931"
    about = Question(
        "q", "Is Orm Tower taller than Ada Tarn?", ("yes",), (Hop("What is Orm Tower?", sentence, ("1",)),)
    )
    assert last(query("What is Orm Tower?", replace(TOWER, id="1")), sub_answer(told), question=about) == verdict
    inside = evidence(f"The first passage says: {told}, and more.")
    expected = "ok" if verdict == "ok" and told != "an office tower of steel" else "wrong"
    assert last(query("What is Orm Tower?", replace(TOWER, id="1")), inside, question=about) == expected


def test_the_gold_way_is_good_all_along() -> None:
    assert faults(*BOTH, answer("Velm City")) == ["ok"] * 5


@pytest.mark.parametrize(
    "text",
    [
        "Who was the architect of Orm Tower?",
        "the designer of Orm Tower",
        "Orm Tower architect",
        "By whom was the Orm Tower designed?",
        "orm tower",
    ],
)
def test_a_query_may_be_worded_freely(text: str) -> None:
    assert last(query(text, TOWER)) == "ok"


@pytest.mark.parametrize(
    "text",
    [
        "When was Orm Tower designed?",  # the right passage, another fact of it
        "How high is Orm Tower?",
        "Who owned Orm Tower?",
        "Who designed Oss Tower?",  # something else
        "Which river flows through Velm?",
    ],
)
def test_asking_for_something_else_is_wrong_whatever_it_finds(text: str) -> None:
    assert last(query(text, TOWER)) == "wrong"


def test_a_good_query_is_good_even_when_the_search_fails() -> None:
    assert last(query("Who was the architect of Orm Tower?", CITY)) == "ok"


@pytest.mark.parametrize("text", ["Where was Ada Tarn born?", QUESTION.text, "the birthplace of Orm Tower's designer"])
def test_asking_for_a_later_hop_first_is_premature(text: str) -> None:
    assert last(query(text, ARCHITECT)) == "premature"


def test_a_reference_is_known_once_stated_or_in_view() -> None:
    assert last(query("Who designed Orm Tower?", TOWER), sub_answer("Bo"), query("Where was Ada Tarn born?")) == "ok"
    assert last(query("Who designed Orm Tower?"), sub_answer("Ada Tarn"), query("Where was Ada Tarn born?")) == "ok"
    assert last(query("Who designed Orm Tower?"), sub_answer("Bo"), query("Where was Bo born?")) == "derived"


def test_asking_again_is_redundant_unless_the_search_had_failed() -> None:
    assert last(*FIRST, query("Who designed Orm Tower?", TOWER)) == "redundant"
    assert last(*FIRST, query("the architect of Orm Tower", TOWER)) == "redundant"
    assert last(*FIRST, query("Who designed Orm Tower? Ada Tarn", TOWER)) == "redundant"
    failed = query("Who designed Orm Tower?", CITY), sub_answer("unknown")
    assert last(*failed, query("who designed orm tower", CITY)) == "redundant", "the same will find the same"
    assert last(*failed, query("the architect of Orm Tower", TOWER)) == "ok"


def test_a_hop_that_came_into_view_by_chance_may_still_be_asked_for_by_agents_that_state_sub_answers() -> None:
    found_both = query("Who designed Orm Tower?", TOWER, ARCHITECT)
    assert last(found_both, sub_answer("Ada Tarn"), query("Where was Ada Tarn born?", ARCHITECT)) == "ok"
    assert last(found_both, query("Where was Ada Tarn born?", ARCHITECT)) == "redundant"


def test_a_known_name_described_instead_of_named_is_good_only_when_the_search_copes() -> None:
    assert last(*FIRST, query("Where was the designer of Orm Tower born?", ARCHITECT)) == "ok"
    assert last(*FIRST, query("Where was the designer of Orm Tower born?", TOWER)) == "wrong"


def test_a_later_hop_with_names_of_its_own_needs_no_other_if_the_search_copes() -> None:
    hops = (QUESTION.hops[0], Hop("Which ship did #1 paint on the Skarn Chart?", "Velm", ("p2",)))
    question = replace(QUESTION, hops=hops)
    assert last(query("ship on the Skarn Chart", ARCHITECT), question=question) == "ok"
    assert last(query("ship on the Skarn Chart", CITY), question=question) == "wrong"
    assert last(query("age of the Skarn Chart", ARCHITECT), question=question) == "wrong"


def test_subject_and_relation_with_an_arrow() -> None:
    question = Question("m", "?", ("Mel Oss",), (Hop("Green >> performer", "Mel Oss", ("p1",)),), (("p1",),))
    assert last(query("Who performed Green?", TOWER), question=question) == "ok"
    assert last(query("Green >> performer", TOWER), question=question) == "ok"
    assert last(query("What is the genre of Green?", TOWER), question=question) == "wrong"


def test_hops_without_any_passage_are_judged_by_what_the_passages_say() -> None:
    question = replace(QUESTION, hops=tuple(replace(hop, passages=()) for hop in QUESTION.hops), gold_passages=())
    assert faults(*BOTH, answer("Velm"), question=question) == ["ok"] * 5
    assert last(query("Who designed Orm Tower?", CITY), sub_answer("Ada Tarn"), question=question) == "unsupported"


# --- Sub-answers, evidence, answers ---------------------------------------------------------------------


def test_sub_answers() -> None:
    asked = query("Who designed Orm Tower?", TOWER)
    assert last(asked, sub_answer("ada tarn.")) == "ok"
    assert last(asked, sub_answer("Orm Tower was designed by Ada Tarn.")) == "ok"
    assert last(asked, sub_answer("Ada Tarn or Bo Lind")) == "wrong"
    assert last(asked, sub_answer("Velm")) == "wrong", "that is what the next hop asks for"
    assert last(asked, sub_answer("unknown")) == "wrong", "it is in the passage"
    blind = query("Who designed Orm Tower?", CITY)
    assert last(blind, sub_answer("Ada Tarn")) == "unsupported"
    assert last(blind, sub_answer("The passages don't say.")) == "ok"
    play = query("Who designed Orm Tower?", replace(CITY, text="Velm has staged Much Ado About Nothing."))
    assert last(play, sub_answer("Much Ado About Nothing")) == "wrong", "a title"
    assert last(*FIRST, query("Where was Ada Tarn born?", ARCHITECT), sub_answer("Ada Tarn")) == "redundant"


def test_a_right_reply_to_a_needless_query_is_good() -> None:
    assert faults(*FIRST, *FIRST) == ["ok", "ok", "redundant", "ok"]


def test_what_replies_to_a_query_for_nothing_needed_cannot_be_judged() -> None:
    needless = query("On which river is Velm?", CITY)
    assert faults(needless, sub_answer("Oss")) == ["wrong", "?"], "the fault is the query's: this is what it asked"
    assert last(query("On which river is Velm?", TOWER), sub_answer("Ada Tarn")) == "ok", "it helps, all the same"


def test_evidence_may_be_longer_than_the_answer() -> None:
    asked = query("Who designed Orm Tower?", TOWER)
    assert last(asked, evidence(TOWER.text)) == "ok"
    assert last(asked, evidence("The tower is from 1871.")) == "wrong"
    assert last(query("Who designed Orm Tower?", CITY), evidence("Nothing helps.")) == "ok"


def test_answers() -> None:
    assert last(*BOTH, answer("Oss")) == "wrong"
    assert last(*FIRST, answer("Oss")) == "premature"
    assert last(*FIRST, answer("unknown")) == "premature", "it gives up"
    assert last(*FIRST, answer("Velm")) == "unsupported"
    assert last(malformed("<step>hm")) == "malformed"


def test_a_conclusion_needs_no_step_of_its_own() -> None:
    hops = (
        Hop("How high is Mount Orm?", "900 metres", ("p1",)),
        Hop("How high is Mount Tarn?", "800 metres", ("p2",)),
        Hop("Which is greater: #1 for Mount Orm, or #2 for Mount Tarn?", "Mount Orm"),
    )
    question = Question("c", "Which is higher, Mount Orm or Mount Tarn?", ("Mount Orm",), hops, (("p1",), ("p2",)))
    one, two = query("the height of Mount Tarn", ARCHITECT), query("What is the height of Mount Orm?", TOWER)
    steps = (one, sub_answer("800 metres"), two, sub_answer("900 metres"))
    assert faults(*steps, answer("Mount Orm"), question=question) == ["ok"] * 5, "in either order"
    assert last(query(question.text, TOWER), question=question) == "premature"
    assert last(*steps, query(question.text, TOWER), question=question) == "redundant"


# --- Less annotation ------------------------------------------------------------------------------------


def test_without_hops_gold_passages_decide_and_without_those_only_answers_can_be_judged() -> None:
    steps = (query("a", TOWER), query("b", TOWER), query("c", ARCHITECT), query("d", CITY), query("d", CITY))
    bare = replace(QUESTION, hops=())
    found = faults(*steps, sub_answer("Velm"), answer("Velm"), question=bare)
    assert found == ["ok", "wrong", "ok", "redundant", "redundant", "?", "ok"]
    assert last(query("a", TOWER), answer("Velm"), question=bare) == "unsupported"
    nothing = replace(bare, gold_passages=())
    assert faults(*steps[-2:], answer("Velm"), question=nothing) == ["?", "redundant", "ok"]
    assert last(answer("Oss"), question=nothing) == "wrong"
    assert last(answer("Velm"), question=replace(nothing, answers=())) == "?"


# --- Trees ----------------------------------------------------------------------------------------------


@pytest.fixture
def tree() -> Tree:
    """After the first search: a right sub-answer, a wrong one, malformed text, and another right one."""
    steps = [sub_answer("Ada Tarn"), sub_answer("Bo Lind"), malformed("hm"), sub_answer("Ada Tarn designed it")]
    children = [Node(2 + number, 1, each) for number, each in enumerate(steps)]
    return Tree(QUESTION, "prorag", (Node(0, None, None), Node(1, 0, FIRST[0]), *children))


def test_the_judge_prefers_every_good_sibling_to_every_faulty_one(tree: Tree) -> None:
    found = finished(GoldJudge().prefer(tree, tree.nodes[2:]))
    assert [(each.chosen, each.rejected) for each in found] == [(2, 3), (2, 4), (5, 3), (5, 4)]
    assert {(each.chosen_value, each.rejected_value) for each in found} == {(1.0, 0.0)}
    assert [each.reason.partition(":")[0] for each in found] == ["wrong", "malformed"] * 2
    assert finished(GoldJudge().prefer(tree, [])) == []


def test_a_whole_tree_is_judged_like_each_of_its_branches(tree: Tree) -> None:
    branches = [judge(tree.trajectory(node))[-1] for node in tree.nodes[1:]]
    assert judge_tree(tree) == [None, *branches]
    unknown = replace(tree, question=replace(QUESTION, hops=(), gold_passages=()))
    assert judge_tree(unknown)[1:4] == [None] * 3


def test_one_judge_may_look_at_several_trees(tree: Tree) -> None:
    judge, unknown = GoldJudge(), replace(tree, question=replace(QUESTION, hops=(), gold_passages=()))
    found = [len(finished(judge.prefer(each, each.nodes[2:]))) for each in (tree, unknown, tree)]
    assert found == [4, 0, 4]


def test_the_scorer_scores_every_step() -> None:
    trajectory = Trajectory(QUESTION, "prorag", (FIRST[0], sub_answer("Bo")), StopReason.STEP_LIMIT)
    blank = replace(trajectory, question=replace(QUESTION, hops=(), gold_passages=()))

    def ask() -> Algorithm[object]:
        return (yield [Score(trajectory), Score(blank)])

    assert Driver(scorer=GoldScorer()).run([ask])[0].value == [(1.0, 0.0), (None, None)]
    (good, bad), unknown = GoldScorer().score_logits([trajectory, blank])
    assert good is not None
    assert bad is not None
    assert good == -bad > 4
    assert unknown == (None, None), "neither good nor bad"
    check_step_scorer(GoldScorer(), [trajectory, blank])
    verdict = judge(trajectory)[-1]
    assert verdict is not None
    assert (verdict.fault, verdict.hop) == (Fault.WRONG, 1)


def test_the_oracle_never_errs_where_search_works() -> None:
    agent = make_agent("prorag")
    job = partial(episode, agent, QUESTION, EpisodeConfig(k=1), 0)
    (outcome,) = Driver(OracleEngine(agent), WordRetriever()).run([job])
    assert outcome.value is not None
    assert all(verdict is not None and verdict.good for verdict in judge(outcome.value))


# --- Atlas: the oracle's steps, and the same steps spoilt in known ways ----------------------------------


@dataclass(frozen=True)
class Case:
    """An episode whose last step was spoilt, and the fault it should be found to have; None for a good one."""

    how: str
    trajectory: Trajectory
    fault: Fault | None


class Corruptor:
    """Makes cases from the oracle's episodes. The world behind the questions knows what else could be asked."""

    def __init__(self, atlas: Atlas, index: Retriever) -> None:
        self.atlas, self.world, self.index = atlas, atlas.world, index
        self.rng = random.Random(0)
        self.entities = {entity.id: entity for entity in self.world.entities}

    def cases(self, played: Trajectory) -> Iterator[Case]:
        question, searched = played.question, [n for n, hop in enumerate(played.question.hops, 1) if hop.passages]
        for place, taken in enumerate(played.steps):
            self.before = replace(played, steps=played.steps[:place], stop=None)
            count = len(self.before.queries)
            self.in_view = {n for n in searched if supports(question.hops[n - 1], self.before.found)}
            yield self.case("the oracle", None, taken)
            if taken.action.kind is ActionKind.QUERY:
                yield from self.queries(question, searched[count], searched[:count])
                if len(self.in_view) < len(searched):
                    yield self.case("answers too early, rightly", Fault.UNSUPPORTED, answer(question.answers[0]))
                    yield self.case("answers too early, wrongly", Fault.PREMATURE, answer("Nowhere"))
            elif taken.action.kind is ActionKind.SUB_ANSWER:
                yield from self.sub_answers(question, searched[count - 1], searched[: count - 1])
            else:
                yield self.case("a wrong answer", Fault.WRONG, answer("Nowhere"))

    def case(self, how: str, fault: Fault | None, spoilt: Step) -> Case:
        return Case(how, self.before.extend(spoilt), fault)

    def asks(self, how: str, fault: Fault | None, text: str) -> Case:
        return self.case(how, fault, query(text, *self.index.search([text], 3)[0]))

    def queries(self, question: Question, number: int, done: Sequence[int]) -> Iterator[Case]:
        answers = hop_answers(question)
        for earlier in self.before.queries:
            yield self.asks("a repeated query", Fault.REDUNDANT, earlier)
        for hop in question.hops:
            if not self.in_view.issuperset(references(hop.question)):
                yield self.asks("a later hop first", Fault.PREMATURE, fill_references(hop.question, answers))
        for earlier_hop in done:
            for text in self.wordings(question, earlier_hop):
                yield self.asks("an earlier hop, worded otherwise", Fault.REDUNDANT, text)
        for text in self.wordings(question, number):
            yield self.asks("the same, worded otherwise", None, text)
        entity, relation, inverse = self.link(question, number)
        links = [self.link(question, n) for n, hop in enumerate(question.hops, 1) if hop.passages]
        other = self.rng.choice([each for each in self.world.entities if each.kind == entity.kind and each != entity])
        if other.name != entity.name and (other, relation, inverse) not in links:
            (text, *_) = self.wordings(question, number, other)
            yield self.asks("about something else", Fault.WRONG, text)
        for row in RELATIONS_OF[entity.kind]:
            if row.name in self.world.facts[entity.index] and (entity, row, False) not in links:
                name = self.name(question, number, entity)
                yield self.asks("another relation", Fault.WRONG, self.rng.choice(row.asks).format(S=name))

    def sub_answers(self, question: Question, number: int, done: Sequence[int]) -> Iterator[Case]:
        hop, said = question.hops[number - 1], {question.hops[each - 1].answer for each in done}
        accepted = {text for each in question.hops for text in (each.answer, *each.aliases)}
        for each in question.hops:
            if each.answer != hop.answer and each.passages:
                fault = Fault.REDUNDANT if each.answer in said else Fault.WRONG
                yield self.case("another hop's answer", fault, sub_answer(each.answer))
        for target in self.world.facts[self.link(question, number)[0].index].values():
            if self.world.spellings(target)[0] not in accepted:
                yield self.case("a wrong value", Fault.WRONG, sub_answer(self.world.spellings(target)[0]))
        *earlier, asked = self.before.steps
        unfound = tuple(passage for passage in asked.passages if passage.id not in hop.passages)
        self.before = replace(self.before, steps=(*earlier, replace(asked, passages=unfound)))
        if not supports(hop, self.before.found):
            yield self.case("a right guess", Fault.UNSUPPORTED, sub_answer(hop.answer))
            yield self.case("an honest unknown", None, sub_answer("unknown"))

    def fact(self, question: Question, number: int) -> tuple[Entity, Relation]:
        """The subject and the relation that a hop is made from."""
        place = sum(bool(hop.passages) for hop in question.hops[: number - 1])
        subject, name = self.atlas.chains[question.id][place]
        return self.entities[subject], RELATIONS[name]

    def link(self, question: Question, number: int) -> tuple[Entity, Relation, bool]:
        """What a hop is about, which relation it asks for, and whether it asks for the subject."""
        subject, relation = self.fact(question, number)
        target = self.world.facts[subject.index][relation.name]
        if isinstance(target, int) and question.hops[number - 1].answer in subject.spellings:
            return self.world.entities[target], relation, True
        return subject, relation, False

    def name(self, question: Question, number: int, entity: Entity) -> str:
        """An entity as the hop names it, which may be by an alias."""
        text = fill_references(question.hops[number - 1].question, hop_answers(question))
        alias = next((alias for alias in entity.aliases if alias in text and entity.name not in text), None)
        return entity.described if alias is None else TYPES[entity.kind].described.format(alias)

    def wordings(self, question: Question, number: int, about: Entity | None = None) -> list[str]:
        """Every way to ask for a hop, or the same about something else."""
        entity, relation, inverse = self.link(question, number)
        name = self.name(question, number, entity) if about is None else about.described
        noun = TYPES[self.fact(question, number)[0].kind].noun
        return [text.format(S=name, O=name, T=noun) for text in (relation.inverse_asks if inverse else relation.asks)]


def test_spoilt_steps_on_atlas_are_found_out_and_their_faults_named() -> None:
    atlas = cached_atlas()
    index = BM25Index.from_passages(atlas.passages)
    agent = make_agent("prorag")
    # The join of an intersection uses two facts at once; chains of single facts are easier to spoil.
    questions = [question for question in atlas.questions["dev"] if question.kind != "intersection"][:24]
    jobs = [partial(episode, agent, question, EpisodeConfig(k=3, max_steps=20), 0) for question in questions]
    played = [outcome.value for outcome in Driver(OracleEngine(agent), index).run(jobs)]
    corruptor = Corruptor(atlas, index)
    made: Counter[str] = Counter()
    missed: list[tuple[str, str, Fault | None]] = []
    for trajectory in played:
        assert trajectory is not None
        if trajectory.answer not in trajectory.question.answers:
            continue  # the search failed the oracle
        for case in corruptor.cases(trajectory):
            made[case.how] += 1
            verdict = judge(case.trajectory)[-1]
            if verdict is None or verdict.fault != case.fault:
                missed.append((case.how, case.trajectory.steps[-1].action.content, case.fault))
    assert made.total() > 800
    assert len(made) == 14
    assert missed == []
