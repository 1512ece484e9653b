"""The configuration of an environment, and what it opens: questions, retriever, limits, scorer, a server's model.

In: the arguments of `gymnasium.make`. Out: an `EnvBackend` for one environment or shared by many (`environment.py`):
`run` advances the episodes of all of them together, so that their searches and scores are batched.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, InstanceOf, model_validator

from stepladder.agents import make_agent, name_agent
from stepladder.core.config import Config
from stepladder.core.errors import StepladderError, nearest
from stepladder.core.requests import Algorithm, Result, Sampling
from stepladder.core.step_scorer import Derived, StepScorer
from stepladder.core.trace import Question
from stepladder.data import DataSet, load_dataset
from stepladder.driver import Driver, Failure, Outcome
from stepladder.engines.openai.server_config import ServerConfig
from stepladder.explore.episode import EpisodeConfig
from stepladder.gym import ENV_ID
from stepladder.gym.spaces import AnyText
from stepladder.oracle.agent_check import check_agent
from stepladder.oracle.step_judge import GoldScorer
from stepladder.pipeline.resources import PromptingConfig
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.factory import load_retriever
from stepladder.retrieval.index.bm25 import BM25Index

PathStr = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)]


class EnvConfig(Config):
    """The arguments of an environment."""

    #: The agent, which renders prompts and parses actions: a name, or a Python file.
    agent: PathStr = "prorag"
    #: How actions are read (`docs/formats.md`). auto: strict, or lenient with a server. constrained needs a server.
    format: Literal["auto", "strict", "lenient", "constrained"] = "auto"
    #: Malformed actions that are answered with a hint, and whether the answer is asked for at a limit. Default: 0 and
    #: false, or 2 and true if the format is lenient.
    max_format_errors: int | None = Field(default=None, ge=0)
    force_answer: bool | None = None
    #: Searches per episode; then the answer is due. Default: no limit.
    max_searches: int | None = Field(default=None, ge=1)
    #: Whether observations end with the beginning of the next action (`<step>`).
    prime: bool = False
    #: Files that replace the agent's prompt, and its hint after a malformed action.
    prompt: PathStr | None = None
    hint: PathStr | None = None
    #: The name of a data set, or a question file. Default: `atlas-small`, unless `questions` is set.
    data: PathStr | None = None
    #: The split. Default: `train`, or all questions of a question file.
    split: str | None = None
    #: Seed of the Atlas world.
    world_seed: int = 0
    #: Your own questions, instead of a data set's.
    questions: tuple[InstanceOf[Question], ...] | None = Field(default=None, min_length=1)
    #: The index: a folder or URLs of search servers. Default: the data set's own passages.
    index: PathStr | None = None
    #: A retriever object, instead of an index. The caller closes it.
    retriever: InstanceOf[Retriever] | None = None
    #: Passages per search.
    k: int = Field(default=3, ge=1)
    #: Maximum number of steps per episode; a search and its sub-answer are two.
    max_steps: int = Field(default=12, ge=1)
    #: `outcome`: `metric` of the answer at the end of an episode; 0 without an answer and at all other steps.
    #: `process`: the score of every step, between 0 and 1. `both`: outcome + `process_weight` * process.
    reward: Literal["outcome", "process", "both"] = "outcome"
    metric: Literal["f1", "em"] = "f1"
    process_weight: float = Field(default=1.0, ge=0)
    #: The step scorer: the folder of a process reward model (the sigmoid of its logits), or any `StepScorer`. Default:
    #: the gold judge (1 good, 0 faulty). A step that the scorer cannot judge has 0.5, the middle between both.
    scorer: Any = None
    #: Gold judge: how a step counts that follows from an earlier error: not at all (unjudged), as good, or as faulty.
    derived: Derived = "unjudged"
    #: Maximum number of characters of an action. A longer one is truncated, and thereby malformed.
    max_action: int = Field(default=10_000, ge=1)
    #: Maximum number of characters of an observation. A longer transcript ends its episode (`context_limit`).
    max_observation: int = Field(default=200_000, ge=1)
    #: A model behind OpenAI-compatible servers that writes actions (`env.unwrapped.write()`): the settings of `server`
    #: in a recipe.
    server: ServerConfig | None = None
    #: Its sampling temperature, and tokens per action.
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=256, ge=1)
    #: Variables of its chat template.
    chat_options: dict[str, Any] = Field(default_factory=dict)
    #: Where the replies and the spend of a server with a budget are kept.
    spend_folder: PathStr | None = None

    @model_validator(mode="after")
    def _no_contradiction(self) -> Self:
        for first, second, reason in (
            ("index", "retriever", "both name the index"),
            ("questions", "split", "your own questions have no splits"),
        ):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(f"found {first} and {second}; leave out one of them, {reason}")
        if self.scorer is not None and self.reward == "outcome":
            raise ValueError("reward='outcome' takes no scorer; use reward='process' or 'both', or leave out scorer")
        if self.derived != "unjudged" and (self.scorer is not None or self.reward == "outcome"):
            raise ValueError("derived is for the gold judge: use reward='process' or 'both' without a scorer")
        if self.server is None:
            if self.format == "constrained":
                raise ValueError("format='constrained' needs a server, which keeps its model to the grammar")
            for name in ("temperature", "max_tokens", "chat_options", "spend_folder"):
                if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                    raise ValueError(f"{name} has no effect without a server")
        elif self.server.model is None:
            raise ValueError("the server needs the name of its model: server={'model': NAME, 'base_url': URL}")
        elif (self.server.budget is None) != (self.spend_folder is None):
            raise ValueError("server.budget and spend_folder, which keeps the spend, must be given together")
        return self


class EnvBackend:
    """Opens what the configuration names, and advances episodes."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.settings = settings = EnvConfig.read(arguments, ENV_ID)
        name_agent(settings.agent)
        own = PromptingConfig.read(settings.model_dump(include=set(PromptingConfig.model_fields)), ENV_ID)
        play = own.play(settings.agent, prompted=settings.server is not None)
        self.agent = make_agent(settings.agent, check_agent, play=play, prompt=own.prompt, hint=own.hint)
        sampling = Sampling(settings.temperature, max_tokens=settings.max_tokens)
        self.limits = EpisodeConfig(settings.max_steps, settings.k, sampling)
        #: Whether questions need gold answers, and whether steps are scored.
        self.uses_answers, self.uses_steps = settings.reward != "process", settings.reward != "outcome"
        data = None
        if settings.questions is None or settings.data is not None:
            name = settings.data or "atlas-small"
            data = load_dataset(name, seed=settings.world_seed)
        self.questions = settings.questions or ()
        if data is not None and settings.questions is None:
            only = next(iter(data.questions)) if len(data.questions) == 1 else "train"
            self.questions = data.split(settings.split or only)
        for question in self.questions:
            self.check(question)
        scorer = _open_scorer(settings.scorer, settings.derived) if self.uses_steps else None
        retriever = settings.retriever
        with ExitStack() as opened:
            if retriever is None and (retriever := self._open_index(data)) is not None:
                opened.callback(retriever.close)
            engine = None
            if (server := settings.server) is not None:
                assert server.model is not None  # checked by EnvConfig
                server.check(server.model)
                folder = None if settings.spend_folder is None else Path(settings.spend_folder)
                engine = opened.enter_context(closing(server.open(server.model, folder, settings.chat_options)))
            self._opened = opened.pop_all()
        self.driver: Driver | None = Driver(engine, retriever, scorer)

    def spaces(self) -> tuple[AnyText, AnyText]:
        """The spaces of observations (at the end of an episode they include the last action) and of actions."""
        settings = self.settings
        return AnyText(settings.max_observation + settings.max_action), AnyText(settings.max_action)

    def question(self, requested: object) -> Question:
        """The question with that id, or the caller's own."""
        if isinstance(requested, Question):
            self.check(requested)
            return requested
        found = next((question for question in self.questions if question.id == requested), None)
        if found is None:
            hint = nearest(str(requested), [question.id for question in self.questions])
            raise StepladderError(
                f"options: expected a Question or one of {len(self.questions)} question ids, found {requested!r}.{hint}"
            )
        return found

    def check(self, question: Question) -> None:
        """Raise if a question cannot be rewarded."""
        if self.uses_answers and not question.answers:
            raise StepladderError(
                f"question '{question.id}' has no gold answer, which reward='{self.settings.reward}' needs: leave it "
                "out, or use reward='process' with a process reward model as scorer"
            )

    def run(self, transitions: Sequence[Algorithm[Result]]) -> list[Outcome[Result]]:
        """Advance these episodes together. Failures are per episode; raises if all of them fail."""
        if self.driver is None:
            raise StepladderError("the environment is closed: make a new one")
        outcomes = self.driver.run([lambda each=each: each for each in transitions])  # type: ignore[misc]
        failures = failures_of(outcomes)
        if failures and len(failures) == len(outcomes):
            raise StepladderError(f"the step failed: {failures[0].reason}")
        return outcomes

    def close(self) -> None:
        """Close the index if it was opened here, and the connections to the server."""
        self.driver = None
        self._opened.close()

    def _open_index(self, data: DataSet | None) -> Retriever | None:
        if not self.agent.searches:
            return None
        if self.settings.index is not None:
            return load_retriever(self.settings.index)
        if data is None or data.passages is None:
            raise StepladderError(
                f"the agent '{self.agent.name}' searches, but there is no index: set index= (a folder or the URL of a "
                "server), retriever= (an object), or data= with its own passages, such as 'atlas-small'"
            )
        return BM25Index.from_passages(data.passages)


def failures_of(outcomes: Sequence[Outcome[Any]]) -> list[Failure]:
    """Why some failed."""
    return [outcome.failure for outcome in outcomes if outcome.failure is not None]


def _open_scorer(scorer: Any, derived: Derived) -> StepScorer:
    if scorer is None:
        return GoldScorer(derived)
    if isinstance(scorer, str | Path):
        from stepladder.judges.prm.reward_model import ProcessRewardModel  # imports torch

        return ProcessRewardModel.load(scorer)
    if missing := [name for name in ("score", "max_batch", "concurrency") if not hasattr(scorer, name)]:
        raise StepladderError(
            "scorer: expected the folder of a process reward model or a StepScorer, found "
            f"{scorer!r}, which has no {' and no '.join(missing)}"
        )
    return cast(StepScorer, scorer)
