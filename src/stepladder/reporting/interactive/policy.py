"""A policy with everything it needs to answer questions: agent format, retriever, episode limits.

In: a model name, a model folder, an adapter or a run. Out: a `Policy`, which answers questions (`ask`) and can be
passed wherever a model path is expected.
"""

import os
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from stepladder.agents import is_agent_file
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver
from stepladder.evaluation.evaluator import Evaluation, evaluate as evaluate_policy
from stepladder.explore.episode import episode
from stepladder.models.adapters import agent_of
from stepladder.pipeline.resources import DataConfig, RunContext, SharedConfig
from stepladder.pipeline.run_folder import RunFolder, is_run
from stepladder.pipeline.stage import POLICY, REWARD

if TYPE_CHECKING:
    from stepladder.judges.prm.reward_model import ProcessRewardModel

#: Keyword arguments of `load_policy`, and the recipe keys that they set.
_KEYS = {
    "agent": ("agent",),
    "data": ("data", "name"),
    "index": ("data", "index"),
    "topk": ("search", "k"),
    "max_steps": ("episode", "max_steps"),
    "max_tokens": ("episode", "max_tokens"),
    "engine": ("engine",),
    "device": ("device",),
    "dtype": ("dtype",),
    "batch_size": ("batch_size",),
}


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
        return RunContext(self.config, Console(stderr=True))

    @cached_property
    def driver(self) -> Driver:
        """The driver with the loaded model."""
        return Driver(self._stack.enter_context(self.context.engine(self.model)), self.context.retriever)

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_policy(model: str | Path | Policy, **settings: Any) -> Policy:
    """The policy of a model name, model folder, adapter or run folder.

    Settings: agent, data, index, topk, max_steps, max_tokens, engine, device, dtype, batch_size. A run supplies them
    all, an adapter its agent; what is passed here takes precedence.
    """
    plain: dict[str, Any] = {}
    if isinstance(model, Policy):
        plain, model = model.config.model_dump(mode="json"), model.model
    elif is_run(Path(model)):
        folder = RunFolder.open(Path(model))
        plain, newest = folder.recipe().shared.model_dump(mode="json"), folder.newest(POLICY)
        if newest is None:
            raise StepladderError(f"the run {model} has no trained policy yet")
        model = newest
    elif (agent := agent_of(Path(model))) is not None:
        if is_agent_file(agent) and "agent" not in settings:  # a downloaded adapter must not run code
            raise StepladderError(f"the adapter {model} names the agent file {agent}: pass agent= to confirm it")
        plain["agent"] = agent
    for name, value in settings.items():
        if name not in _KEYS:
            raise TypeError(f"load_policy() got an unexpected setting {name!r}; expected one of {', '.join(_KEYS)}")
        *groups, key = _KEYS[name]
        target = plain
        for group in groups:
            target = target.setdefault(group, {})
        target[key] = str(value) if isinstance(value, os.PathLike) else value
    return Policy(str(model), SharedConfig.read({**plain, "policy": str(model)}, "load_policy"))


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
        config = loaded.config.model_copy(update={"data": DataConfig.read({"name": data}, "data")})
        loaded = Policy(loaded.model, config)
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
