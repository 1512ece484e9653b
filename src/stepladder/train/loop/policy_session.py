"""A policy in training, with the engine that generates with it: what SFT, RFT, DPO and GRPO start and end with.

In: a model, a `TrainingContext` and settings. Out: a `PolicySession`, which evaluates the policy on dev questions
during training and writes the selected checkpoint as `policy/` at the end.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question, Trajectory
from stepladder.data.sampling import sample_questions
from stepladder.driver import Driver
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.engines.vllm.settings import VLLMConfig
from stepladder.evaluation.evaluator import evaluate
from stepladder.models.devices import DTYPES
from stepladder.models.loading import load_model, quiet_libraries
from stepladder.train.launch.sharding import check_shardable
from stepladder.train.loop.base_trainer import DevScore
from stepladder.train.loop.compute import Compute, Precision, prepare_compute
from stepladder.train.loop.config import PolicyTrainingConfig
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.policy_weights import Policy, check_target_modules, load_policy, write_policy
from stepladder.train.loop.rollout_engine import make_rollout_engine


@dataclass(frozen=True, slots=True)
class PolicySession:
    """Opened by `open_policy`."""

    policy: Policy
    engine: InProcessEngine
    #: Makes the context manager to generate in.
    generating: Precision
    compute: Compute
    context: TrainingContext

    def dev_evaluator(
        self,
        questions: int,
        extra: Callable[[Sequence[Trajectory]], DevScore] = lambda _: {},
        *,
        keep_cache: bool = False,
    ) -> Callable[[], DevScore] | None:
        """A function that evaluates the policy greedily on this many dev questions; None without questions.

        `extra` computes further metrics from the trajectories. `keep_cache`: the engine keeps its memory between
        evaluations, for trainers that generate all the time.
        """
        context, engine = self.context, self.engine
        dev = sample_questions(context.dev, questions, context.seed)
        if not dev:
            return None
        greedy = replace(context.episode, sampling=replace(context.episode.sampling, temperature=0.0))

        def evaluate_share(questions: Sequence[Question]) -> list[tuple[QuestionScore, Trajectory | None]]:
            if not questions:
                return []
            result = evaluate(Driver(engine, context.retriever), context.agent, questions, greedy, seed=context.seed)
            if result.stopped_by is not None:
                raise result.stopped_by
            return list(zip(result.scores, result.trajectories, strict=True))

        def score() -> DevScore:
            with self.generating():
                results = self.compute.processes.map(dev, evaluate_share)
            if keep_cache:
                engine.on_idle()
            else:
                engine.reset_prefix_cache()
            failures = [row.failure for row, _ in results if row.failure]
            if len(failures) == len(dev):
                raise StepladderError(f"every dev episode failed; the first: {failures[0]}")
            return {
                "f1": sum(row.f1 for row, _ in results) / len(dev),
                "em": sum(row.em for row, _ in results) / len(dev),
                "failed": len(failures),
                **extra([trajectory for _, trajectory in results if trajectory is not None]),
            }

        return score

    def reference_model(self) -> nn.Module:
        """A second copy of the initial policy, in fp32."""
        model, _ = load_model(self.policy.source, self.policy.tokenizer, torch.float32)
        return model.to(self.compute.device).eval()

    def save(self, checkpoint: Path | None) -> Path:
        """Write the weights of a checkpoint, or the initial ones without, as `policy/`."""
        folder = self.context.folder / "policy"
        with self.compute.processes.main_first():
            if self.compute.processes.is_main_process:
                dtype = DTYPES.get(self.context.dtype, self.policy.dtype)
                write_policy(folder, self.policy, checkpoint, dtype, self.compute.device)
        return folder


@contextmanager
def open_policy(
    source: str | Path,
    context: TrainingContext,
    config: PolicyTrainingConfig,
    kind: str,
    *,
    trl_adds_lora: bool = False,
    vllm: VLLMConfig | None = None,
) -> Iterator[PolicySession]:
    """Load a policy for training. `kind` is part of the seed. `trl_adds_lora`: trl's trainer adds the LoRA adapters."""
    compute = prepare_compute(config, context, kind)
    bf16 = compute.bf16 and config.lora is not None and not compute.is_sharded
    with quiet_libraries():
        policy = load_policy(source, None if trl_adds_lora else config.lora, bf16=bf16, device=compute.weights_device)
        check_shardable(policy.model, source)
        if trl_adds_lora and config.lora is not None:
            check_target_modules(policy.model, config.lora, source)
        engine, generating = make_rollout_engine(policy, compute, context.max_batch, vllm=vllm)
        with closing(engine):
            yield PolicySession(policy, engine, generating, compute, context)
