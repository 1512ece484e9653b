"""RAG-Gym's process data: actions ranked at every step, and what is learnt from them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Sampling
from stepladder.core.trace import ActionKind, Node, Pair, Question, StopReason, Trajectory, Tree
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.ranked import RANK, best_branch, ranked
from stepladder.judges.llm.config import LLMJudgeConfig
from stepladder.oracle.step_judge import GoldScorer
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.pipeline.stages.pairs import PairConfig
from stepladder.pipeline.stages.rank import RankConfig
from stepladder.preferences.pairs import tree_pairs
from stepladder.train.sft.demonstrations import tree_demonstrations
from tests.support.sampled_steps import AGENT, BAD, GOOD, OTHER, Likes, Sampled
from tests.support.samples import QUESTION, WordRetriever

SETTINGS = EpisodeConfig(6, 1, Sampling(temperature=1.0))
KNOWS = {"designed": 0.9, "born": 0.8, "Velm": 0.7, "Oss": 0.2}


def grown(lines: Sequence[object], scorer: object = None, question: Question = QUESTION, seed: int = 0) -> Tree:
    engine = Sampled(lines)  # type: ignore[arg-type]
    driver = Driver(engine, WordRetriever(), scorer or Likes(**KNOWS))  # type: ignore[arg-type]
    (outcome,) = driver.run([lambda: ranked(AGENT, question, SETTINGS, seed, n=12)])
    if outcome.failure is not None:
        raise StepladderError(outcome.failure.reason)
    assert outcome.value is not None
    return outcome.value


def test_the_best_action_is_gone_on_with_and_the_others_stay_beside_it() -> None:
    tree = grown([GOOD, OTHER, BAD])
    branch = tree.trajectory(best_branch(tree)[-1])
    assert [step.action.content for step in branch.steps] == [
        "Who designed Orm Tower?",
        "Where was Ada Tarn born?",
        "Velm",
    ]
    assert branch.stop is StopReason.ANSWERED
    children_by_node = [family for family in tree.children_by_node() if family]
    assert [len(family) for family in children_by_node] == [3, 3, 3]  # one that is good, another, one malformed
    assert [sum(node.visits for node in family) for family in children_by_node] == [12, 12, 12]
    assert all(node.scores == {RANK: node.value} for node in tree.nodes[1:])
    assert sorted(node.reward or 0 for node in children_by_node[-1] if node.stop is StopReason.ANSWERED) == [0.0, 1.0]


def test_nothing_outside_the_grammar_is_gone_on_with_whatever_its_score() -> None:
    tree = grown([OTHER, BAD], Likes(nonsense=1.0))
    assert tree.trajectory(best_branch(tree)[-1]).stop is StopReason.ANSWERED
    assert [node.reward for node in tree.nodes if node.stop is StopReason.MALFORMED] == [0.0] * 3


def test_the_best_branch_of_a_search_tree_is_the_most_visited() -> None:
    """Also where that ends sooner than others."""
    step = grown([GOOD]).nodes[1].step
    nodes = (
        Node(0, None, None, 20),
        Node(1, 0, step, 15, 1.0, stop=StopReason.ANSWERED, reward=1.0),
        Node(2, 0, step, 5, 0.1),
        Node(3, 2, step, 4, 0.1, stop=StopReason.ANSWERED, reward=0.0),
    )
    assert [node.id for node in best_branch(Tree(QUESTION, AGENT.name, nodes))] == [0, 1]


def test_a_question_without_answers_is_refused() -> None:
    with pytest.raises(StepladderError, match="has no answers"):
        grown([GOOD], question=replace(QUESTION, answers=()))


def pairs_of(tree: Tree, **rules: object) -> list[Pair]:
    settings = PairConfig.read({"judge": "rank", "per_state": 1, **rules})
    (outcome,) = Driver().run([lambda: tree_pairs(tree, settings.make_judge(), settings)])
    assert outcome.value is not None
    return list(outcome.value.pairs)


def test_best_and_worst_of_a_state_make_a_pair() -> None:
    tree = grown([GOOD, OTHER, BAD])
    found = [(pair.chosen.action.content, pair.rejected.action.content, pair.judge) for pair in pairs_of(tree)]
    assert [chosen for chosen, _, _ in found] == ["Who designed Orm Tower?", "Where was Ada Tarn born?", "Velm"]
    assert {judge for _, _, judge in found} == {"rank"}
    assert found[2][1] == BAD  # which scores 0, less than the other answer
    assert [pair.chosen.action.kind for pair in pairs_of(tree, both_valid=True)][-1] is ActionKind.ANSWER


def test_a_branch_with_a_wrong_answer_gives_nothing_when_that_is_asked_for() -> None:
    wrong = grown([GOOD, OTHER], Likes(River=0.9, Oss=0.9))
    assert tree_demonstrations([wrong], 1.0).dropped == {"wrong_answer": 1}
    assert pairs_of(wrong)
    assert pairs_of(wrong, right_branch=True) == []
    right = grown([GOOD, OTHER])
    assert pairs_of(right, right_branch=True) == pairs_of(right)
    (kept,) = tree_demonstrations([right, wrong], 1.0).kept
    assert kept.answer == "Velm"


def test_the_gold_judge_ranks_by_the_decomposition() -> None:
    tree = grown([GOOD, OTHER], GoldScorer())
    assert tree.trajectory(best_branch(tree)[-1]).answer == "Velm"
    assert {node.value for node in tree.nodes[1:]} == {0.0, 1.0}


class Jury(Likes):
    """Ranks all actions of a state together: the one with the shortest query is the best."""

    def rank(self, groups: Sequence[Sequence[Trajectory]]) -> list[tuple[float, ...]]:
        self.groups = [*getattr(self, "groups", []), *map(len, groups)]
        lengths = [[len(each.steps[-1].action.content) for each in group] for group in groups]
        return [tuple(1 - sorted(own).index(each) / max(len(own) - 1, 1) for each in own) for own in lengths]


def test_the_actions_of_a_state_are_ranked_jointly() -> None:
    jury = Jury(**KNOWS)
    driver = Driver(Sampled([GOOD, OTHER, BAD]), WordRetriever(), jury)
    (outcome,) = driver.run([lambda: ranked(AGENT, QUESTION, SETTINGS, 0, n=12, jointly=True)])
    assert outcome.value is not None, outcome.failure
    groups = [group for group in outcome.value.children_by_node() if group]
    assert jury.groups == [len(group) for group in groups] == [3, 3, 3], "one request per state"
    for group in groups:
        assert sorted(node.value for node in group) == [0.0, 0.5, 1.0]


def test_the_mode_of_an_llm_is_the_paper_s_unless_it_is_given() -> None:
    model = {"model": "gpt"}
    assert RankConfig.read({"judge": "llm", "llm": model}).llm == LLMJudgeConfig(model="gpt", mode="ranking")
    assert RankConfig.read({"judge": "llm", "llm": {**model, "mode": "score"}}).llm == LLMJudgeConfig(
        **model, mode="score"
    )
    assert ExploreConfig.read({"evaluate": "llm", "llm": model}).llm == LLMJudgeConfig(model="gpt", mode="value")
    with pytest.raises(StepladderError, match=r"llm\.mode: expected value or score in this stage, found 'ranking'"):
        ExploreConfig.read({"evaluate": "llm", "llm": {**model, "mode": "ranking"}})
    with pytest.raises(StepladderError, match=r"llm\.mode: expected ranking or score or value .* found 'choice'"):
        RankConfig.read({"judge": "llm", "llm": {**model, "mode": "choice"}})
