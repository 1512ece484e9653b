"""Evidence for credit assignment: what an estimator needs beside the episodes, fetched once per batch.

In: the episodes of an update. Out: the `Evidence` of each group, only what the estimator of the settings needs, and the
tokens that were spent on it. The policy generates continuations, so they are made while its weights are in the
engine; step scores and the likelihood of answers need one call each for all episodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import StepScorer, raise_errors
from stepladder.core.trace import Trajectory
from stepladder.data.atlas.entity_graph import distances_to_answer
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig, run_to_end
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import Evidence, Need
from stepladder.train.transcripts.sampled_episodes import expect_some

T = TypeVar("T")
#: The episodes of each question.
Groups = Sequence[Sequence[Trajectory]]
#: Gives log-probs per trajectory and state, and the tokens that were read.
Likelihood = Callable[[Sequence[Trajectory]], tuple[list[list[float | None]], int]]


@dataclass(frozen=True, slots=True)
class Continuations:
    """Episodes that continue from the states of others."""

    #: By group, episode and state.
    found: Sequence[Sequence[Sequence[Sequence[Trajectory]]]] | None = None
    #: How many, the tokens that the policy wrote for them, and those that it read.
    episodes: int = 0
    written: int = 0
    read: int = 0


@dataclass(frozen=True, slots=True)
class FetchedEvidence:
    """The evidence of every group."""

    groups: list[Evidence]
    #: Logits of all steps that were judged, for the metrics.
    logits: list[float] = field(default_factory=list)
    #: Tokens that were read to score steps or answers; None if nothing was read.
    read: int | None = None


class EvidenceSource:
    """Fetches the evidence that the estimator of some settings needs."""

    def __init__(self, config: GRPOConfig, scorer: StepScorer | None, likelihood: Likelihood | None) -> None:
        if config.scores_steps and scorer is None:
            raise StepladderError(
                f"mode '{config.mode}' needs a step scorer; the modes outcome and tree do not, nor does gain with a "
                "potential other than prm"
            )
        if Need.ANSWER_LOGPS in config.needs and likelihood is None:
            raise StepladderError("potential: likelihood needs the policy in training, as an AnswerLikelihood")
        self.config, self.scorer, self.likelihood = config, scorer, likelihood

    def continue_states(
        self,
        driver: Driver,
        agent: Agent,
        episode: EpisodeConfig,
        groups: Groups,
        seed: int,
        places: Sequence[int],
        *,
        is_first: bool = True,
    ) -> Continuations:
        """Play on from every state of every episode, if the estimator needs it. `places`: of the groups among all of
        the update, part of the seed. `is_first`: that all fail is an error, except in the few groups of a refill.

        From the question alone the episodes of the group continue. Equal states of a group are continued once.
        """
        if Need.CONTINUATIONS not in self.config.needs:
            return Continuations()
        count = self.config.num_continuations
        states = {
            key: replace(each, steps=each.steps[:state], stop=None)
            for number, group in zip(places, groups, strict=True)
            for each in group
            for state in range(1, len(each.steps))
            for key in [_key(number, each, state)]
        }
        jobs = [
            partial(run_to_end, agent, state, episode, seed_of(seed, "continuation", *key, which))
            for key, state in states.items()
            for which in range(count)
        ]
        outcomes = driver.run(jobs) if jobs else []
        ended = iter([each.value for each in (expect_some(outcomes) if jobs and is_first else outcomes)])
        by_state = {key: [each for _ in range(count) if (each := next(ended)) is not None] for key in states}
        steps = [
            step for key, some in by_state.items() for each in some for step in each.steps[len(states[key].steps) :]
        ]
        found = [
            [[group, *(by_state[_key(number, each, state)] for state in range(1, len(each.steps)))] for each in group]
            for number, group in zip(places, groups, strict=True)
        ]
        return Continuations(
            found,
            sum(map(len, by_state.values())),
            sum(len(step.written.tokens) for step in steps),
            sum(step.usage.read for step in steps),
        )

    def fetch(
        self, groups: Groups, nodes: Sequence[Sequence[Sequence[int]]], continued: Continuations
    ) -> FetchedEvidence:
        """The evidence of all groups. `nodes`: of trees, by group and episode."""
        needs, everything = self.config.needs, [each for group in groups for each in group]
        found, read, logits = [Evidence() for _ in groups], None, list[float]()
        if Need.STEP_SCORES in needs:
            assert self.scorer is not None
            scores = raise_errors(self.scorer.score_logits(everything))
            found = [replace(one, step_scores=own) for one, own in zip(found, _split(scores, groups))]
            logits = [logit for own in scores for logit in own if logit is not None]
            if self.config.needs_reward_model:
                read = sum(len(segment.tokens) for each in everything for segment in each.context())
        if Need.ANSWER_LOGPS in needs:
            assert self.likelihood is not None
            logps, read = self.likelihood(everything)
            found = [replace(one, answer_logps=own) for one, own in zip(found, _split(logps, groups))]
        if Need.DISTANCES in needs:
            found = [
                replace(one, distances=distances_to_answer(group[0].question)) if group else one
                for one, group in zip(found, groups)
            ]
        if continued.found is not None:
            found = [replace(one, continuations=own) for one, own in zip(found, continued.found)]
        if Need.NODES in needs:
            found = [replace(one, nodes=own) for one, own in zip(found, nodes, strict=True)]
        return FetchedEvidence(found, logits, read)


def _key(group: int, trajectory: Trajectory, state: int) -> tuple[int | str, ...]:
    """Equal for the states of a group that the same texts led to."""
    return group, *(step.written.text for step in trajectory.steps[:state])


def _split(values: Sequence[T], groups: Groups) -> list[list[T]]:
    """One value per episode, by group."""
    remaining = iter(values)
    return [[next(remaining) for _ in group] for group in groups]
