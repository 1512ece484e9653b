"""trl's GRPOTrainer on our episodes: one advantage per step, and a loss on the policy's own tokens only.

In: a policy and its rollouts. Out: what `BaseTrainer` writes, with rewards, entropy, clipping, KL, the time of each
part, and the difference between the engine's and the trainer's log-probs.

trl computes the loss with clipping and keeps the reference model. It calls `rollout_func` for episodes, one row per
sample, and would give all tokens of a row the same advantage; here its tensors get the advantages of the steps. It
would also compute the log-probs of every token, while only those in the loss are needed, about a third. Log-probs and
entropies of tokens that were sampled under a grammar are those of the distribution that they were sampled from: the
model's, over the tokens that the grammar allowed.

A row's prompt is its first token; everything else is completion, with `env_mask` 0 on tokens that the policy did not
write. So nothing is padded on the left, and positions are those of the engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import trl
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch import nn
from transformers import Trainer

from stepladder.core.io.records import loads
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question
from stepladder.train.grpo.allowed_tokens import allowed_tokens
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.importance import ImportanceCorrection
from stepladder.train.grpo.monitors import ALARMS, Monitors, write_alarms
from stepladder.train.grpo.refill import Refills
from stepladder.train.grpo.rollback import RollbackCheckpoints
from stepladder.train.grpo.rollouts import Mean, RolloutBatch, Rollouts, joined, no_steps_error
from stepladder.train.grpo.token_rows import TokenRow, empty_row, padded, token_row
from stepladder.train.loop.base_trainer import BaseTrainer, BatchItems, TrainerHooks, TRLOverrides, eval_mode
from stepladder.train.loop.metrics_log import MetricsLog
from stepladder.train.loop.microbatches import split_microbatches
from stepladder.train.transcripts.selected_logits import Allowed, token_logps

#: trl's names of metrics -> ours.
_METRICS = {"entropy": "entropy", "kl": "kl", "clip_ratio/region_mean": "clipped"}
#: Rows of an update on which the KL divergence is estimated if it is not part of the loss.
_KL_ROWS = 8
#: The parts of the time before an update: bringing the weights to the engine, episodes, step scores.
BEFORE_UPDATE = ("sync", "rollout", "scoring")


class EpisodeTrainer(TRLOverrides, trl.GRPOTrainer, BaseTrainer):  # type: ignore[misc,name-defined]
    """GRPO with step-level advantages."""

    args: Any
    processing_class: Any
    _metrics: Any

    def __init__(
        self,
        *arguments: Any,
        rollouts: Rollouts,
        reference: nn.Module | None = None,
        refills: Refills | None = None,
        **options: Any,
    ) -> None:
        """The prompts of the dataset are questions as JSON records.

        `reference`: the initial policy, for the KL divergence. With LoRA none is needed. `refills`: further questions,
        for updates with groups without signal.
        """
        options |= {"reward_funcs": [_reward], "rollout_func": self._roll_out}
        super().__init__(*arguments, **options)
        if reference is not None:  # trl would load it by the name of the policy, which may have none
            self.beta = rollouts.config.beta
            self.ref_model = self.prepared(reference)
        self.rollouts, self.refills = rollouts, refills
        self.importance = ImportanceCorrection(self, rollouts.config)
        self.rollout_batch: RolloutBatch | None = None
        self.rows: list[TokenRow] = []
        #: The loss mask of the rows that are computed next, and their log-probs afterwards.
        self._loss_mask_BT: torch.Tensor | None = None
        #: The indices of these rows in `rows`.
        self._indices: list[int] = []
        self._logps_BT: torch.Tensor | None = None
        self._gaps: list[torch.Tensor] = []
        #: The KL divergence of this update, if it is not part of the loss; and the weight of the tokens in the loss.
        self._kl: float | None = None
        self._weight_in_loss = 0.0
        #: Whether any episode of this update has a signal, on any device.
        self._has_signal = True

    def attach(self, lengths: Sequence[int] | None, hooks: TrainerHooks) -> None:
        """Complete the trainer, and set up its monitors."""
        config, folder, metrics = self.rollouts.config, hooks.checkpoints.folder, hooks.metrics
        checkpoints = RollbackCheckpoints(folder, metrics, config.monitors.window, config.num_iterations)
        super().attach(lengths, replace(hooks, checkpoints=checkpoints))
        self.alarms = hooks.bad_batch.with_name(ALARMS)
        # Without a KL term in the loss, the estimate of the KL is for curves only.
        limits = config.monitors if config.beta else config.monitors.model_copy(update={"kl": None})
        self.monitors = Monitors(limits, metrics.updates)
        if metrics.is_writer:
            write_alarms(self.alarms, self.monitors.raised)

    # --- episodes

    def _roll_out(self, prompts: Sequence[str], _: Any) -> dict[str, list[Any]]:
        """trl's `rollout_func`: every prompt is repeated `num_generations` times, in a row."""
        group = self.rollouts.config.num_generations
        questions = [loads(prompt, Question) for prompt in prompts[::group]]
        batch = self.state.global_step // self.num_iterations
        with eval_mode(self.model), torch.no_grad():
            # The seed depends on the update, so that a resumed run generates the same episodes.
            self.rollout_batch = self.rollouts.generate(
                questions,
                seed_of(self.args.seed, "episodes", self.state.global_step),
                first=self.args.process_index * len(questions),  # processes have equal shares, in order
                further=None if self.refills is None else self.refills.of(batch),
            )
        self.questions = [row.trajectory.question.id for row in self.rollout_batch.rows[::group]]
        if not any(gather_object([self.rollout_batch.has_steps])):
            raise no_steps_error()
        loss_type, padding = self.rollouts.config.loss_type, self.processing_class.pad_token_id
        self.rows = [
            token_row(row, loss_type) if row.trajectory.steps else empty_row(padding) for row in self.rollout_batch.rows
        ]
        width = max(len(row["ids"]) for row in self.rows) - 1
        self._loss_mask_BT = torch.tensor([padded(row["loss_mask"][1:], width) for row in self.rows]) > 0
        self._indices = list(range(len(self.rows)))
        return {
            "prompt_ids": [row["ids"][:1] for row in self.rows],
            "completion_ids": [row["ids"][1:] for row in self.rows],
            "logprobs": [row["logprobs"][1:] for row in self.rows],
            "env_mask": [row["loss_mask"][1:] for row in self.rows],
            "episode_rewards": [row.reward for row in self.rollout_batch.rows],
        }

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """trl's tensors, with the advantages of steps, and without groups whose advantages are all 0."""
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        width = batch["completion_ids"].shape[1]
        columns = {"advantages"} if self.rollouts.config.loss_type == "token" else {"advantages", "loss_weights"}
        for name in columns:
            values_BT = torch.tensor([padded(row[name][1:], width) for row in self.rows])
            batch[name] = values_BT.to(batch["completion_ids"].device)
        if any(row["grammars"] for row in self.rows):
            batch["row_index"] = torch.arange(len(self.rows), device=batch["completion_ids"].device)
        counts = {
            "all": sum(len(row["ids"]) for row in self.rows),
            "own": sum(sum(row["loss_mask"]) for row in self.rows),
        }
        gathered = self.gathered(counts)
        self.tokens, self.policy_tokens = int(gathered["all"].sum()), int(gathered["own"].sum())
        if self.rollouts.config.drop_zero_std_groups:
            batch = self._without_zero_std_groups(batch)
        batch["num_items_in_batch"] = self.accelerator.gather(_weights_in_loss(batch).sum()).sum()
        return batch

    def _without_zero_std_groups(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The rows of groups with a signal, filled up to equal microbatches with masked rows.

        Without any signal some rows remain, for their metrics.
        """
        group, parts = self.rollouts.config.num_generations, self.args.steps_per_generation
        mask_BT = batch["completion_mask"] * batch["tool_mask"]
        signal_BT = (batch["advantages"] != 0) & (mask_BT != 0)
        signal_B = signal_BT.view(-1, group * signal_BT.shape[1]).any(dim=1).repeat_interleave(group)
        count = max(-(-int(signal_B.sum()) // parts) * parts, parts)
        order_B = 2 * signal_B.int() + mask_BT.any(dim=1).int()
        kept = torch.argsort(order_B, descending=True, stable=True)[:count]
        found = {name: tensor[kept] if _is_per_row(tensor) else tensor for name, tensor in batch.items()}
        self._has_signal = bool(self.accelerator.gather(signal_B.sum()).sum())
        if self._has_signal:
            found["tool_mask"] = found["tool_mask"] * signal_B[kept, None]
        width = max(int((found["completion_mask"].sum(dim=1)).max()), 1)
        for name, tensor in found.items():
            if _is_per_row(tensor) and tensor.dim() == 2 and not name.startswith("prompt"):
                found[name] = tensor[:, :width]
        return found

    # --- the update

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """The prompts of one update; their loss weight is known after the rollouts."""
        self.start_update()
        return Trainer.get_batch_samples(self, epoch_iterator, num_batches, device)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Of the tokens in the loss; trl would compute those of all."""
        assert self._loss_mask_BT is not None
        logps_BT, entropies_BT = token_logps(
            model,
            input_ids,
            attention_mask.sum(dim=1),
            self._loss_mask_BT.to(input_ids.device),
            self.temperature,
            self.accelerator.autocast,
            self._allowed(self._indices),
            in_one_pass=not self.is_unsharded,
        )
        if torch.is_grad_enabled():
            self._logps_BT = logps_BT.detach()
            self.importance.compute(self._logps_BT, self._loss_mask_BT.to(input_ids.device))
        return logps_BT, entropies_BT, None

    def _allowed(self, indices: Sequence[int]) -> Allowed | None:
        """Which tokens were allowed in these rows; None if all tokens were, everywhere."""
        rows = [self.rows[index] for index in indices]
        if not any(row["grammars"] for row in rows):
            return None
        return partial(allowed_tokens, self.rollouts.grammar_masks, rows)

    def training_step(self, model: nn.Module, *arguments: Any) -> torch.Tensor:
        """Without a signal there is no gradient, so that not even the momentum of earlier updates moves the weights."""
        loss: torch.Tensor = super().training_step(model, *arguments)
        if not self._has_signal:
            model.zero_grad()
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: BatchItems = None
    ) -> torch.Tensor:
        """trl's loss: a sum over tokens by their weights, divided by the weight of all."""
        assert not return_outputs
        logged = self._metrics["train" if self.model.training else "eval"]
        before = {name: len(values) for name, values in logged.items()}
        in_loss: list[float] = []

        def loss_of(part: Any) -> torch.Tensor:
            in_loss.append(float(_weights_in_loss(part).sum()))
            with self.local_metrics():
                return self._loss(model, part, num_items_in_batch)

        loss = self.accumulate(inputs, loss_of)
        self._weight_in_loss += sum(in_loss)
        for name, values in logged.items() if len(in_loss) > 1 else ():
            parts = values[before.get(name, 0) :]
            if len(parts) == len(in_loss):  # trl logged it once per microbatch, as a mean by their weights
                mean = sum(value * count for value, count in zip(parts, in_loss)) / max(sum(in_loss), 1.0)
                values[before.get(name, 0) :] = [mean]
        return loss

    def microbatches(self, batch: Any) -> Iterator[Any]:
        """Some rows each."""
        return split_microbatches(batch, batch["completion_mask"].sum(dim=1) + 1, self.max_tokens)

    def without_loss(self, microbatch: Any) -> Any:
        """With an empty mask."""
        return {**microbatch, "tool_mask": torch.zeros_like(microbatch["tool_mask"])}

    def _loss(self, model: nn.Module, inputs: Any, num_items_in_batch: torch.Tensor | int | None) -> torch.Tensor:
        """The loss of some rows. Their log-probs are also compared with those of the engine."""
        self._loss_mask_BT, self._logps_BT = (inputs["completion_mask"] * inputs["tool_mask"]).bool(), None
        self._indices = inputs["row_index"].tolist() if "row_index" in inputs else []
        if "loss_weights" in inputs:
            inputs = {**inputs, "tool_mask": inputs["tool_mask"] * inputs["loss_weights"]}
        with self.importance.applied(inputs):
            loss: torch.Tensor = super().compute_loss(model, inputs, False, num_items_in_batch)
        engine = inputs.get("sampling_per_token_logps")
        fresh = self._step % (self.args.steps_per_generation * self.num_iterations) < self.args.steps_per_generation
        if fresh and not self.beta and self._kl is None:
            self._kl = self._estimate_kl(inputs)
        if engine is not None and self._logps_BT is not None and fresh and self.temperature == 1:
            # The engine's log-probs are at temperature 1; at another temperature the trainer's differ.
            known = self._loss_mask_BT & ~torch.isnan(engine)
            self._gaps.append((self._logps_BT - engine)[known].abs())
        return loss

    def _estimate_kl(self, inputs: Any) -> float | None:
        """KL(policy || initial policy) per token on a few rows, as trl estimates it; None without a reference."""
        if self._logps_BT is None or self._loss_mask_BT is None or not self.is_unsharded:
            return None
        ids_BT = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)[:_KL_ROWS]
        lengths_B = inputs["prompt_mask"].sum(dim=1) + inputs["completion_mask"].sum(dim=1)
        mask_BT = self._loss_mask_BT[:_KL_ROWS]
        with torch.no_grad(), self.reference() as reference:
            if reference is None:
                return None
            logps_BT, _ = token_logps(
                reference,
                ids_BT,
                lengths_B[:_KL_ROWS],
                mask_BT,
                self.temperature,
                self.accelerator.autocast,
                self._allowed(self._indices[:_KL_ROWS]),
            )
        gaps = (logps_BT - self._logps_BT[:_KL_ROWS])[mask_BT]
        return float((gaps.exp() - gaps - 1).mean()) if gaps.numel() else None

    # --- metrics

    def reported_metrics(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Errors instead of valid episodes, and nothing that trl logs under its own name."""
        logged = set(_METRICS.values()) - (set() if self.beta else {"kl"})
        found = {name: value for name, value in metrics.items() if name not in ("valid", *logged)}
        # trl logs those of this process; here are those of all.
        found |= {theirs: metrics[ours] for theirs, ours in _METRICS.items() if ours in logged and ours in metrics}
        if "valid" in metrics:
            found["format_errors"] = 1 - metrics["valid"]
        return found

    def update_metrics(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Of the episodes, of trl's loss, and the time of each part."""
        assert self.rollout_batch is not None
        # With num_iterations, episodes are new only in the first of several updates: they are logged once.
        fresh = (self.state.global_step - 1) % self.num_iterations == 0
        no_episodes = {f"{part}_seconds": Mean(0.0, None) for part in BEFORE_UPDATE}
        metrics = dict(self.rollout_batch.metrics) if fresh else no_episodes
        gaps = torch.cat(self._gaps).double() if self._gaps else torch.zeros(0)
        self._gaps.clear()
        if gaps.numel():
            metrics["logprob_gap_mean"] = Mean(float(gaps.sum()), gaps.numel())
        metrics |= self.importance.take_metrics()
        if self._kl is not None:
            metrics["kl"], self._kl = Mean(self._kl, 1), None
        weight, self._weight_in_loss = round(self._weight_in_loss), 0.0  # of tokens, steps or episodes: a whole number
        for theirs, ours in _METRICS.items():
            if logs.get(theirs) is not None and weight:
                metrics[ours] = Mean(logs[theirs] * weight, weight)
        largest = max(gather_object([float(gaps.max()) if gaps.numel() else -1.0]))
        total = joined(gather_object([metrics]))
        return total | ({"logprob_gap_max": largest} if largest >= 0 else {})

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """One row per update, which the monitors check."""
        super().log(logs, start_time)
        if "loss" not in logs:  # the trainer's own summary at the end
            return
        row, config = self.hooks.metrics.rows[-1], self.rollouts.config
        row["update_seconds"] = round(row["seconds"] - sum(row[f"{part}_seconds"] for part in BEFORE_UPDATE), 4)
        if out_of_time(self.hooks.metrics, config) or out_of_tokens(self.hooks.metrics, config):
            self._end()
            self.control.should_evaluate = self.hooks.dev_eval is not None  # the last weights need a dev score
        new = self.monitors.check(row)
        if new and self.hooks.metrics.is_writer:
            write_alarms(self.alarms, self.monitors.raised)
            for alarm in new:
                self.hooks.alarm(f"alarm at update {alarm.step}: {alarm.name}: {alarm.message}")
        if any(alarm.stopped for alarm in new):
            self._end()

    def _end(self) -> None:
        self.control.should_training_stop = True
        self.control.should_save = True


def out_of_time(metrics: MetricsLog, config: GRPOConfig) -> bool:
    """Whether the updates so far have used up the time limit."""
    limit = config.minutes
    return limit is not None and sum(row["seconds"] for row in metrics.updates) >= 60 * limit


def out_of_tokens(metrics: MetricsLog, config: GRPOConfig) -> bool:
    """Whether the episodes so far have used up the token budget, and all updates with them are made."""
    rows, limit = metrics.updates, config.token_budget
    if limit is None or len(rows) % config.num_iterations:
        return False
    written: float = sum(row["written"] for row in rows[:: config.num_iterations])
    return written >= limit


def _weights_in_loss(batch: Mapping[str, Any]) -> torch.Tensor:
    """What each token counts in the loss: 0 for those that are not part of it."""
    weights_BT: torch.Tensor = batch["completion_mask"] * batch["tool_mask"]
    return weights_BT * batch["loss_weights"] if "loss_weights" in batch else weights_BT


def _reward(episode_rewards: Sequence[float], **_: Any) -> list[float]:
    """trl's reward function: the reward computed in the rollout."""
    return list(episode_rewards)


def _is_per_row(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dim() > 0
