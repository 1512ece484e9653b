"""Evidence for estimators: what is fetched for each, once per batch, what it costs, and what is refused before."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from stepladder.agents import make_agent
from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.requests import Generate
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig
from stepladder.train.grpo.credit.requirements import check_questions
from stepladder.train.grpo.rollouts import RolloutBatch, Rollouts
from tests.support.credit import settings
from tests.support.samples import QUESTION, WordRetriever

AGENT = make_agent("prorag-brief")
GAIN = {"mode": "gain", "outcome_weight": 0.0, "process_weight": 1.0}


def ask(what: str) -> str:
    return f"<step>Look.</step><subquery>{what}</subquery>"


def note(what: str) -> str:
    return f"<step>Read.</step><subanswer>{what}</subanswer>"


def say(what: str) -> str:
    return f"<step>So.</step><answer>{what}</answer>"


class Known(ScriptedEngine):
    """An episode is a search for the tower, a sub-answer and an answer, which the seed of the last request decides."""

    def __init__(
        self, answer: Callable[[int, Trajectory], Any] = lambda seed, _: "Velm" if seed % 2 else "Oss"
    ) -> None:
        super().__init__(self.tell)
        self.answer = answer
        self.requests = 0

    def tell(self, request: Generate) -> Any:
        state = request.trajectory
        assert state is not None
        self.requests += 1
        if len(state.steps) < 2:
            return [ask("Orm Tower"), note("Ada Tarn")][len(state.steps)]
        said = self.answer(request.seed, state)
        return said if isinstance(said, Exception) else say(said)


def rollouts(engine: ScriptedEngine, judge: Any = None, likelihood: Any = None, **changes: Any) -> Rollouts:
    driver, episode = Driver(engine, WordRetriever()), EpisodeConfig(max_steps=4, k=1)
    return Rollouts(driver, AGENT, episode, settings(**changes), judge, likelihood=likelihood)


def batch(engine: ScriptedEngine, questions: Sequence[Question] = (QUESTION,), **changes: Any) -> RolloutBatch:
    return rollouts(engine, **changes).generate(questions, seed=0)


def written(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)


# --- continuations


def test_every_state_but_the_first_is_continued_and_equal_states_once() -> None:
    engine = Known()
    found = batch(engine, **GAIN, potential="monte-carlo", num_continuations=3)
    # Four episodes of three requests. All share two states; from the first two steps are left, from the second one.
    assert engine.requests == 4 * 3 + 3 * 2 + 3 * 1
    answers = [row.trajectory.steps[-1].written.text for row in found.rows]
    more = written([note("Ada Tarn")] * 3)
    own = sum(len(step.written.tokens) for row in found.rows for step in row.trajectory.steps)
    extra = found.metrics["written"].value - own - more
    assert extra in {written([say("Velm")] * right + [say("Oss")] * (6 - right)) for right in range(7)}
    assert "scored_tokens" not in found.metrics
    assert len(set(answers)) == 2, "an example in which the answers differ"
    assert found.metrics["continuations"].value == 3 * 2  # of two different states


def test_the_question_alone_is_worth_the_mean_of_its_episodes() -> None:
    found = batch(Known(), **GAIN, potential="monte-carlo", num_continuations=64)
    right = [row.trajectory.answer == "Velm" for row in found.rows]
    assert 0 < sum(right) < 4
    for row, correct in zip(found.rows, right):
        # Half of the continuations of any state are right; the answer decides.
        assert sum(row.advantages) == pytest.approx(correct - sum(right) / 4)
        assert row.advantages[1] == pytest.approx(0, abs=0.35)
        assert row.advantages[2] == pytest.approx(correct - 0.5, abs=0.25)


def test_continuations_do_not_depend_on_how_processes_share_the_questions() -> None:
    other = replace(QUESTION, id="q2")
    together = rollouts(Known(), **GAIN, potential="agreement", batch_size=8).generate([QUESTION, other], 0)
    alone = rollouts(Known(), **GAIN, potential="agreement", batch_size=8).generate([other], 0, first=1)
    assert [row.advantages for row in together.rows[4:]] == [row.advantages for row in alone.rows]


def test_a_refill_whose_continuations_all_break_goes_on() -> None:
    def broken(seed: int, state: Trajectory) -> Any:
        return BackendError("busy")

    source = rollouts(Known(broken), **GAIN, potential="agreement")
    groups = [[row.trajectory for row in batch(Known(), mode="outcome").rows]]
    playing = (source.driver, source.agent, source.episode, groups, 0, [0])
    with pytest.raises(StepladderError, match="busy"):
        source.evidence.continue_states(*playing)
    continued = source.evidence.continue_states(*playing, is_first=False)
    assert (continued.episodes, continued.written, continued.read) == (0, 0, 0)


def test_a_continuation_that_breaks_is_left_out() -> None:
    def shaky(seed: int, state: Trajectory) -> Any:
        return BackendError("busy") if seed % 3 == 0 else "Velm"

    found = batch(Known(shaky), **GAIN, potential="monte-carlo", num_continuations=6)
    kept = [row for row in found.rows if any(row.loss_mask)]
    assert kept
    assert all(row.advantages == pytest.approx((0, 0, 0)) for row in kept), "all that is left is right"


# --- scores and likelihoods


def test_the_likelihood_of_answers_is_asked_for_once_and_counted() -> None:
    asked: list[int] = []

    def likelihood(trajectories: Sequence[Trajectory]) -> tuple[list[list[float | None]], int]:
        asked.append(len(trajectories))
        return [[-2.0, -1.0, None] for _ in trajectories], 123

    other = replace(QUESTION, id="q2")
    found = batch(Known(), [QUESTION, other], likelihood=likelihood, **GAIN, potential="likelihood", batch_size=8)
    assert asked == [8]
    assert found.metrics["scored_tokens"].value == 123
    assert all(row.advantages[0] == pytest.approx(0.3679 - 0.1353, abs=1e-4) for row in found.rows)
    with pytest.raises(StepladderError, match="needs the policy in training"):
        rollouts(Known(), **GAIN, potential="likelihood")


def test_tokens_that_a_reward_model_reads_are_counted_and_those_of_the_judge_are_none() -> None:
    class Even:
        def score_logits(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
            return [(0.0,) * len(each.steps) for each in trajectories]

    found = batch(Known(), judge=Even(), mode="dual")
    episodes = [row.trajectory for row in found.rows]
    assert found.metrics["scored_tokens"].value == sum(len(part.tokens) for each in episodes for part in each.context())
    assert "scored_tokens" not in batch(Known(), judge=Even(), mode="dual", scorer="gold").metrics


def test_recall_needs_nothing_but_the_episodes() -> None:
    engine = Known()
    found = batch(engine, **GAIN, potential="recall")
    assert engine.requests == 4 * 3
    for row in found.rows:
        right = row.trajectory.answer == "Velm"
        assert row.advantages == pytest.approx((0.5, 0, right - 0.5)), "the search finds one of two gold passages"


# --- what is refused before training


def test_questions_without_gold_passages_have_no_recall_and_the_error_names_what_works() -> None:
    bare = replace(QUESTION, id="bare", gold_passages=(), hops=())
    with pytest.raises(StepladderError) as refused:
        check_questions([QUESTION, bare], settings(**GAIN, potential="recall"))
    said = str(refused.value)
    assert said.startswith("potential: recall needs gold passages, which 1 of 2 questions do not have, such as bare.")
    assert "gain with potential likelihood, monte-carlo, agreement; with" in said
    assert "or scorer: gold also dual, process and first-error" in said
    check_questions([QUESTION], settings(**GAIN, potential="recall"))


def test_only_questions_of_atlas_have_a_graph() -> None:
    with pytest.raises(StepladderError, match="potential: graph needs a place in Atlas's graph of facts, which 1 of 1"):
        check_questions([QUESTION], settings(**GAIN, potential="graph"))
    check_questions([replace(QUESTION, id="atlas-2000-0-train-00001")], settings(**GAIN, potential="graph"))


@pytest.mark.parametrize("mode", ["dual", "process", "first-error"])
def test_the_gold_judge_needs_decompositions(mode: str) -> None:
    bare = replace(QUESTION, hops=())
    with pytest.raises(StepladderError, match="scorer: gold needs questions with a gold decomposition, and none of 1"):
        check_questions([bare], settings(mode=mode, scorer="gold"))
    check_questions([bare, QUESTION], settings(mode=mode, scorer="gold"))
    check_questions([bare], settings(mode=mode))


@pytest.mark.parametrize("mode", ["outcome", "tree"])
def test_answers_are_enough_for_some(mode: str) -> None:
    check_questions([Question("q", "Where?", ("Velm",))], settings(mode=mode))
    for potential in ("monte-carlo", "likelihood", "agreement"):
        check_questions([Question("q", "Where?", ("Velm",))], settings(**GAIN, potential=potential))
