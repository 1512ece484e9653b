"""The warm-up: supervised fine-tuning on transcripts of an agent, with weighted tags (ProRAG, stage 1).

In: a model, an agent, questions, an index, settings. Out, in one folder:

    transcripts.jsonl   what was trained on; dropped.json counts what was not, by reason
    curves.jsonl        one row an update and one a dev score
    checkpoints/        the newest and the best, to resume from
    policy/             the best by dev score: an ordinary transformers model with its tokenizer

The loss is the weighted mean of -log p over the policy's tokens, each transcript read whole, in one pass. After a kill
the same call goes on from the newest checkpoint and ends with the same weights. A folder belongs to one set of inputs:
what it holds is not compared with those of a later call (a run's fingerprints do that).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepladder.agents.base import Agent
from stepladder.core.trace import Question
from stepladder.driver import OutcomeCallback
from stepladder.explore.episode import EpisodeConfig
from stepladder.models.loading import DTYPES, pick_dtype, quiet_libraries
from stepladder.retrieval.base import Retriever
from stepladder.train.loop.policy import load_policy, write_policy
from stepladder.train.loop.rollout_engine import make_rollout_engine
from stepladder.train.loop.training_loop import prepare_compute, shown
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.demonstration_sources import are_made, load_or_make
from stepladder.train.sft.weak_decomposition import decompose_questions
from stepladder.data.sampling import sample_questions
from stepladder.train.transcripts.fine_tune import dev_player, fine_tune


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What came of a warm-up."""

    #: A model folder.
    policy: Path
    numbers: dict[str, float]

    def summary(self) -> dict[str, float]:
        """Plain numbers by name."""
        return dict(self.numbers)


def train_sft(
    model: str | Path,
    agent: Agent,
    questions: Sequence[Question],
    dev: Sequence[Question],
    retriever: Retriever | None,
    episode: EpisodeConfig,
    settings: SFTConfig,
    folder: Path,
    *,
    seed: int,
    device: str = "auto",
    dtype: str = "auto",
    max_batch: int = 64,
    trees: Path | None = None,
    watch: OutcomeCallback | None = None,
) -> TrainingReport:
    """Train a model on transcripts; the same call goes on where an earlier one was killed.

    `dtype`: of the weights in `policy/`, fp32 or bf16; auto is that of the model's own files. `max_batch`: episodes at
    a time. `trees`: for the source `trees`, the file they are in. `watch` is told of every episode that becomes a
    transcript and of every update; without one, progress is shown on standard error.
    """
    place = prepare_compute(settings, seed, device, "sft")
    pick_dtype(dtype, place.device)  # a wrong name should not wait until the end
    with quiet_libraries():
        policy = load_policy(model, settings.lora, bf16=place.bf16 and settings.lora is not None, device=place.device)
        engine, playing = make_rollout_engine(policy, place, max_batch)
        if settings.source == "mined" and not are_made(folder):  # first of all: how many searches each takes
            with shown(watch, "Guesses", len(questions)) as told:
                questions = decompose_questions(questions, retriever, episode.k, told)
        chosen = sample_questions(questions, settings.questions, seed, balance=settings.balance)
        episodes = len(chosen) * (1 if settings.source in ("gold", "mined") else settings.num_generations)
        with (
            place.processes.main_process_first(),
            shown(watch, "Demonstrations", episodes) as told,
            playing(),
        ):
            transcripts = load_or_make(
                folder, settings, engine, agent, chosen, retriever, episode, trees=trees, seed=seed, watch=told
            )
        asked = sample_questions(dev, settings.dev_questions, seed)
        dev_score = dev_player(engine, agent, asked, retriever, episode, seed, playing)
        numbers, checkpoint = fine_tune(
            policy, engine, transcripts.kept, settings, folder, place, dev_score=dev_score, watch=watch
        )
        if place.processes.is_main_process:
            write_policy(folder / "policy", policy, checkpoint, DTYPES.get(dtype, policy.dtype))
        place.processes.wait_for_everyone()
    counts = {
        "transcripts": len(transcripts.kept),
        "asked": transcripts.asked,
        **{f"dropped_{reason}": count for reason, count in transcripts.dropped.items()},
    }
    return TrainingReport(folder / "policy", {**counts, **numbers})
