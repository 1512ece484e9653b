"""The episodes of one update: played by the policy as it is, scored, credited, and measured.

In: questions and a seed. Out: a `RolloutBatch` batch: as many rows as were asked for, and what can be said of them in
numbers. Episodes go through the driver like any others, so finished ones cost nothing more, and tokens are those that
the engine wrote. All steps of a batch are scored in one call.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import normalize, score
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import StepScorer, raise_errors, sigmoid
from stepladder.core.trace import (
    Action,
    ActionKind,
    Author,
    Passage,
    Question,
    Segment,
    Step,
    StopReason,
    Trajectory,
    Tree,
)
from stepladder.driver import Driver, Outcome
from stepladder.explore.branching import branching
from stepladder.explore.episode import EpisodeConfig, episode, new_segments
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit import CreditedEpisode, credit_group, credit_tree
from stepladder.train.loop.training_loop import Precision


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The episodes of an update, those of a question in a row."""

    rows: tuple[CreditedEpisode, ...]
    #: Means over the batch by name, as they go into the curves.
    measures: dict[str, float]


class Rollouts:
    """Plays questions with a policy that is being trained."""

    def __init__(
        self,
        driver: Driver,
        agent: Agent,
        episode: EpisodeConfig,
        settings: GRPOConfig,
        reward: StepScorer | None,
        *,
        playing: Precision = nullcontext,
        scoring: Precision = nullcontext,
    ) -> None:
        """`playing`, `scoring`: the precision in which the policy writes, and the reward model reads."""
        if settings.scores_steps and reward is None:
            raise StepladderError(f"mode '{settings.mode}' needs a reward model; without one take outcome or tree")
        check_single_context(agent)
        self.driver, self.agent, self.settings, self.reward = driver, agent, settings, reward
        self.playing, self.scoring = playing, scoring
        sampling = replace(episode.sampling, temperature=settings.temperature, top_p=settings.top_p)
        self.episode = replace(episode, sampling=sampling)

    def play(self, questions: Sequence[Question], seed: int) -> RolloutBatch:
        """`samples` rows for each question."""
        began = time.monotonic()
        if self.settings.mode == "tree":
            with self.playing():
                groups, failed = self._trees(questions, seed)
            scores, scored = None, time.monotonic()
        else:
            with self.playing():
                sampled, failed = self._samples(questions, seed)
            scored = time.monotonic()
            scores = self._scores([trajectory for group in sampled for trajectory in group])
            groups = self._credited(sampled, scores)
        ended = time.monotonic()
        if self.driver.engine is not None:
            self.driver.engine.on_idle()  # the weights will be others, and learning needs the memory
        if not any(groups):
            raise StepladderError(
                "no sampled episode has a single step: the prompts leave no room in the model's window. Take a model "
                "with a longer one, or fewer passages a search (k)"
            )
        filled = [self._filled(group, question) for group, question in zip(groups, questions, strict=True)]
        flat = sum(not any(row.teaches for row in group) for group in groups)
        measures = measured([row for group in groups for row in group]) | {
            "dropped_groups": flat / len(questions),
            "failed": float(failed),
            "rollout_seconds": round(scored - began, 4),
            "scoring_seconds": round(ended - scored, 4),
        }
        if scores is not None:
            measures["step_score"] = float(np.mean([sigmoid(score) for score in scores]))
        return RolloutBatch(tuple(row for group in filled for row in group), measures)

    def _samples(self, questions: Sequence[Question], seed: int) -> tuple[list[list[Trajectory]], int]:
        def job(place: int, sample: int) -> Callable[[], Algorithm[Trajectory]]:
            own = seed_of(seed, questions[place].id, place, sample)  # by place: a question may come twice in an update
            return lambda: episode(self.agent, questions[place], self.episode, own)

        count = self.settings.num_generations
        outcomes = self.driver.run([job(place, sample) for place in range(len(questions)) for sample in range(count)])
        played = [each.value for each in _expect_some(outcomes)]
        groups = [
            [trajectory for trajectory in played[start : start + count] if trajectory is not None and trajectory.steps]
            for start in range(0, len(played), count)
        ]
        return groups, len(played) - sum(map(len, groups))

    def _trees(self, questions: Sequence[Question], seed: int) -> tuple[list[list[CreditedEpisode]], int]:
        stems = self.settings.tree.stems
        branches = self.settings.num_generations - stems

        def job(place: int) -> Callable[[], Algorithm[Tree]]:
            question, own = questions[place], seed_of(seed, questions[place].id, place)
            return lambda: branching(self.agent, question, self.episode, own, stems=stems, branches=branches)

        outcomes = _expect_some(self.driver.run([job(place) for place in range(len(questions))]))
        groups = [[] if each.value is None else credit_tree(each.value, self.settings) for each in outcomes]
        return groups, len(questions) * self.settings.num_generations - sum(map(len, groups))

    def _scores(self, played: Sequence[Trajectory]) -> list[float] | None:
        """The scores of all steps, one trajectory after the other."""
        if not self.settings.scores_steps:
            return None
        assert self.reward is not None
        with self.scoring():
            return [score for scores in raise_errors(self.reward.score_logits(played)) for score in scores]

    def _credited(self, groups: Sequence[Sequence[Trajectory]], scores: Sequence[float] | None) -> list[list[CreditedEpisode]]:
        given = iter(scores or ())
        found: list[list[CreditedEpisode]] = []
        for group in groups:
            own = None if scores is None else [[next(given) for _ in each.steps] for each in group]
            found.append(credit_group(group, own, self.settings) if group else [])
        return found

    def _filled(self, group: Sequence[CreditedEpisode], question: Question) -> list[CreditedEpisode]:
        """As many rows as are expected: in place of a broken episode stands one that teaches nothing."""
        missing = self.settings.num_generations - len(group)
        if missing <= 0:
            return list(group[: self.settings.num_generations])
        if not group:
            return [CreditedEpisode(Trajectory(question, self.agent.name), 0.0, (), ())] * missing
        blank = replace(group[0], advantages=(0.0,) * len(group[0].advantages), learns=(False,) * len(group[0].learns))
        return [*group, *[blank] * missing]


def measured(rows: Sequence[CreditedEpisode]) -> dict[str, float]:
    """What can be said of some episodes, as means."""
    played = [row.trajectory for row in rows]
    steps = [step for trajectory in played for step in trajectory.steps]
    scores = [score(trajectory) for trajectory in played]
    stops = Counter(trajectory.stop for trajectory in played)
    return {
        "reward": float(np.mean([row.reward for row in rows])),
        "f1": float(np.mean([each.f1 for each in scores])),
        "em": float(np.mean([each.em for each in scores])),
        "valid": float(np.mean([_is_valid(trajectory) for trajectory in played])),
        "searches": float(np.mean([len(trajectory.queries) for trajectory in played])),
        "step_limit": stops[StopReason.STEP_LIMIT] / len(played),
        "answered": stops[StopReason.ANSWERED] / len(played),
        "repeated": sum(map(_repeats, played)) / max(len(steps), 1),
        # Branches of a tree share steps, which were written once.
        "written": float(sum(len(step.written.tokens) for step in {id(step): step for step in steps}.values())),
    }


def check_single_context(agent: Agent) -> None:
    """Refuse an agent that reads a context of its own for each step, as far as its first two steps tell."""
    if ActionKind.QUERY not in agent.kinds:
        return
    start = Trajectory(Question("", "?", ()), agent.name)
    query, found = Action(ActionKind.QUERY, "?"), (Passage("", "?", "?"),)
    state = start.extend(Step(agent.render(start), Segment(Author.POLICY, "?"), query, found))
    _, restarts = new_segments(state, agent.render(state))
    if restarts:
        raise multiple_contexts(agent.name)


def multiple_contexts(agent: str) -> StepladderError:
    """The error of an agent whose episodes cannot be read in one pass."""
    return StepladderError(
        f"the agent '{agent}' begins a new context with its steps, so an episode is not one text; reinforcement "
        "learning needs an agent whose transcript grows, such as prorag (DPO does not)"
    )


def _is_valid(trajectory: Trajectory) -> bool:
    return all(step.action.kind is not ActionKind.MALFORMED for step in trajectory.steps)


def _repeats(trajectory: Trajectory) -> int:
    """Steps that say nothing new: a query that was made before, or one without any word in it."""
    seen: set[str] = set()
    repeats = 0
    for step in trajectory.steps:
        said = normalize(step.action.content)
        if step.action.kind is ActionKind.QUERY:
            repeats += said in seen or not said
            seen.add(said)
        elif step.action.kind is not ActionKind.MALFORMED:
            repeats += not said
    return repeats


def _expect_some(outcomes: Sequence[Outcome[Any]]) -> Sequence[Outcome[Any]]:
    reasons = [outcome.failure.reason for outcome in outcomes if outcome.failure is not None]
    if reasons and len(reasons) == len(outcomes):
        raise StepladderError(f"every sampled episode failed; the first: {reasons[0]}")
    return outcomes
