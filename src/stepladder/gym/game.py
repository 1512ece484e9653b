"""What environments are played with: questions, a search, limits, and what is earned.

In: the arguments of `gymnasium.make`. Out: a `Game`, which one environment plays alone (`environment.py`) or many play
together (`vector.py`): `play` lets the turns of all of them go on at once, so that their searches make one batch, and
their scores another.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, InstanceOf

from stepladder.agents import make_agent
from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Question
from stepladder.data import DATA_SETS, DataSet, load_dataset
from stepladder.driver import Driver, Outcome
from stepladder.explore.episode import EpisodeConfig
from stepladder.gym import ENV_ID
from stepladder.gym.rewards import Metric, Reward, RewardKind, open_scorer
from stepladder.gym.spaces import AnyText
from stepladder.gym.turn import Turn
from stepladder.oracle.agent_check import check_agent
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.factory import load_retriever
from stepladder.retrieval.index.bm25 import BM25Index

Place = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)]


class GameConfig(Config):
    """The arguments of an environment."""

    #: How a question is put to the policy and its text is read: the name of an agent, or a Python file with one.
    agent: Place = "prorag"
    #: A data set by name, or a question file. `atlas-small` unless questions are given.
    data: Place | None = None
    #: Which of its questions; `train`, or all of a question file, unless named.
    split: str | None = None
    #: Seed of the Atlas world.
    world_seed: int = 0
    #: Questions of your own, in place of those of the data set.
    questions: tuple[InstanceOf[Question], ...] | None = Field(default=None, min_length=1)
    #: What is searched: an index folder or URLs of search servers; without one, the data set's own passages.
    index: Place | None = None
    #: The same as an object. It is yours to close.
    retriever: InstanceOf[Retriever] | None = None
    #: Passages a search returns.
    k: int = Field(default=3, ge=1)
    #: Most steps of an episode; a search and its sub-answer are two.
    max_steps: int = Field(default=12, ge=1)
    #: What is earned (`rewards.py`).
    reward: RewardKind = "outcome"
    metric: Metric = "f1"
    process_weight: float = Field(default=1.0, ge=0)
    #: Who scores steps: the folder of a process reward model, or a scorer; the gold judge unless given.
    scorer: Any = None
    #: Most characters of an action. A longer one is cut, and thereby malformed.
    max_action: int = Field(default=10_000, ge=1)
    #: Most characters that the policy can read. A transcript that outgrows them ends its episode (`context_limit`).
    max_observation: int = Field(default=200_000, ge=1)


class Game:
    """Opens what the arguments name, and lets episodes go on."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        settings = GameConfig.read(arguments, ENV_ID)
        _expect_no_contradiction(settings)
        self.settings = settings
        self.agent = make_agent(settings.agent, check_agent)
        self.limits = EpisodeConfig(settings.max_steps, settings.k)
        self.reward = Reward(settings.reward, settings.metric, settings.process_weight)
        own = settings.questions
        data = None if own is not None and settings.data is None else _open(settings.data or "atlas-small", settings)
        self.questions = own if own is not None else _split(data, settings)
        for question in self.questions:
            self.check(question)
        scorer = open_scorer(settings.scorer) if self.reward.counts_steps else None
        given = settings.retriever
        self._opened = self._open_index(data) if given is None else None
        self.driver: Driver | None = Driver(retriever=self._opened if given is None else given, scorer=scorer)

    def spaces(self) -> tuple[AnyText, AnyText]:
        """Of observations, which at the end of an episode hold the last action too, and of actions."""
        settings = self.settings
        return AnyText(settings.max_observation + settings.max_action), AnyText(settings.max_action)

    def question(self, named: object) -> Question:
        """The question with that id, or one of the caller's own."""
        if isinstance(named, Question):
            self.check(named)
            return named
        found = next((question for question in self.questions if question.id == named), None)
        if found is not None:
            return found
        near = get_close_matches(str(named), [question.id for question in self.questions], n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise StepladderError(
            f"options: expected a Question or the id of one of {len(self.questions)} questions, found {named!r}.{hint}"
        )

    def check(self, question: Question) -> None:
        """Raise where a question cannot be rewarded."""
        if self.reward.counts_answers and not question.answers:
            raise StepladderError(
                f"question '{question.id}' has no accepted answer, which reward='{self.reward.kind}' needs: leave it "
                "out, or take reward='process' with a process reward model as scorer"
            )

    def play(self, turns: Sequence[Algorithm[Turn]]) -> list[Outcome[Turn]]:
        """Let these turns go on together. One that breaks does so alone; an error where all of them do."""
        if self.driver is None:
            raise StepladderError("the environment was closed: make a new one")
        outcomes = self.driver.run([partial(_itself, turn) for turn in turns])
        failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
        if failures and len(failures) == len(outcomes):
            raise StepladderError(f"the step could not be played: {failures[0].reason}")
        return outcomes

    def close(self) -> None:
        """Let go of the index, if it was opened here."""
        self.driver = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _open_index(self, data: DataSet | None) -> Retriever | None:
        if not self.agent.searches:
            return None
        if self.settings.index is not None:
            return load_retriever(self.settings.index)
        if data is None or data.passages is None:
            raise StepladderError(
                f"the agent '{self.agent.name}' searches, and there is nothing to search: add index= (a folder or the "
                "URL of a server), retriever= (an object), or data= with passages of its own, such as 'atlas-small'"
            )
        return BM25Index.from_passages(data.passages)


def _itself(turn: Algorithm[Turn]) -> Algorithm[Turn]:
    return turn


def _expect_no_contradiction(settings: GameConfig) -> None:
    for one, other, because in (
        ("index", "retriever", "both say what is searched"),
        ("questions", "split", "questions of your own have no splits"),
    ):
        if getattr(settings, one) is not None and getattr(settings, other) is not None:
            raise StepladderError(f"{ENV_ID}: found {one} and {other}; leave out one of them, {because}")
    if settings.scorer is not None and settings.reward == "outcome":
        raise StepladderError(
            f"{ENV_ID}: reward='outcome' takes no scorer; take reward='process' or 'both', or no scorer"
        )


def _open(name: str, settings: GameConfig) -> DataSet:
    return _world(name, settings.world_seed) if name in DATA_SETS else load_dataset(name)


@lru_cache(maxsize=1)
def _world(name: str, seed: int) -> DataSet:
    """A generated data set. It takes a second to make, and environments are made by the dozen, all alike."""
    return load_dataset(name, seed=seed)


def _split(data: DataSet | None, settings: GameConfig) -> tuple[Question, ...]:
    assert data is not None
    only = next(iter(data.questions)) if len(data.questions) == 1 else "train"
    return data.split(settings.split or only)
