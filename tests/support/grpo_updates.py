"""Single updates of a GRPO trainer, and trainings whose episodes are told instead of sampled."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from datasets import Dataset  # type: ignore[import-untyped]
from trl import GRPOConfig as TrlGRPOConfig  # type: ignore[attr-defined]

from stepladder.agents import make_agent
from stepladder.agents.base import Agent
from stepladder.core.io.records import dumps
from stepladder.core.requests import Generate
from stepladder.core.trace import Trajectory
from stepladder.driver import Driver, Outcome
from stepladder.engines.scripted import ScriptedEngine
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.models.loading import quiet_libraries
from stepladder.train.grpo import trainer as grpo
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.rollouts import Rollouts
from stepladder.train.grpo.trainer import TrainingReport
from stepladder.train.grpo.trl_trainer import EpisodeTrainer
from stepladder.train.loop import rollout_engine as playing
from stepladder.train.loop.compute import prepare_compute
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.policy_session import PolicySession
from stepladder.train.loop.policy_weights import load_policy, peft_config
from tests.support.grpo_training import EPISODE, QUESTIONS, ROOMY, SETTINGS, Loose, Taste, train
from tests.support.samples import WordRetriever


def changed(**changes: Any) -> GRPOConfig:
    return GRPOConfig.read({**SETTINGS.model_dump(exclude_unset=True), **changes})


def trainer_for(
    folder: Path,
    settings: GRPOConfig,
    engine: Callable[..., Any] = TransformersEngine,
    agent: Agent | None = None,
) -> EpisodeTrainer:
    """A trainer that has done nothing yet."""
    context = TrainingContext(agent or Loose(), QUESTIONS, (), None, EPISODE, folder, device="cpu")
    place, parts = prepare_compute(settings, context, "grpo"), settings.gradient_accumulation_steps
    with quiet_libraries():
        policy = load_policy("tiny", None, bf16=False, device=place.device)
        reference = PolicySession(policy, cast(Any, None), nullcontext, place, context).reference_model()
        driver, likes = Driver(engine(policy.model, policy.tokenizer), WordRetriever()), cast(Any, Taste())
        trainer = EpisodeTrainer(
            policy.model,
            args=TrlGRPOConfig(
                output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", disable_tqdm=True,
                remove_unused_columns=False, per_device_train_batch_size=settings.batch_size // parts,
                gradient_accumulation_steps=parts, gradient_checkpointing=False, **grpo._grpo_arguments(settings),
            ),
            rollouts=Rollouts(driver, agent or Loose(), EPISODE if agent is None else ROOMY, settings, likes),
            reference=reference if settings.beta and settings.lora is None else None,
            train_dataset=Dataset.from_dict({"prompt": [dumps(question) for question in QUESTIONS]}),
            processing_class=policy.tokenizer,
            peft_config=None if settings.lora is None else peft_config(settings.lora, "CAUSAL_LM"),
        )  # fmt: skip
    trainer.current_gradient_accumulation_steps = settings.gradient_accumulation_steps
    trainer.model.train()
    return trainer


def batch_of(trainer: EpisodeTrainer) -> dict[str, Any]:
    """The tensors of the first update."""
    settings = trainer.rollouts.config
    asked = QUESTIONS[: settings.batch_size // settings.num_generations]
    return trainer._generate_and_score_completions(
        [{"prompt": dumps(question)} for question in asked for _ in range(settings.num_generations)]
    )


def say(answer: str, thought: str = "So.") -> str:
    return f"<step>{thought}</step><answer>{answer}</answer>"


class Told(ScriptedEngine):
    """In place of the policy's engine: says what it is told by update, question and sample.

    It is used by a training that goes on around it with real weights, losses, curves, guards and checkpoints.
    """

    #: (update, question, number of the sample) -> what to say, in one step or several. Dev questions are sample -1.
    tell: Callable[[int, str, int], str | list[str]]
    update = 1

    def __init__(self, model: Any, tokenizer: Any, max_batch: int = 64) -> None:
        super().__init__(self.speak)
        self.encoding = Encoding(tokenizer)
        self.places: dict[tuple[int, str], list[int]] = {}

    def speak(self, request: Generate) -> str:
        state = request.trajectory
        assert state is not None
        if not request.sampling.temperature:
            return self._step(-1, state)
        seeds = self.places.setdefault((self.update, state.question.id), [])
        if state.seed not in seeds:
            seeds.append(state.seed)
        return self._step(seeds.index(state.seed), state)

    def _step(self, sample: int, state: Trajectory) -> str:
        told = type(self).tell(self.update, state.question.id, sample)
        return told if isinstance(told, str) else told[len(state.steps)]

    def _reply(self, request: Generate) -> Any:
        reply: Any = super()._reply(request)
        return replace(reply, written=replace(reply.written, logprobs=()))  # they would not be the model's

    def reset_prefix_cache(self) -> None:
        """There is nothing to forget."""


def told_by(tell: Callable[[int, str, int], str | list[str]]) -> type[Told]:
    return type("Told", (Told,), {"tell": staticmethod(tell)})


PRORAG = make_agent("prorag-brief")


def train_told(
    folder: Path, settings: GRPOConfig, tell: Callable[[int, str, int], str | list[str]], **options: Any
) -> tuple[TrainingReport, list[int]]:
    """A training whose episodes are told; and the updates that were made."""
    engine, made = told_by(tell), list[int]()

    def watch(outcome: Outcome[Any]) -> None:
        made.append(outcome.index + 1)
        engine.update = outcome.index + 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(playing, "TransformersEngine", engine)
        return train(folder, settings, watch, agent=PRORAG, **options), made
