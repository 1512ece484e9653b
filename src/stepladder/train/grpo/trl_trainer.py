"""trl's GRPOTrainer on our episodes: an advantage for every step, and a loss on the policy's own tokens alone.

In: a policy and what plays it. Out: what `BaseTrainer` writes, with rewards, entropy, clipping, divergence, the time
of each part, and how far the engine and the trainer disagree about the policy's log-probs.

trl has the loss, its clipping and the reference. It asks for episodes through `rollout_func`, one row a sample, and
would give all tokens of a row the same advantage; the rows get those of their steps here, after it has made its
tensors. It would also compute the log-probs of every token, while only the policy's are needed: a third of them.

A row's prompt is its first token, and everything else counts as completion, with `env_mask` 0 on what the policy did
not write. So nothing is padded on the left, and positions are those that the engine saw.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import Trainer
from trl import GRPOTrainer  # type: ignore[attr-defined]

from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit import CreditedEpisode
from stepladder.train.grpo.monitors import ALARMS, Monitors, write_alarms
from stepladder.train.grpo.rollback import RollbackCheckpoints
from stepladder.train.grpo.rollouts import RolloutBatch, Rollouts, multiple_contexts
from stepladder.train.loop.metrics_log import MetricsLog
from stepladder.train.loop.microbatches import in_parts
from stepladder.train.loop.token_logps import token_logps
from stepladder.train.loop.base_trainer import BaseTrainer, TrainerHooks

#: Measures of episodes that are sums, not means; and curves by the names that trl gives them.
_COUNTS = ("written", "failed")
_MEASURES = {"entropy": "entropy", "kl": "kl", "clip_ratio/region_mean": "clipped"}


def token_row(credited: CreditedEpisode) -> dict[str, list[Any]]:
    """An episode as tokens: ids, whether each is learnt from, the advantage of its step, the engine's log-prob."""
    ids: list[int] = []
    learns: list[int] = []
    advantages: list[float] = []
    logprobs: list[float] = []
    for number, step in enumerate(credited.trajectory.steps):
        if step.restarts and number:
            raise multiple_contexts(credited.trajectory.agent)
        read = [token for segment in step.read for token in segment.tokens]
        written = list(step.written.tokens)
        ids += read + written
        learns += [0] * len(read) + [int(credited.learns[number])] * len(written)
        advantages += [0.0] * len(read) + [credited.advantages[number]] * len(written)
        known = list(step.written.logprobs) or [float("nan")] * len(written)
        logprobs += [float("nan")] * len(read) + known
    return {"ids": ids, "learns": learns, "advantages": advantages, "logprobs": logprobs}


class EpisodeTrainer(GRPOTrainer, BaseTrainer):
    """GRPO, watched."""

    loss_is_scaled_for_ga = True  # type: ignore[assignment] # trl says None, transformers a bool
    args: Any
    model: Any
    processing_class: Any
    _metrics: Any

    def __init__(
        self,
        *arguments: Any,
        rollouts: Rollouts,
        questions: Mapping[str, Question],
        reference: nn.Module | None = None,
        **options: Any,
    ) -> None:
        """`questions` by their ids, which are the prompts of the data set.

        `reference`: the policy as it came, where it is held to that and LoRA does not leave it as it is.
        """
        options |= {"reward_funcs": [_earned], "rollout_func": self._roll_out}
        super().__init__(*arguments, **options)
        if reference is not None:  # trl would load one by the name of the policy, which may have none
            self.beta = rollouts.settings.beta
            self.ref_model = self.accelerator.prepare_model(reference, evaluation_mode=True)
        self.rollouts = rollouts
        self.asked = questions
        self.played: RolloutBatch | None = None
        self.rows: list[dict[str, list[Any]]] = []
        #: What is learnt from in the rows that are computed next, and their log-probs when they have been.
        self._learnt_BT: torch.Tensor | None = None
        self._logps_BT: torch.Tensor | None = None
        self._gaps: list[torch.Tensor] = []
        #: Whether there is anything to learn in this update, on any device.
        self._learns = True

    def attach(self, lengths: Sequence[int] | None, watching: TrainerHooks) -> None:
        """Complete the trainer, and set its guards."""
        settings = self.rollouts.settings
        folder, curves = watching.checkpoints.folder, watching.curves
        retreat = RollbackCheckpoints(folder, curves, settings.monitors.window, settings.num_iterations)
        super().attach(lengths, replace(watching, checkpoints=retreat))
        self.alarms = watching.bad_batch.with_name(ALARMS)
        self.guards = Monitors(settings.monitors, curves.updates)
        if curves.writes:
            write_alarms(self.alarms, self.guards.raised)

    def _send_telemetry(self) -> None:
        """Training calls nobody."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """The run folder says what was done, and how."""

    # --- episodes

    def _roll_out(self, prompts: Sequence[str], _: Any) -> dict[str, list[Any]]:
        """What trl asks for: the prompts come once for every sample, those of a question in a row."""
        samples = self.rollouts.settings.num_generations
        questions = [self.asked[prompt] for prompt in prompts[::samples]]
        self.questions = [question.id for question in questions]
        training = self.model.training
        self.model.eval()
        with torch.no_grad():
            # The seed follows from the update, so that a run that is resumed plays what it would have played.
            self.played = self.rollouts.play(questions, seed_of(self.args.seed, "episodes", self.state.global_step))
        self.model.train(training)
        self.rows = [token_row(row) if row.trajectory.steps else self._empty() for row in self.played.rows]
        width = max(len(row["ids"]) for row in self.rows) - 1
        self._learnt_BT = torch.tensor([_filled(row["learns"][1:], width) for row in self.rows]) > 0
        return {
            "prompt_ids": [row["ids"][:1] for row in self.rows],
            "completion_ids": [row["ids"][1:] for row in self.rows],
            "logprobs": [row["logprobs"][1:] for row in self.rows],
            "env_mask": [row["learns"][1:] for row in self.rows],
            "earned": [row.reward for row in self.played.rows],
        }

    def _empty(self) -> dict[str, list[Any]]:
        """In place of an episode that broke before its first word."""
        padding = self.processing_class.pad_token_id
        return {"ids": [padding] * 2, "learns": [0] * 2, "advantages": [0.0] * 2, "logprobs": [float("nan")] * 2}

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """trl's tensors, with the advantages of steps, and without questions that teach nothing."""
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        width = batch["completion_ids"].shape[1]
        advantages_BT = torch.tensor([_filled(row["advantages"][1:], width) for row in self.rows])
        batch["advantages"] = advantages_BT.to(batch["completion_ids"].device)
        self.tokens = sum(len(row["ids"]) for row in self.rows)
        self.policy_tokens = sum(sum(row["learns"]) for row in self.rows)
        return self._without_flat(batch) if self.rollouts.settings.drop_zero_std_groups else batch

    def _without_flat(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The rows of questions with something to learn, filled up to whole parts by others that do not count.

        Where there is nothing at all, some rows stay to be measured.
        """
        samples, parts = self.rollouts.settings.num_generations, self.args.steps_per_generation
        learnt_BT = batch["completion_mask"] * batch["tool_mask"]
        taught_BT = (batch["advantages"] != 0) & (learnt_BT != 0)
        taught_B = taught_BT.view(-1, samples * taught_BT.shape[1]).any(dim=1).repeat_interleave(samples)
        count = max(-(-int(taught_B.sum()) // parts) * parts, parts)
        order_B = 2 * taught_B.int() + learnt_BT.any(dim=1).int()
        kept = torch.argsort(order_B, descending=True, stable=True)[:count]
        found = {name: tensor[kept] if _is_by_rows(tensor) else tensor for name, tensor in batch.items()}
        self._learns = bool(self.accelerator.gather(taught_B.sum()).sum())
        if self._learns:
            found["tool_mask"] = found["tool_mask"] * taught_B[kept, None]
        width = max(int((found["completion_mask"].sum(dim=1)).max()), 1)
        for name, tensor in found.items():
            if _is_by_rows(tensor) and tensor.dim() == 2 and not name.startswith("prompt"):
                found[name] = tensor[:, :width]
        learnt = (found["completion_mask"] * found["tool_mask"]).sum()
        found["num_items_in_batch"] = self.accelerator.gather(learnt).sum()
        return found

    # --- the update

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """The prompts of one update; what they weigh is known when they have been played."""
        self._begin()
        return Trainer.get_batch_samples(self, epoch_iterator, num_batches, device)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Of the tokens that are learnt from; trl would compute those of all."""
        assert self._learnt_BT is not None
        logps_BT, entropies_BT = token_logps(
            model,
            input_ids,
            attention_mask.sum(dim=1),
            self._learnt_BT.to(input_ids.device),
            self.temperature,
            self.accelerator.autocast,
        )
        if torch.is_grad_enabled():
            self._logps_BT = logps_BT.detach()
        return logps_BT, entropies_BT, None

    def training_step(self, model: nn.Module, *arguments: Any) -> torch.Tensor:
        """An update with nothing to learn is none: the momentum of earlier ones would move the weights on."""
        loss: torch.Tensor = super().training_step(model, *arguments)  # type: ignore[no-untyped-call]
        if not self._learns:
            model.zero_grad()
        return loss

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """trl's loss, which is a sum over tokens by the number of all."""
        assert not return_outputs
        told = self._metrics["train" if self.model.training else "eval"]
        before = {name: len(values) for name, values in told.items()}
        learnt: list[float] = []

        def loss_of(part: Any) -> torch.Tensor:
            learnt.append(float((part["completion_mask"] * part["tool_mask"]).sum()))
            return self._loss(model, part, num_items_in_batch)

        loss = self.in_parts(inputs, loss_of)
        for name, values in told.items() if len(learnt) > 1 else ():
            parts = values[before.get(name, 0) :]
            if len(parts) == len(learnt):  # trl has told it once a part, as a mean over what is learnt there
                mean = sum(value * count for value, count in zip(parts, learnt)) / max(sum(learnt), 1.0)
                values[before.get(name, 0) :] = [mean]
        return loss

    def parts_of(self, batch: Any) -> Iterator[Any]:
        """Some rows after the other."""
        return in_parts(batch, batch["completion_mask"].sum(dim=1) + 1, self.at_once)

    def _loss(self, model: nn.Module, inputs: Any, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor:
        """Of some rows; on the way the policy's log-probs are compared with those that the engine reported."""
        self._learnt_BT, self._logps_BT = (inputs["completion_mask"] * inputs["tool_mask"]).bool(), None
        loss: torch.Tensor = GRPOTrainer.compute_loss(self, model, inputs, False, num_items_in_batch)
        engine = inputs.get("sampling_per_token_logps")
        fresh = self._step % (self.args.steps_per_generation * self.num_iterations) < self.args.steps_per_generation
        if engine is not None and self._logps_BT is not None and fresh and self.temperature == 1:
            # The engine tells log-probs of the model itself; at another temperature the trainer's are of another thing.
            known = self._learnt_BT & ~torch.isnan(engine)
            self._gaps.append((self._logps_BT - engine)[known].abs())
        return loss

    # --- what is told

    def measures(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Of the episodes, of trl's loss, and the time of each part."""
        assert self.played is not None
        # Episodes are played for the first of several updates. Told again they would look like more of the same.
        fresh = (self.state.global_step - 1) % self.num_iterations == 0
        told = dict(self.played.measures) if fresh else {"rollout_seconds": 0.0, "scoring_seconds": 0.0}
        gaps = torch.cat(self._gaps) if self._gaps else torch.zeros(0)
        self._gaps.clear()
        if gaps.numel():
            told |= {"logprob_gap_mean": float(gaps.mean()), "logprob_gap_max": float(gaps.max())}
        names = sorted(told)
        numbers = torch.tensor([[told[name] for name in names]], dtype=torch.float64, device=self.args.device)
        gathered = self.accelerator.gather(numbers)
        over_all = [
            (gathered[:, n].sum() if name in _COUNTS else gathered[:, n].mean()) for n, name in enumerate(names)
        ]
        ours = {ours: logs[theirs] for theirs, ours in _MEASURES.items() if logs.get(theirs) is not None}
        return {**{name: float(value) for name, value in zip(names, over_all)}, **ours}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """One row an update, which the guards look at."""
        super().log(logs, start_time)
        if "loss" not in logs:  # the trainer's own summary at the end
            return
        row = self.watching.curves.rows[-1]
        row["update_seconds"] = round(row["seconds"] - row["rollout_seconds"] - row["scoring_seconds"], 4)
        if out_of_time(self.watching.curves, self.rollouts.settings):
            self._end()
            self.control.should_evaluate = self.watching.dev_score is not None  # else what was learnt last has no score
        new = self.guards.look(row)
        if new and self.watching.curves.writes:
            write_alarms(self.alarms, self.guards.raised)
            for alarm in new:
                print(f"alarm at update {alarm.step}: {alarm.name}: {alarm.message}", file=sys.stderr)
        if any(alarm.stopped for alarm in new):
            self._end()

    def _end(self) -> None:
        self.control.should_training_stop = True
        self.control.should_save = True


def out_of_time(curves: MetricsLog, settings: GRPOConfig) -> bool:
    """Whether the updates so far have taken all the time there was."""
    limit = settings.minutes
    return limit is not None and sum(row["seconds"] for row in curves.updates) >= 60 * limit


def _earned(earned: Sequence[float], **_: Any) -> list[float]:
    """The reward that came with an episode."""
    return list(earned)


def _filled(numbers: Sequence[float], width: int) -> list[float]:
    return [*numbers, *[0.0] * (width - len(numbers))]


def _is_by_rows(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dim() > 0
