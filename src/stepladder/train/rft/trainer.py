"""Rejection-sampling fine-tuning (ProRAG, stage 3): train on the policy's own transcripts without a bad step.

In: a policy, a `TrainingContext` with answered questions, a step scorer. Out, in one folder:

    samples/            the sampled episodes
    survivors.json      how many passed each filter, and at which step the others fail
    scores.jsonl        one row per sample: its step scores, and the filter that rejected it
    transcripts.jsonl   the kept transcripts
    curves.jsonl, checkpoints/, policy/     as in SFT

A transcript is kept if its answer is correct and every step has at least the threshold score. After a kill the same
call resumes.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.records import write_records
from stepladder.core.step_scorer import StepScorer, raise_errors
from stepladder.core.trace import Trajectory
from stepladder.data.sampling import sample_questions
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.judges.prm.reward_model import ProcessRewardModel, check_same_tokenizer
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.policy_session import open_policy
from stepladder.train.loop.public_trainer import PublicTrainer
from stepladder.train.loop.training_loop import TrainingReport
from stepladder.train.rft.config import RFTConfig
from stepladder.train.rft.filters import FilterResult, filter_trajectories
from stepladder.train.transcripts.fine_tune import fine_tune
from stepladder.train.transcripts.sample_checks import SampleRules
from stepladder.train.transcripts.sampled_episodes import policy_episodes, token_counts
from stepladder.train.transcripts.tokenized import expect_token_ids


@dataclass
class RFTTrainer(PublicTrainer[RFTConfig, TrainingReport]):
    """Rejection-sampling fine-tuning: `RFTTrainer(policy, scorer="runs/nano/prm/reward").train()`."""

    #: A step scorer, or the folder of a PRM; None requires `threshold=None`.
    scorer: str | os.PathLike[str] | StepScorer | None = None

    kind = "rft"
    config_class = RFTConfig

    def _train(self, policy: str, context: TrainingContext, config: RFTConfig) -> TrainingReport:
        scorer = None if self.scorer is None else self._open_scorer(self.scorer, retokenize=config.retokenize)
        return train_rft(policy, context, config, scorer)


@dataclass(frozen=True, slots=True)
class Sampler:
    """What samples the transcripts in place of the policy in this process, and the agent as it plays it."""

    open_engine: Callable[[], AbstractContextManager[Engine | Driver]]
    agent: Agent


def train_rft(
    policy: str | Path,
    context: TrainingContext,
    config: RFTConfig,
    scorer: StepScorer | None,
    sampler: Sampler | None = None,
) -> TrainingReport:
    """Sample, filter, fine-tune. `scorer` is needed unless the settings have no threshold.

    `sampler`: samples in place of the policy.
    """
    if (scorer is None) != (config.threshold is None):
        raise StepladderError("a threshold needs a step scorer: give both, or set threshold to null")
    with open_policy(policy, context, config, "rft") as session:
        if isinstance(scorer, ProcessRewardModel):
            check_same_tokenizer(session.engine.encoding, scorer)
        answerable = [question for question in context.questions if question.answers]
        if not answerable:
            raise StepladderError(f"none of {len(context.questions):,} questions has an answer: no sample is correct")
        chosen = sample_questions(answerable, config.questions, context.seed, balance=config.balance)
        with session.generating():
            samples = policy_episodes(
                context if sampler is None else replace(context, agent=sampler.agent),
                (lambda: nullcontext(session.engine)) if sampler is None else sampler.open_engine,
                chosen,
                num_generations=config.num_generations,
                temperature=config.temperature,
                top_p=config.top_p,
                label="Samples",
                folder="samples",
                distributed=sampler is None,
            )
        failed = len(chosen) * config.num_generations - len(samples)
        scores: list[Sequence[float | None]] | None = None
        if scorer is not None:
            graded = scorer

            def grade(own: Sequence[Trajectory]) -> Sequence[Sequence[float | None]]:
                return raise_errors(graded.score_logits(own)) if own else []

            with session.compute.autocast:
                scores = session.compute.processes.map(samples, grade)
        result = filter_trajectories(samples, scores, rules=SampleRules.of(config), threshold=config.threshold or 0.0)
        with session.compute.processes.main_first():
            if session.compute.processes.is_main_process:
                _write_samples(context.folder, samples, scores, result, failed)
        result.expect_some(config.threshold)
        expect_token_ids(result.kept, reencode=config.reencode)
        numbers = fine_tune(session, result.kept, config)
    counts = {"questions": len(chosen), **_counts(result, failed), **token_counts(samples)}
    return TrainingReport(context.folder / "policy", {**counts, **numbers})


def _counts(result: FilterResult, failed: int) -> dict[str, object]:
    return {
        **result.passed(),
        "solved_questions": len(result.solved),
        "broken": failed,
        "first_bad_step": {str(step): count for step, count in sorted(result.first_bad_step.items())},
        "first_bad_kind": dict(result.first_bad_kind.most_common()),
        "no_bad_step": result.no_bad_step,
    }


def _write_samples(
    folder: Path,
    samples: Sequence[Trajectory],
    scores: Sequence[Sequence[float | None]] | None,
    result: FilterResult,
    failed: int,
) -> None:
    with atomic_file(folder / "survivors.json") as file:
        json.dump(_counts(result, failed), file, indent=2)
    with atomic_file(folder / "scores.jsonl") as file:
        for number, (trajectory, rejected_by) in enumerate(zip(samples, result.rejected_by, strict=True)):
            row = {
                "question": trajectory.question.id,
                "answer": trajectory.answer,
                "failed": rejected_by or None,
                "scores": None
                if scores is None
                else [None if each is None else round(each, 4) for each in scores[number]],
            }
            file.write(json.dumps(row) + "\n")
    write_records(folder / "transcripts.jsonl", result.kept)
