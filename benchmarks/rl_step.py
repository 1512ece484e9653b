"""How long one step of reinforcement learning takes: roll-out, scoring and update, against the way of the reference.

The same policy, reward model, questions, sampling and number of episodes in one run, taking turns, bf16 autocast:

- roll-out. Reference: transcripts are text. At every turn all of it is encoded and read again, in a left-padded batch,
  and `model.generate` writes a step behind every one, also behind those that have ended, where it is thrown away. How
  long that is depends on what a model writes behind its answers, so a careful user's way is measured too, which leaves
  them out. Ours: the driver and the engine.
- scoring. Reference: one text a step, one call each. Ours: all steps of an episode in one pass.
- update. Reference: trl's GRPOTrainer as it is, with the log-probs of every token of the padded batch. Ours: of the
  policy's tokens, rows of like length together.

Both go through the same trainer, which tells the seconds of each part. Scoring and update get the same episodes, ours:
scores and gradients can be compared. Only the roll-outs sample differently, so steps and tokens an episode are told for
both; how long a round of the reference takes depends much on its longest episode, so every round samples others. The
learning rate is 0: all rounds have the same weights.

The reference is the loop of ProRAG's published script on plain transformers, not the script itself. There vLLM writes,
which is better at batches than `generate` and can keep what it has read; an episode that broke the format goes on to
the last step, while here it ends; and the update checkpoints its gradients, that is, it reads everything once more.

The policy is nano after the warm-up of `recipes/prorag-nano.yaml`, the reward model that policy with a head drawn at
random; `--policy` and `--reward` take others.
"""

import argparse
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from transformers import AutoModelForSequenceClassification
from trl import (
    GRPOConfig as TrlGRPOConfig,  # type: ignore[attr-defined]
    GRPOTrainer,
)

from prm_speed import one_text_a_call, texts_of
from stepladder.core.io.records import dumps
from stepladder.core.requests import Finish, Generate, Generation, Retrieve
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import raise_errors
from stepladder.core.trace import Author, Question, Segment, Trajectory, Usage
from stepladder.data.sampling import sample_questions
from stepladder.driver import Driver
from stepladder.engines.base import cut_at_stop
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.explore.episode import take_step
from stepladder.judges.prm.reward_model import ProcessRewardModel, check_same_tokenizer, with_scalar_head
from stepladder.models.loading import end_tokens, load_model, quiet_libraries
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import load_recipe
from stepladder.pipeline.resources import RunContext
from stepladder.train.grpo import trainer as grpo
from stepladder.train.grpo.config import GRPOConfig, MonitorConfig
from stepladder.train.grpo.refill import NextQuestion
from stepladder.train.grpo.rollouts import Mean, RolloutBatch, Rollouts
from stepladder.train.grpo.trl_trainer import EpisodeTrainer
from stepladder.train.loop.base_trainer import TrainerHooks
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.compute import Compute, Precision, prepare_compute
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.metrics_log import MetricsLog
from stepladder.train.loop.policy_weights import Policy, load_policy
from stepladder.train.loop.rollout_engine import make_rollout_engine

RECIPE = "prorag-nano"
PARTS = ("rollout", "scoring", "update")
AIM = 5


class Meter:
    """Counts the tokens that go through a model, with padding and with those that went through it before."""

    def __init__(self, model: Any) -> None:
        self.tokens = 0
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.tokens += (named["input_ids"] if "input_ids" in named else positional[0]).numel()

    def take(self) -> int:
        """What was counted since this was last asked."""
        tokens, self.tokens = self.tokens, 0
        return tokens


# --- the way of the reference -------------------------------------------------------------------------------------


class RolloutsByText(Rollouts):
    """Plays episodes as text, and hands on those of `ours`, scored again, so that the update is of the same ones."""

    def __init__(self, ours: "OurRollouts", settings: GRPOConfig, policy: Policy, reward: Any, meter: Meter) -> None:
        super().__init__(ours.driver, ours.agent, ours.episode, settings, ours.scorer)
        self.ours, self.policy, self.plain_reward, self.meter = ours, policy, reward, meter
        self.encoding = Encoding(policy.tokenizer)
        self.ends = end_tokens(policy.model.generation_config, policy.tokenizer) | {policy.tokenizer.pad_token_id}
        self.scores: list[float] = []
        self.episodes: list[Trajectory] = []
        #: Through the network in the roll-out of this round; written in all rounds.
        self.tokens = self.written = 0

    def generate(
        self,
        questions: Sequence[Question],
        seed: int,
        first: int = 0,  # noqa: ARG002
        further: NextQuestion | None = None,  # noqa: ARG002
    ) -> RolloutBatch:
        torch.manual_seed(seed_of(seed, self.ours.round))
        began = time.monotonic()
        sampled, written = self._episodes(questions, also_ended=True)
        scored = time.monotonic()
        self.tokens = self.meter.take()
        self.written += written
        self.episodes += sampled
        rows = self.ours.sampled.rows
        self.scores = one_text_a_call(self.plain_reward, texts_of([row.trajectory for row in rows]))
        ended = time.monotonic()
        self._episodes(questions, also_ended=False)
        self.meter.take()
        seconds = {
            "sync_seconds": 0.0,
            "rollout_seconds": scored - began,
            "scoring_seconds": ended - scored,
            "careful_seconds": time.monotonic() - ended,
        }
        return RolloutBatch(
            rows, self.ours.sampled.metrics | {name: Mean(each, None) for name, each in seconds.items()}
        )

    def _episodes(self, questions: Sequence[Question], *, also_ended: bool) -> tuple[list[Trajectory], int]:
        """Episodes, and how many tokens were written for them, with padding and what was thrown away."""
        count = self.config.num_generations
        states = [Trajectory(question, self.agent.name) for question in questions for _ in range(count)]
        total = 0
        while any(state.stop is None for state in states):
            places = [place for place, state in enumerate(states) if also_ended or state.stop is None]
            replies, written = self._write([self._text(states[place]) for place in places])
            states = self._after(states, dict(zip(places, replies)))
            total += written
        return states, total

    def _text(self, state: Trajectory) -> tuple[Segment, Segment]:
        """The prompt, which a chat template may go around, and the text behind it."""
        prompt, *others = self.agent.render(state) if state.stop is None else state.context()
        return prompt, Segment(Author.ENVIRONMENT, "".join(segment.text for segment in others))

    def _write(self, texts: Sequence[tuple[Segment, Segment]]) -> tuple[list[Generation], int]:
        """The next step behind every text, and how many tokens that took."""
        rows = [[token for part in text for token in self.encoding.encode(part).tokens] for text in texts]
        width = max(map(len, rows))
        device, sampling = self.policy.model.device, self.episode.sampling
        padding = self.policy.tokenizer.pad_token_id
        found = self.policy.model.generate(
            input_ids=torch.tensor([[padding] * (width - len(row)) + row for row in rows], device=device),
            attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device),
            do_sample=True,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=0,
            max_new_tokens=sampling.max_tokens,
            stop_strings=list(self.agent.stops),
            tokenizer=self.policy.tokenizer,
            eos_token_id=sorted(self.ends),
            pad_token_id=padding,
            use_cache=True,
        )[:, width:]
        return [self._reply(row, tokens) for row, tokens in zip(rows, found.tolist())], found.numel()

    def _reply(self, row: Sequence[int], tokens: Sequence[int]) -> Generation:
        """What one row of the batch says: up to its end, for what is behind it is padding."""
        length = next((place for place, token in enumerate(tokens) if token in self.ends), len(tokens))
        text, stopped = cut_at_stop(self.encoding.decode(tokens[:length], after=row), self.agent.stops)
        finish = Finish.STOP if stopped else Finish.END if length < len(tokens) else Finish.LENGTH
        return Generation((), Segment(Author.POLICY, text), text, finish, Usage(len(row), length))

    def _after(self, states: Sequence[Trajectory], replies: Mapping[int, Generation]) -> list[Trajectory]:
        """The episodes one step further. All searches of a turn are made together."""
        turns = {
            place: take_step(self.agent, state, self.episode, 0)
            for place, state in enumerate(states)
            if state.stop is None
        }
        after = dict(enumerate(states))
        searches: dict[int, Retrieve] = {}
        for place, turn in turns.items():
            request = next(turn)
            assert isinstance(request, Generate)
            found = _sent(turn, replace(replies[place], context=request.context))
            if isinstance(found, Trajectory):
                after[place] = found
            else:
                searches[place] = found
        if searches:
            retriever: Any = self.driver.retriever
            passages = retriever.search([search.query for search in searches.values()], self.episode.k)
            after |= {place: _sent(turns[place], each) for place, each in zip(searches, passages)}
        return list(after.values())


def _sent(turn: Generator[Any, Any, Trajectory], reply: object) -> Any:
    """What an algorithm asks for next, or what it returns."""
    try:
        return turn.send(reply)
    except StopIteration as end:
        return end.value


class PlainTrainer(EpisodeTrainer):
    """The same trainer with trl's own log-probs."""

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
        return GRPOTrainer._get_per_token_logps_and_entropies(self, *arguments, **options)


# --- ours ---------------------------------------------------------------------------------------------------------


class OurRollouts(Rollouts):
    """Stepladder's own, which remembers what it sampled. Nothing is known from the round before."""

    def __init__(
        self, engine: TransformersEngine, playing: Precision, context: RunContext, settings: GRPOConfig, reward: Any
    ) -> None:
        self.engine, self.retriever = engine, context.retriever
        self.reward = reward
        driver, noting = Driver(engine, self.retriever), cast(Any, SimpleNamespace(score_logits=self._score))
        super().__init__(driver, context.agent, context.episode(), settings, noting, generating=playing)
        self.meter = Meter(engine.model)
        self.scores: list[float] = []
        self.episodes: list[Trajectory] = []
        self.tokens = self.written = self.round = 0

    def generate(
        self, questions: Sequence[Question], seed: int, first: int = 0, further: NextQuestion | None = None
    ) -> RolloutBatch:
        self.round += 1
        self.engine.on_idle()
        self.driver = Driver(self.engine, self.retriever)
        self.sampled = super().generate(questions, seed_of(seed, self.round), first, further)
        if failed := self.sampled.metrics["failed"].value:
            raise SystemExit(f"{failed:.0f} episodes failed: the ways would not do the same")
        self.episodes += [row.trajectory for row in self.sampled.rows]
        self.written += self.driver.counts.usage.written
        self.tokens = self.meter.take()
        return self.sampled

    def _score(self, sampled: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        found = raise_errors(self.reward.score_logits(sampled))
        self.scores = [score for each in found for score in each]
        return found


# --- both ---------------------------------------------------------------------------------------------------------


@dataclass
class Way:
    """One way to make a step: its rollouts, and a trainer around a policy of its own."""

    name: str
    rollouts: Any
    trainer: EpisodeTrainer
    reward_meter: Meter

    def step(self) -> tuple[dict[str, float], dict[str, int]]:
        """Make one; what the trainer told of it, and how many tokens went through the networks in each part."""
        self.trainer.train()
        row = dict(self.trainer.hooks.metrics.updates[-1])
        row["update_seconds"] -= row.setdefault("careful_seconds", 0.0)  # a roll-out more, which nothing was made of
        counts = (self.rollouts.tokens, self.reward_meter.take(), self.rollouts.meter.take())
        return row, dict(zip(PARTS, counts))


@dataclass
class Bench:
    """What both ways share."""

    context: RunContext
    questions: list[Question]
    settings: GRPOConfig
    place: Compute
    folder: Path

    def trainer(self, kind: type[EpisodeTrainer], policy: Policy, rollouts: Rollouts) -> EpisodeTrainer:
        settings = rollouts.config
        folder = self.folder / kind.__name__
        trainer = kind(
            policy.model,
            args=TrlGRPOConfig(
                output_dir=str(folder),
                per_device_train_batch_size=settings.batch_size,
                max_steps=1,
                learning_rate=0.0,
                bf16=self.place.bf16,
                use_cpu=self.place.device.type == "cpu",
                seed=self.place.seed,
                logging_steps=1,
                save_strategy="no",
                remove_unused_columns=False,
                report_to="none",
                disable_tqdm=True,
                log_level="error",
                gradient_checkpointing=False,
                use_cache=policy.model.config.use_cache,
                **grpo._grpo_arguments(settings),
            ),
            rollouts=rollouts,
            train_dataset=Dataset.from_dict({"prompt": [dumps(question) for question in self.questions]}),
            processing_class=policy.tokenizer,
        )
        checkpoints, metrics = Checkpoints(folder / "checkpoints"), MetricsLog(folder / "curves.jsonl", is_writer=False)
        trainer.attach(None, TrainerHooks(metrics, checkpoints, folder / "bad_batch.json", None, lambda _: None, None))
        return trainer

    def ways(self, policy_folder: str, reward_folder: Path) -> tuple[Way, Way]:
        """The reference and ours, with the same weights in objects of their own."""
        policies = [load_policy(policy_folder, None, bf16=False, device=self.place.device) for _ in range(2)]
        reward = ProcessRewardModel.load(reward_folder, device=str(self.place.device))
        plain = AutoModelForSequenceClassification.from_pretrained(reward_folder, dtype=reward.model.dtype)
        plain = plain.to(self.place.device).eval()
        engine, playing = make_rollout_engine(policies[0], self.place, self.settings.batch_size)
        assert isinstance(engine, TransformersEngine)
        check_same_tokenizer(engine.encoding, reward)
        ours = OurRollouts(engine, playing, self.context, self.settings, reward)
        all_rows = self.settings.model_copy(update={"drop_zero_std_groups": False})
        by_text = RolloutsByText(ours, all_rows, policies[1], plain, Meter(policies[1].model))
        return (
            Way("reference", by_text, self.trainer(PlainTrainer, policies[1], by_text), Meter(plain)),
            Way("Stepladder", ours, self.trainer(EpisodeTrainer, policies[0], ours), Meter(reward.model)),
        )


def compare(ways: tuple[Way, Way], rounds: int) -> None:
    told: dict[str, list[dict[str, float]]] = {way.name: [] for way in ways}
    tokens: dict[str, list[dict[str, int]]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in reversed(ways):  # ours first: the other one takes its episodes
            row, counts = way.step()
            told[way.name].append(row)
            tokens[way.name].append(counts)
    reference, ours = ways
    print(f"{'':<24}{'seconds':>23}{'':>9}{'tokens through the networks':>30}")
    print(f"{'':<24}{'reference':>11}{'Stepladder':>12}{'times':>9}{'reference':>16}{'Stepladder':>14}")
    careful = ("careful", "scoring", "update")
    for label, theirs, parts in (
        ("roll-out", ("rollout",), ("rollout",)),
        ("  ended ones left out", ("careful",), ("rollout",)),
        ("scoring", ("scoring",), ("scoring",)),
        ("update", ("update",), ("update",)),
        ("in all", PARTS, PARTS),
        ("  ended ones left out", careful, PARTS),
    ):
        them, us = median_seconds(told[reference.name], theirs), median_seconds(told[ours.name], parts)
        line = f"{label:<24}{them:>11.2f}{us:>12.2f}{them / us:>8.1f}x"
        if theirs == parts:
            read = [sum(counts[part] for counts in tokens[way.name] for part in parts) // rounds for way in ways]
            line += f"{read[0]:>16,}{read[1]:>14,}"
        print(line)
    print(f"aim: {AIM} times as fast in all\n")
    print(f"{'an episode':<12}{'steps':>8}{'answered':>10}{'tokens of its steps':>21}{'tokens written for them':>25}")
    for way in ways:
        _print_episodes(way.name, way.rollouts.episodes, way.rollouts.written)
    off = max(abs(a - b) for a, b in zip(reference.rollouts.scores, ours.rollouts.scores, strict=True))
    norms = [f"{told[way.name][-1]['grad_norm']:.4f}" for way in ways]
    dropped = statistics.mean(row["dropped_groups"] for row in told[ours.name])
    print(f"\nof the same episodes: scores differ by {off:.1e} at most; norms of the gradient: {' and '.join(norms)};")
    print(f"{dropped:.0%} of the questions teach nothing, and are left out by ours")


def median_seconds(told: Sequence[dict[str, float]], parts: Sequence[str]) -> float:
    return statistics.median(sum(row[f"{part}_seconds"] for part in parts) for row in told)


def _print_episodes(name: str, episodes: Sequence[Trajectory], written: int) -> None:
    count = len(episodes)
    steps = sum(len(each.steps) for each in episodes) / count
    kept = sum(step.usage.written for each in episodes for step in each.steps) / count
    answered = sum(each.answer is not None for each in episodes) / count
    print(f"{name:<12}{steps:>8.1f}{answered:>10.0%}{kept:>21.0f}{written / count:>25.0f}")


# --- what is measured ---------------------------------------------------------------------------------------------


def warmed_up(folder: Path, device: str) -> str:
    """The policy of the recipe's first stage, without dev questions."""
    print("warming up nano (once; half a minute)", flush=True)
    recipe = load_recipe(RECIPE, [f"device={device}", "stages.sft.dev_questions=0"])
    recipe = replace(recipe, stages=tuple(stage for stage in recipe.stages if stage.kind == "sft"))
    policy = run_recipe(recipe, folder).policy
    assert policy is not None
    return str(policy)


def with_random_head(policy: str, folder: Path) -> Path:
    model, tokenizer = load_model(policy, None, torch.float32)
    scoring: Any = with_scalar_head(model, tokenizer, policy)
    torch.nn.init.normal_(scoring.score.weight, generator=torch.Generator().manual_seed(0))
    ProcessRewardModel(scoring, tokenizer).save(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", help="a warmed-up policy; without one, nano is warmed up first")
    parser.add_argument("--reward", type=Path, help="a reward model; without one, the policy with a random head")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4, help="episodes of each question")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    settings = GRPOConfig(
        questions=given.questions,
        num_generations=given.samples,
        batch_size=given.questions * given.samples,
        precision="bf16",
        monitors=MonitorConfig(stop=False),
    )
    context = RunContext(load_recipe(RECIPE).shared)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        policy = given.policy or warmed_up(folder / "run", given.device)
        reward = given.reward or with_random_head(policy, folder / "reward")
        questions = sample_questions(context.split("train"), given.questions, 0, balance=True)
        training = TrainingContext(
            context.agent, questions, (), context.retriever, context.episode(), folder, device=given.device
        )
        place = prepare_compute(settings, training, "grpo")
        with quiet_libraries():
            ways = Bench(context, questions, settings, place, folder).ways(policy, reward)
            size = sum(weights.numel() for weights in ways[0].trainer.model.parameters()) / 1e6
            limits = context.episode()
            print(f"{size:.1f}M parameters, bf16 autocast, {place.device}, {torch.get_num_threads()} threads")
            shape = f"{given.questions} questions x {given.samples} samples, {given.rounds} rounds"
            print(f"{shape}, {context.agent.name}, k={limits.k}, ", end="")
            print(f"up to {limits.max_steps} steps of {limits.sampling.max_tokens} tokens", flush=True)
            compare(ways, given.rounds)


if __name__ == "__main__":
    main()
