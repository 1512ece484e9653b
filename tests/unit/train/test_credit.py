"""What episodes earn, step by step, against groups and trees worked by hand; and how those of an update are played."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from stepladder import Question, Step, Trajectory, Tree
from stepladder.agents import make_agent
from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.requests import Generate, Generation, empty_generation
from stepladder.core.trace import Action, ActionKind, Author, Node, Segment, StopReason
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig
from stepladder.train.grpo.config import GRPOConfig, RewardConfig, TreeConfig
from stepladder.train.grpo.credit.base import CreditedEpisode, Evidence
from stepladder.train.grpo.credit.credit_group import credit_group
from stepladder.train.grpo.credit.rewards import outcome_reward, step_rewards
from stepladder.train.grpo.credit.tree import branches_of
from stepladder.train.grpo.rollouts import RolloutBatch, Rollouts, check_single_context, episode_metrics, joined
from tests.support.samples import QUESTION, WordRetriever

QUERY, SUB_ANSWER, ANSWER, MALFORMED = (
    ActionKind.QUERY, ActionKind.SUB_ANSWER, ActionKind.ANSWER, ActionKind.MALFORMED,
)  # fmt: skip
REWARDS = RewardConfig()


def step(kind: ActionKind, content: str = "x", tokens: int = 1) -> Step:
    return Step((), Segment(Author.POLICY, "w" * tokens, (7,) * tokens), Action(kind, content))


def ended(*steps: Step, stop: StopReason = StopReason.ANSWERED, question: Question = QUESTION) -> Trajectory:
    return Trajectory(question, "prorag", steps, stop)


def answered(answer: str, tokens: int = 1) -> Trajectory:
    return ended(step(QUERY), step(SUB_ANSWER), step(ANSWER, answer, tokens))


# --- what an episode earns ------------------------------------------------------------------------------------------

#: Ten words of which one is right: precision 1/10, recall 1, so F1 is 2/11.
RAMBLING = "Velm or one of many other towns along river Oss"


@pytest.mark.parametrize(
    ("answer", "earned"),
    [
        ("Velm", 2 * 1.0 + 1),
        ("Velm on Oss", 2 * 0.5 + 1),  # one of three words: precision 1/3, recall 1
        (RAMBLING, 0.0 + 1),  # 2/11 is below min_f1
        ("Oss", 0.0 + 1),
    ],
)
def test_an_answer_earns_twice_its_f1_and_the_bonus(answer: str, earned: float) -> None:
    assert outcome_reward(answered(answer), REWARDS) == pytest.approx(earned)


def test_an_answer_that_just_reaches_the_least_f1_earns_it() -> None:
    assert outcome_reward(answered(RAMBLING), RewardConfig(min_f1=2 / 11)) == pytest.approx(2 * 2 / 11 + 1)
    assert outcome_reward(answered(RAMBLING), RewardConfig(min_f1=2 / 11 + 1e-9)) == 1.0


@pytest.mark.parametrize(
    "stop", [StopReason.MALFORMED, StopReason.STEP_LIMIT, StopReason.TOKEN_LIMIT, StopReason.CONTEXT_LIMIT]
)
def test_an_episode_that_does_not_come_to_an_answer_loses_the_bonus(stop: StopReason) -> None:
    cut = ended(step(QUERY), step(MALFORMED if stop is StopReason.MALFORMED else SUB_ANSWER), stop=stop)
    assert outcome_reward(cut, REWARDS) == -1.0
    assert outcome_reward(cut, RewardConfig(format_bonus=0)) == 0.0
    assert outcome_reward(answered("Velm"), RewardConfig(format_bonus=0, f1_weight=3)) == 3.0


def test_a_step_earns_its_score_between_0_and_1_and_for_its_format() -> None:
    broken = ended(step(QUERY), step(SUB_ANSWER), step(MALFORMED), stop=StopReason.MALFORMED)
    assert step_rewards(broken, [0.0, math.log(3), 0.0], REWARDS) == pytest.approx([0.5 + 0.5, 0.75 + 0.5, 0.5 - 0.5])
    assert step_rewards(broken, [-1000.0, 1000.0, 0.0], RewardConfig(step_format_bonus=0)) == [0.0, 1.0, 0.5]
    with pytest.raises(ValueError, match="zip"):
        step_rewards(broken, [0.0], REWARDS)


# --- what the episodes of a question teach --------------------------------------------------------------------------

GOOD, BAD = 1000.0, -1000.0  # logits of scores 1 and 0


def settings(**changes: Any) -> GRPOConfig:
    return GRPOConfig.read({"num_generations": 4, "batch_size": 4, "questions": 4, **changes})


def credit_tree(tree: Tree, settings: GRPOConfig) -> list[CreditedEpisode]:
    episodes, nodes = branches_of(tree)
    return credit_group(episodes, settings, Evidence(nodes=nodes))


def advantages(rows: Sequence[CreditedEpisode]) -> list[list[float]]:
    return [list(row.advantages) for row in rows]


def test_by_the_outcome_all_steps_of_an_episode_earn_the_same() -> None:
    # 3, 1, 1, -1: mean 1, variance 2
    group = [answered("Velm"), answered("Oss"), answered("Oss"), ended(step(MALFORMED), stop=StopReason.MALFORMED)]
    rows = credit_group(group, settings(mode="outcome"))
    assert [row.reward for row in rows] == [3, 1, 1, -1]
    root = math.sqrt(2)
    assert advantages(rows) == [pytest.approx(each) for each in ([root] * 3, [0] * 3, [0] * 3, [-root])]
    assert [row.has_signal for row in rows] == [True, False, False, True]
    assert all(all(row.loss_mask) for row in rows)


#: Two steps of 2 and 1 tokens that earn 1.0, and a malformed one of 1 token that earns 0.25.
PAIR = [
    ended(step(QUERY, tokens=2), step(ANSWER, "Velm")),
    ended(step(MALFORMED), stop=StopReason.MALFORMED),
]
PAIR_SCORES = [[0.0, 0.0], [math.log(3)]]


def test_by_the_process_steps_are_measured_against_all_tokens_of_the_group() -> None:
    # three tokens above and one below: 1/sqrt(3) and -sqrt(3)
    rows = credit_group(PAIR, settings(mode="process"), Evidence(PAIR_SCORES))
    assert advantages(rows) == [pytest.approx([3**-0.5] * 2), pytest.approx([-(3**0.5)])]


def test_by_the_process_steps_may_be_measured_against_all_steps_of_the_group() -> None:
    # two steps above and one below: 1/sqrt(2) and -sqrt(2)
    rows = credit_group(PAIR, settings(mode="process", normalize="steps"), Evidence(PAIR_SCORES))
    assert advantages(rows) == [pytest.approx([2**-0.5] * 2), pytest.approx([-(2**0.5)])]


def test_by_the_process_steps_may_be_measured_against_their_peers() -> None:
    # Answers score lower than queries, and are not blamed for it: they are an eighth above and below their mean.
    low, high = math.log(0.5 / 0.5), math.log(0.75 / 0.25)
    group = [ended(step(QUERY), step(ANSWER, "Velm")), ended(step(QUERY), step(ANSWER, "Oss"))]
    rows = credit_group(group, settings(mode="process", normalize="peers"), Evidence([[GOOD, high], [GOOD, low]]))
    root = math.sqrt(2)
    assert advantages(rows) == [pytest.approx([0, root]), pytest.approx([0, -root])]


def test_peers_stand_at_the_same_place() -> None:
    # The second searches score lower than the first. Only the two of them are compared, and so are the first ones.
    low, high = math.log(0.5 / 0.5), math.log(0.75 / 0.25)
    group = [ended(step(QUERY), step(QUERY)), ended(step(QUERY), step(QUERY))]
    rows = credit_group(group, settings(mode="process", normalize="peers"), Evidence([[GOOD, high], [GOOD, low]]))
    root = math.sqrt(2)
    assert advantages(rows) == [pytest.approx([0, root]), pytest.approx([0, -root])]


def test_a_step_without_a_format_is_measured_against_all_steps() -> None:
    # two steps at 1.0 of one token each, and a malformed one at 0.25: the mean of all is 0.75, so that one is at -0.5
    group = [ended(step(QUERY)), ended(step(QUERY)), ended(step(MALFORMED), stop=StopReason.MALFORMED)]
    rows = credit_group(group, settings(mode="process", normalize="peers"), Evidence([[0.0], [0.0], [math.log(3)]]))
    assert advantages(rows) == [[0], [0], pytest.approx([-math.sqrt(3)])]


def test_both_together_are_the_outcome_and_a_share_of_the_process() -> None:
    rows = credit_group(PAIR, settings(mode="dual"), Evidence(PAIR_SCORES))
    assert advantages(rows) == [pytest.approx([1 + 0.3 * 3**-0.5] * 2), pytest.approx([-1 - 0.3 * 3**0.5])]


def test_a_bad_step_of_a_right_episode_earns_less_than_a_good_one() -> None:
    group = [ended(step(QUERY), step(ANSWER, "Velm")), ended(step(QUERY), step(ANSWER, "Oss"))]
    rows = credit_group(group, settings(mode="dual", process_weight=0.5), Evidence([[GOOD, BAD], [GOOD, BAD]]))
    assert advantages(rows) == [pytest.approx([1.5, 0.5]), pytest.approx([-0.5, -1.5])]


def test_an_answer_may_be_left_to_the_outcome() -> None:
    # The searches earn 1 and 0: one spread above their mean and below. What the answers score is not looked at.
    group = [ended(step(QUERY), step(ANSWER, "Velm")), ended(step(QUERY), step(ANSWER, "Oss"))]
    for answers in ([GOOD, BAD], [BAD, BAD]):
        scores = [[GOOD, answers[0]], [BAD, answers[1]]]
        rows = credit_group(group, settings(mode="dual", process_weight=0.5, grade_answers=False), Evidence(scores))
        assert advantages(rows) == [pytest.approx([1.5, 1]), pytest.approx([-1.5, -1])]


def test_a_group_without_any_difference_teaches_nothing_by_its_outcome_but_may_by_its_steps() -> None:
    group = [ended(step(QUERY), step(ANSWER, "Velm")), ended(step(QUERY), step(ANSWER, "Velm"))]
    assert not any(row.has_signal for row in credit_group(group, settings(mode="outcome")))
    assert not any(row.has_signal for row in credit_group(group, settings(mode="dual"), Evidence([[0, 0], [0, 0]])))
    assert all(
        row.has_signal for row in credit_group(group, settings(mode="dual"), Evidence([[GOOD, BAD], [BAD, GOOD]]))
    )


# --- trees ----------------------------------------------------------------------------------------------------------


def small_tree() -> Tree:
    """A search with a right and a wrong answer behind it, and a wrong answer without one: 3, 1 and 1."""
    nodes = (
        Node(0, None, None),
        Node(1, 0, step(QUERY)),
        Node(2, 1, step(ANSWER, "Velm"), stop=StopReason.ANSWERED),
        Node(3, 0, step(ANSWER, "Oss"), stop=StopReason.ANSWERED),
        Node(4, 1, step(ANSWER, "Oss"), stop=StopReason.ANSWERED),
    )
    return Tree(QUESTION, "prorag", nodes)


def test_a_step_of_a_tree_earns_what_it_adds_and_is_learnt_from_once() -> None:
    # The search is worth 2, the question 5/3; the ends 3, 1, 1 spread by sqrt(8)/3.
    spread = math.sqrt(8) / 3
    rows = credit_tree(small_tree(), settings(mode="tree", tree={"credit": "gains"}))
    search = (2 - 5 / 3) / spread
    assert [row.reward for row in rows] == [3, 1, 1]
    assert advantages(rows) == [
        pytest.approx([search, 1 / spread]),
        pytest.approx([(1 - 5 / 3) / spread]),
        pytest.approx([search, -1 / spread]),
    ]
    assert [row.loss_mask for row in rows] == [(True, True), (True,), (False, True)]
    assert [row.trajectory.answer for row in rows] == ["Velm", "Oss", "Oss"]


def test_a_step_of_a_tree_earns_how_its_branch_stands_too() -> None:
    spread = math.sqrt(8) / 3
    rows = credit_tree(small_tree(), settings(mode="tree"))
    search = 2 * (2 - 5 / 3) / spread
    assert advantages(rows) == [
        pytest.approx([search, (1 + 3 - 5 / 3) / spread]),
        pytest.approx([2 * (1 - 5 / 3) / spread]),
        pytest.approx([search, (-1 + 1 - 5 / 3) / spread]),
    ]
    assert [row.loss_mask for row in rows] == [(True, True), (True,), (False, True)]


def test_branches_earn_what_their_ends_do_and_what_they_share_is_learnt_from_in_each() -> None:
    # Against all, 3, 1, 1 are sqrt(2), -1/sqrt(2), -1/sqrt(2); in its own tree the search has 3 and 1, the other 1.
    root = math.sqrt(2)
    rows = credit_tree(small_tree(), settings(mode="tree", tree=TreeConfig(credit="branches").model_dump()))
    assert advantages(rows) == [
        pytest.approx([root + 1] * 2),
        pytest.approx([-1 / root]),
        pytest.approx([-1 / root - 1] * 2),
    ]
    assert all(all(row.loss_mask) for row in rows)


def test_a_tree_whose_ends_are_alike_teaches_nothing() -> None:
    alike = small_tree()
    nodes = [replace(node, step=step(ANSWER, "Oss")) if node.stop else node for node in alike.nodes]
    for credit in ("steps", "gains", "branches"):
        rows = credit_tree(replace(alike, nodes=tuple(nodes)), settings(mode="tree", tree={"credit": credit}))
        assert len(rows) == 3
        assert not any(row.has_signal for row in rows)


# --- the episodes of an update --------------------------------------------------------------------------------------

AGENT = make_agent("prorag-brief")
QUESTIONS = [QUESTION, replace(QUESTION, id="q2", text="Where is Velm?", answers=("on the Oss",))]

#: What to say in a step: (number of the sample in the batch, number of the step) -> text.
Say = Callable[[int, int], Any]


class Counted(ScriptedEngine):
    """Says what it is told by sample and step, and counts what it is asked."""

    def __init__(self, say: Say) -> None:
        super().__init__(self.tell)
        self.say = say
        self.asked = 0
        self.seeds: list[int] = []

    def tell(self, request: Generate) -> Any:
        assert request.trajectory is not None
        self.asked += 1
        assert request.sampling.temperature == 1.0
        if request.trajectory.seed not in self.seeds:
            self.seeds.append(request.trajectory.seed)
        return self.say(self.seeds.index(request.trajectory.seed), len(request.trajectory.steps))


class Taste:
    """In place of a reward model: likes queries."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def score_logits(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        self.calls.append(len(trajectories))
        return [tuple(GOOD if each.action.kind is QUERY else BAD for each in played.steps) for played in trajectories]


def ask(what: str) -> str:
    return f"<step>Look.</step><subquery>{what}</subquery>"


def note(what: str) -> str:
    return f"<step>Read.</step><subanswer>{what}</subanswer>"


def say(what: str) -> str:
    return f"<step>So.</step><answer>{what}</answer>"


def rollouts(engine: ScriptedEngine, reward: Any = None, max_steps: int = 4, **changes: Any) -> Rollouts:
    wanted = settings(**{"mode": "outcome" if reward is None else "dual", **changes})
    return Rollouts(Driver(engine, WordRetriever()), AGENT, EpisodeConfig(max_steps, 1), wanted, reward)


#: One question, four samples.
FOUR: list[list[str]] = [
    [ask("Who?"), note("Ada Tarn"), say("Velm")],
    [ask("Where?"), note("Velm"), ask("where"), "nothing that can be parsed"],  # the same query again
    [say("Oss")],
    [ask("Who?"), note("Ada Tarn"), ask("Where?"), note("Velm")],  # out of steps
]


def test_what_is_measured_of_a_batch() -> None:
    engine = Counted(lambda sample, number: FOUR[sample][number])
    found = rollouts(engine, Taste()).generate(QUESTIONS[:1], seed=0)
    told = joined([found.metrics])
    assert [row.reward for row in found.rows] == [3, -1, 1, -1]
    assert told["reward"] == pytest.approx(2 / 4)
    assert told["f1"] == told["em"] == 1 / 4
    assert told["valid"] == 3 / 4
    assert told["searches"] == pytest.approx((1 + 2 + 0 + 2) / 4)
    assert told["step_limit"] == 1 / 4, "the second broke the format with its last step"
    assert told["answered"] == 2 / 4
    assert told["repeated"] == pytest.approx(1 / 12)
    assert told["step_score"] == pytest.approx(5 / 12)
    assert told["written"] == sum(len(text.encode()) for texts in FOUR for text in texts)
    assert (told["dropped_groups"], told["failed"]) == (0, 0)


def test_an_answer_with_the_last_step_is_no_step_limit() -> None:
    row = CreditedEpisode(ended(step(QUERY), step(SUB_ANSWER), step(QUERY), step(ANSWER)), 1.0, (0.0,) * 4, (True,) * 4)
    assert episode_metrics([row])["step_limit"].value == 0


def test_steps_that_say_nothing_new_are_counted() -> None:
    same = ended(step(QUERY, "Who is it?"), step(QUERY, "the who is it"), step(SUB_ANSWER, "?"), step(ANSWER, "x"))
    assert episode_metrics([CreditedEpisode(same, 1.0, (0.0,) * 4, (True,) * 4)])["repeated"].value == 2 / 4


def test_episodes_that_have_ended_cost_nothing_more_and_scores_are_asked_for_once() -> None:
    engine, taste = Counted(lambda sample, number: FOUR[sample % 4][number]), Taste()
    found = rollouts(engine, taste, batch_size=8).generate(QUESTIONS, seed=0)
    assert [row.trajectory.question.id for row in found.rows] == ["q1"] * 4 + ["q2"] * 4
    assert engine.asked == sum(len(row.trajectory.steps) for row in found.rows) == 24
    assert taste.calls == [8]


def test_without_a_reward_model_nothing_is_scored() -> None:
    found = rollouts(Counted(lambda sample, number: FOUR[sample][number])).generate(QUESTIONS[:1], seed=0)
    assert "step_score" not in found.metrics
    with pytest.raises(
        StepladderError, match="mode 'dual' needs a step scorer; the modes outcome and tree do not, nor does gain"
    ):
        rollouts(Counted(lambda sample, number: ""), mode="dual")


def play_with_one_broken(**changes: Any) -> RolloutBatch:
    def shaky(sample: int, number: int) -> Any:
        return BackendError("busy") if (sample, number) == (1, 1) else FOUR[sample][number]

    return rollouts(Counted(shaky), Taste(), **changes).generate(QUESTIONS[:1], seed=0)


def test_an_episode_that_breaks_is_counted_and_replaced_by_one_that_teaches_nothing() -> None:
    found = play_with_one_broken()
    assert len(found.rows) == 4
    assert found.metrics["failed"].value == 1
    blank = found.rows[-1]
    assert not blank.has_signal
    assert not any(blank.loss_mask)
    assert len(blank.advantages) == len(blank.trajectory.steps)
    # The others are measured and credited without it: 3, 1, -1.
    assert found.metrics["reward"].value == pytest.approx(1.0)
    spread = math.sqrt(8 / 3)
    plain = play_with_one_broken(mode="outcome").rows
    assert [row.advantages[0] for row in plain] == pytest.approx([2 / spread, 0, -2 / spread, 0])


def test_a_question_of_which_nothing_is_left_does_not_stop_the_others() -> None:
    engine = Counted(lambda sample, number: BackendError("busy") if sample < 4 else FOUR[sample - 4][number])
    found = rollouts(engine, Taste(), batch_size=8).generate(QUESTIONS, seed=0)
    assert [len(row.trajectory.steps) for row in found.rows] == [0, 0, 0, 0, 3, 4, 1, 4]
    assert found.metrics["failed"].value == 4
    assert found.metrics["dropped_groups"].value == 0.5
    assert [row.trajectory.question.id for row in found.rows] == ["q1"] * 4 + ["q2"] * 4


@pytest.mark.parametrize("mode", ["outcome", "tree"])
def test_where_everything_breaks_the_reason_is_told(mode: str) -> None:
    dead = rollouts(Counted(lambda sample, number: BackendError("the server is on fire")), mode=mode)
    with pytest.raises(StepladderError, match="every sampled episode failed; the first: the server is on fire"):
        dead.generate(QUESTIONS[:1], seed=0)


@pytest.mark.parametrize("mode", ["outcome", "tree"])
def test_where_no_prompt_fits_the_window_no_episode_has_a_step(mode: str) -> None:
    class Narrow(ScriptedEngine):
        def _reply(self, request: Generate) -> Generation:
            return empty_generation(request.context)

    assert not rollouts(Narrow(lambda request: ""), mode=mode).generate(QUESTIONS[:1], seed=0).has_steps


def test_a_flat_question_is_counted() -> None:
    found = rollouts(Counted(lambda sample, _: say("Velm" if sample else "Oss")), batch_size=8).generate(
        QUESTIONS, seed=0
    )
    assert found.metrics["dropped_groups"].value == 0.5


def test_the_same_seed_plays_the_same_and_a_question_that_comes_twice_is_played_anew() -> None:
    def by_seed(request: Generate) -> str:
        return say(str(request.seed))

    def texts(seed: int) -> list[str]:
        found = rollouts(ScriptedEngine(by_seed), batch_size=8).generate([QUESTION, QUESTION], seed)
        return [row.trajectory.steps[0].written.text for row in found.rows]

    assert texts(1) == texts(1)
    assert len(set(texts(1) + texts(2))) == 16


def test_the_rows_of_a_tree_are_as_many_as_samples() -> None:
    engine = Counted(lambda sample, number: FOUR[0][number])
    found = rollouts(engine, mode="tree", tree={"stems": 1}).generate(QUESTIONS[:1], seed=0)
    assert len(found.rows) == 4
    assert sum(sum(row.loss_mask) for row in found.rows) == engine.asked < 12, (
        "what is shared is written and learnt once"
    )
    assert "step_score" not in found.metrics


# --- agents whose episodes are not one text -------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["reasonrag", "reasonrag-brief"])
def test_an_agent_that_begins_new_contexts_is_refused(agent: str) -> None:
    with pytest.raises(StepladderError, match=f"the agent '{agent}' starts a new context .*such as prorag"):
        check_single_context(make_agent(agent))


@pytest.mark.parametrize("agent", ["prorag", "prorag-brief", "rag", "cot", "direct"])
def test_an_agent_whose_text_grows_is_taken(agent: str) -> None:
    check_single_context(make_agent(agent))
