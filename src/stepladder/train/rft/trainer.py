"""Refinement by rejection sampling (ProRAG, stage 3): learn from one's own transcripts that are right in every step.

In: a policy, questions with answers, a reward model. Out, in one folder:

    samples/            what the policy played
    survivors.json      how many were left after each filter, and at which step the others fail
    scores.jsonl        one row a sample: its scores, and the filter that it did not pass
    transcripts.jsonl   what was trained on
    curves.jsonl, checkpoints/, policy/     as of a warm-up

A transcript survives with a right answer and every step at the threshold or above. The fine-tuning is that of the
warm-up. A folder belongs to one set of inputs, and a killed call goes on where it was.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.records import write_records
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver, OutcomeCallback
from stepladder.explore.episode import EpisodeConfig
from stepladder.judges.prm.reward_model import ProcessRewardModel, check_same_tokenizer
from stepladder.models.loading import DTYPES, pick_dtype, quiet_libraries
from stepladder.retrieval.base import Retriever
from stepladder.train.loop.policy import load_policy, write_policy
from stepladder.train.loop.rollout_engine import make_rollout_engine
from stepladder.train.loop.training_loop import prepare_compute, shown
from stepladder.train.rft.config import RFTConfig
from stepladder.train.rft.filters import FilterResult, sift
from stepladder.data.sampling import sample_questions
from stepladder.train.transcripts.fine_tune import dev_player, fine_tune
from stepladder.train.transcripts.sampled_episodes import sample_episodes


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What came of a refinement."""

    #: A model folder.
    policy: Path
    numbers: dict[str, object]


def train_rft(
    model: str | Path,
    agent: Agent,
    questions: Sequence[Question],
    dev: Sequence[Question],
    retriever: Retriever | None,
    episode: EpisodeConfig,
    reward: ProcessRewardModel | None,
    settings: RFTConfig,
    folder: Path,
    *,
    seed: int,
    device: str = "auto",
    dtype: str = "auto",
    max_batch: int = 64,
    watch: OutcomeCallback | None = None,
) -> TrainingReport:
    """Sample, sift, fine-tune; the same call goes on where an earlier one was killed.

    `reward` scores the steps; it is needed unless the settings have no threshold.
    """
    if (reward is None) != (settings.threshold is None):
        raise StepladderError("a threshold and a reward model belong together: give both, or set threshold to null")
    place = prepare_compute(settings, seed, device, "rft")
    pick_dtype(dtype, place.device)
    with quiet_libraries():
        policy = load_policy(model, settings.lora, bf16=place.bf16 and settings.lora is not None, device=place.device)
        engine, playing = make_rollout_engine(policy, place, max_batch)
        if reward is not None:
            check_same_tokenizer(engine.encoding, reward)
        answerable = [question for question in questions if question.answers]
        if not answerable:
            raise StepladderError(f"none of {len(questions):,} questions has an answer: no sample could be found right")
        chosen = sample_questions(answerable, settings.questions, seed, balance=settings.balance)
        sampling = replace(episode.sampling, temperature=settings.temperature, top_p=settings.top_p)
        driver = Driver(engine, retriever)
        with (
            place.processes.main_process_first(),
            shown(watch, "Samples", len(chosen) * settings.num_generations) as told,
            playing(),
        ):
            played, broken = sample_episodes(
                folder / "samples",
                driver,
                agent,
                chosen,
                replace(episode, sampling=sampling),
                samples=settings.num_generations,
                seed=seed,
                watch=told,
            )
        with place.autocast:
            sifted, scores = _sifted(played, reward, settings)
        if place.processes.is_main_process:
            _write_survivors(folder, played, scores, sifted, broken)
        sifted.expect_some(settings.threshold)
        asked = sample_questions(dev, settings.dev_questions, seed)
        dev_score = dev_player(engine, agent, asked, retriever, episode, seed, playing)
        numbers, checkpoint = fine_tune(
            policy, engine, sifted.kept, settings, folder, place, dev_score=dev_score, watch=watch
        )
        if place.processes.is_main_process:
            write_policy(folder / "policy", policy, checkpoint, DTYPES.get(dtype, policy.dtype))
        place.processes.wait_for_everyone()
    written = sum(step.usage.written for trajectory in played for step in trajectory.steps)
    counts = {"questions": len(chosen), **_report(sifted, broken), "tokens_sampled": written}
    return TrainingReport(folder / "policy", {**counts, **numbers})


def _sifted(
    played: Sequence[Trajectory], reward: ProcessRewardModel | None, settings: RFTConfig
) -> tuple[FilterResult, list[tuple[float, ...]] | None]:
    scores = None if reward is None else reward.score_logits(played)
    sifted = sift(played, scores, min_f1=settings.min_f1, threshold=settings.threshold or 0.0, keep=settings.keep)
    return sifted, scores


def _report(sifted: FilterResult, broken: int) -> dict[str, object]:
    return {
        **sifted.left(),
        "solved_questions": len(sifted.solved),
        "broken": broken,
        "first_bad_step": {str(step): count for step, count in sorted(sifted.first_bad_step.items())},
        "first_bad_kind": dict(sifted.first_bad_kind.most_common()),
        "no_bad_step": sifted.no_bad_step,
    }


def _write_survivors(
    folder: Path,
    played: Sequence[Trajectory],
    scores: Sequence[Sequence[float]] | None,
    sifted: FilterResult,
    broken: int,
) -> None:
    with atomic_file(folder / "survivors.json") as file:
        json.dump(_report(sifted, broken), file, indent=2)
    with atomic_file(folder / "scores.jsonl") as file:
        for number, (trajectory, failed) in enumerate(zip(played, sifted.failed, strict=True)):
            row = {
                "question": trajectory.question.id,
                "answer": trajectory.answer,
                "failed": failed or None,
                "scores": None if scores is None else [round(each, 4) for each in scores[number]],
            }
            file.write(json.dumps(row) + "\n")
    write_records(folder / "transcripts.jsonl", sifted.kept)
