"""Steps that a scorer cannot judge are neither good nor bad, whatever uses the scores."""

import math
from collections.abc import Sequence
from functools import partial

import pytest

from stepladder import Step, Trajectory
from stepladder.core.errors import ContractViolation, StepladderError
from stepladder.core.requests import Sampling
from stepladder.core.step_scorer import StepScorer, check_step_scorer
from stepladder.core.trace import Action, ActionKind, Author, Segment, StopReason
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.guided import Aggregate, Guide, guided_search
from stepladder.explore.mcts import MCTSConfig, mcts_search
from stepladder.explore.ranked import RANK, best_branch, ranked
from stepladder.gym.env_config import EnvConfig
from stepladder.pipeline.guide_config import GuideConfig
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.pipeline.stages.pairs import PairConfig
from stepladder.pipeline.stages.rank import RankConfig
from stepladder.preferences.pairs import tree_pairs
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import Evidence
from stepladder.train.grpo.credit.credit_group import credit_group
from stepladder.train.prm.config import PRMConfig
from stepladder.train.rft.filters import filter_trajectories
from stepladder.train.transcripts.sample_checks import SampleRules
from tests.support.sampled_steps import AGENT, GOOD, OTHER, Sampled
from tests.support.samples import QUESTION, WordRetriever

WARM = EpisodeConfig(max_steps=6, k=1, sampling=Sampling(temperature=1.0))
#: Another query in the first step.
UNSURE = {**OTHER, 0: "<think>a</think><search>Orm River</search>"}


class Scorer(StepScorer):
    """Scores steps by the words in them; None stands for no opinion."""

    max_batch, concurrency = 64, 1

    def __init__(self, **worth: float | None) -> None:
        self.worth = worth

    def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float | None, ...]]:
        return [tuple(self._of(step.written.text) for step in each.steps) for each in trajectories]

    def _of(self, text: str) -> float | None:
        return next((worth for word, worth in self.worth.items() if word in text), 0.0)


def episode(*contents: str) -> Trajectory:
    kinds = [ActionKind.QUERY] * (len(contents) - 1) + [ActionKind.ANSWER]
    steps = tuple(
        Step((), Segment(Author.POLICY, text, (7,)), Action(kind, text)) for kind, text in zip(kinds, contents)
    )
    return Trajectory(QUESTION, "prorag", steps, StopReason.ANSWERED)


def test_the_contract_allows_no_opinion() -> None:
    scorer = Scorer(a=0.9, b=None, c=0.1)
    assert scorer.score_logits([episode("a", "b", "c")])[0][1] is None  # type: ignore[index]
    check_step_scorer(scorer, [episode("a", "b", "c"), episode("b", "b")])

    class Undecided(Scorer):
        def score_logits(self, trajectories: Sequence[Trajectory]) -> list[tuple[float | None, ...]]:
            return [(1.0,) * len(each.steps) for each in trajectories]

    with pytest.raises(ContractViolation, match="a score or a logit, not both"):
        check_step_scorer(Undecided(a=0.9, b=None), [episode("a", "b")])


def test_no_step_advantage_and_no_part_of_the_baseline() -> None:
    group = [episode("a", "Velm"), episode("b", "Velm"), episode("c", "Velm")]
    high, low = math.log(9), -math.log(9)  # probabilities of 0.9 and 0.1
    settings = GRPOConfig(mode="process", num_generations=3, batch_size=3, questions=1)
    with_none = credit_group(group, settings, Evidence([(high, None), (None, None), (low, None)]))
    assert [row.advantages for row in with_none] == [pytest.approx(own) for own in ((1, 0), (0, 0), (-1, 0))]
    # As 0.5 instead, an answer would be better than a bad query and worse than a good one.
    all_good = credit_group(group, settings, Evidence([(high, None), (high, None), (high, None)]))
    assert not any(row.has_signal for row in all_good), "the unjudged answers are not worse than the good queries"


def test_no_threshold_applies() -> None:
    right, wrong = episode("a", "b", "Velm"), episode("c", "d", "Velm")
    result = filter_trajectories(
        [right, wrong], [(1, None, None), (1, None, -1)], rules=SampleRules(keep=2), threshold=0.5
    )
    assert result.rejected_by == ["", "good_steps"]
    assert result.first_bad_step == {3: 1}


@pytest.mark.parametrize("aggregate", ["min", "mean"])
def test_a_trajectory_is_chosen_by_its_judged_steps(aggregate: Aggregate) -> None:
    """The good way has an unjudged step between two good ones: as 0.5 it would lose to the other way."""
    scorer = Scorer(designed=0.9, born=None, Velm=0.9, River=0.8, Ada=0.8, Oss=0.8)
    guide = Guide("trajectories", n=12, aggregate=aggregate)
    driver = Driver(Sampled([GOOD, OTHER]), WordRetriever(), scorer)
    (outcome,) = driver.run([partial(guided_search, AGENT, QUESTION, WARM, guide, 0)])
    assert outcome.value is not None
    assert outcome.value.answer == "Velm"


@pytest.mark.parametrize(("other", "first"), [(0.0, "Who designed Orm Tower?"), (1.0, "Orm River")])
def test_of_actions_an_unjudged_one_is_between_good_and_bad(other: float, first: str) -> None:
    scorer = Scorer(designed=None, River=other)
    driver = Driver(Sampled([GOOD, UNSURE]), WordRetriever(), scorer)
    (outcome,) = driver.run([partial(guided_search, AGENT, QUESTION, WARM, Guide("actions", n=12), 0)])
    assert outcome.value is not None
    assert outcome.value.steps[0].action.content == first


def test_an_unjudged_action_has_no_rank_and_makes_no_pair() -> None:
    driver = Driver(Sampled([GOOD, UNSURE]), WordRetriever(), Scorer(designed=1.0, River=None, born=1.0, Velm=1.0))
    (outcome,) = driver.run([lambda: ranked(AGENT, QUESTION, WARM, 0, n=12)])
    tree = outcome.value
    assert tree is not None
    first = tree.children(tree.nodes[0])
    assert sorted(len(node.scores) for node in first) == [0, 1]
    assert [node.step.action.content for node in best_branch(tree)[1:2] if node.step] == ["Who designed Orm Tower?"]
    settings = PairConfig(judge="rank")
    (found,) = Driver().run([lambda: tree_pairs(tree, settings.make_judge(), settings)])
    assert found.value is not None
    assert all(pair.depth > 0 for pair in found.value.pairs), "a good and an unjudged action are not compared"
    assert all(RANK in pair.rejected.scores for pair in found.value.pairs)


def test_a_leaf_has_the_score_of_its_last_judged_step() -> None:
    config = MCTSConfig(episode=WARM, rollout=Sampling(), simulations=6, width=2, evaluate="score", ends="score")
    driver = Driver(Sampled([GOOD]), WordRetriever(), Scorer(designed=0.25, born=None, Velm=None))
    (outcome,) = driver.run([lambda: mcts_search(AGENT, QUESTION, config, 0)])
    assert outcome.value is not None
    scored = [node.scores["leaf"] for node in outcome.value.nodes if "leaf" in node.scores]
    assert scored
    assert set(scored) == {0.25}


def test_settings_say_how_derived_steps_count_and_refuse_to_where_they_cannot() -> None:
    assert RankConfig.read({"derived": "good"}).derived == "good"
    assert ExploreConfig.read({"evaluate": "gold", "derived": "faulty"}).derived == "faulty"
    assert GuideConfig.read({"by": "gold", "derived": "faulty"}).derived == "faulty"
    assert EnvConfig.read({"reward": "process", "derived": "good"}).derived == "good"
    for config, given in (
        (ExploreConfig, {}),
        (GuideConfig, {"by": "prm"}),
        (GRPOConfig, {"scorer": "prm"}),
        (GRPOConfig, {"mode": "outcome"}),
        (PRMConfig, {"objective": "values"}),
        (EnvConfig, {"reward": "outcome"}),
    ):
        with pytest.raises(StepladderError, match="derived"):
            config.read({**given, "derived": "good"})
    with pytest.raises(StepladderError, match="unjudged"):
        PairConfig.read({"derived": "bad"})
