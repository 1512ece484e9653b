"""A policy with everything it needs to answer questions: agent format, retriever, episode limits.

In: a model name, a model folder, an adapter or a run. Out: a `Policy`, which answers questions (`ask`) and can be
passed wherever a model path is expected.
"""

import os
import sys
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver
from stepladder.evaluation.evaluator import Evaluation, evaluate as evaluate_policy
from stepladder.explore.episode import episode
from stepladder.pipeline.agent_config import KEYS, agent_config, with_settings
from stepladder.pipeline.policy_choice import choose_policy
from stepladder.pipeline.resources import RunContext, SharedConfig
from stepladder.pipeline.run_folder import RunFolder, is_run
from stepladder.pipeline.stage import REWARD

if TYPE_CHECKING:
    from stepladder.judges.prm.reward_model import ProcessRewardModel


class Policy(AbstractContextManager["Policy"], os.PathLike[str]):
    """A model with its agent format, retriever and episode limits. Use it as a context manager, or call `close`."""

    def __init__(self, model: str, config: SharedConfig) -> None:
        self.model = model
        self.config = config
        self._stack = ExitStack()

    def __repr__(self) -> str:
        return f"Policy({self.model!r}, agent={self.config.agent!r}, data={self.config.data.name!r})"

    def __str__(self) -> str:
        return self.model

    def __fspath__(self) -> str:
        return self.model

    @cached_property
    def context(self) -> RunContext:
        """Agent, data and retriever, opened on first use."""
        return RunContext(self.config, Console(stderr=True), prompted=True if self._engine else None)

    @cached_property
    def driver(self) -> Driver:
        """The driver with the loaded model."""
        engine = self._stack.enter_context(self.context.engine(self.model, self._engine))
        return Driver(engine, self.context.retriever)

    @property
    def _engine(self) -> str | None:
        """The engine of a model behind a server; None for the one of the settings."""
        return "openai" if self.config.engine == "openai" else None

    def ask(self, question: str | Question, *, temperature: float = 0.0, seed: int = 0) -> Trajectory:
        """Answer one question by searching. `.show()` prints the steps, `.answer` is the answer."""
        asked = question if isinstance(question, Question) else Question("question", question, ())
        settings = self.context.episode(temperature)
        (outcome,) = self.driver.run([lambda: episode(self.context.agent, asked, settings, seed)])
        if outcome.value is None:
            raise StepladderError(outcome.failure.reason if outcome.failure else "the episode has no result")
        return outcome.value

    def close(self) -> None:
        """Release the model and the retriever."""
        self._stack.close()
        if "context" in self.__dict__:
            self.context.close()
        for opened in ("driver", "context"):
            self.__dict__.pop(opened, None)

    def __exit__(self, *error: object) -> None:
        self.close()


def load_policy(model: str | Path | Policy, *, stage: str | None = None, **settings: Any) -> Policy:
    """The policy of a model name, model folder, adapter or run folder.

    Of a run, the policy with the best dev score is taken, or that of `stage`; a note on standard error says which.

    Settings: agent, format, max_format_errors, force_answer, max_searches, prime, prompt, hint, chat_options, data,
    world_seed, index, topk, max_steps, max_tokens, engine, base_url, api, concurrency, timeout, grammar, device, dtype,
    batch_size. A run supplies them all, an adapter its agent; what is passed here takes precedence.
    """
    for name in settings:
        if name not in KEYS:
            raise TypeError(f"load_policy() got an unexpected setting {name!r}; expected one of {', '.join(KEYS)}")
    if isinstance(model, Policy):
        return Policy(model.model, with_settings(model.config.model_dump(mode="json"), settings))
    run = RunFolder.open(Path(model)) if is_run(Path(model)) else None
    if run is None and stage is not None:
        raise StepladderError(f"stage={stage!r} selects a policy of a run, and {model} is none")
    config = agent_config(run, str(model), settings)
    if run is not None:
        choice = choose_policy(run, stage)
        print(choice, file=sys.stderr)
        model = choice.path
    return Policy(str(model), config)


def evaluate(
    policy: str | Path | Policy,
    data: str | None = None,
    *,
    split: str = "test",
    limit: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    **settings: Any,
) -> Evaluation:
    """Run one episode per question of a split and score the answers. `.show()` prints metrics with intervals."""
    loaded = load_policy(policy, **settings)
    if data is not None and data != loaded.config.data.name:
        loaded = load_policy(loaded, data=data)
    with loaded:
        context = loaded.context
        questions = context.split(split)[:limit]
        result = evaluate_policy(loaded.driver, context.agent, questions, context.episode(temperature), seed=seed)
    if result.stopped_by is not None:
        raise result.stopped_by
    return result


def load_prm(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> "ProcessRewardModel":
    """The process reward model in a folder, or the newest one of a run. Other tokenizers are retokenized."""
    from stepladder.judges.prm.reward_model import ProcessRewardModel  # imports torch

    path = Path(folder)
    if is_run(path):
        newest = RunFolder.open(path).newest(REWARD)
        if newest is None:
            raise StepladderError(f"the run {path} has no reward model yet")
        path = newest
    return ProcessRewardModel.load(path, device=device, dtype=dtype, retokenize=True)
