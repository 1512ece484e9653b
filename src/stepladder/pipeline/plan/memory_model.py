"""Memory of a stage on one device: weights, gradients, optimizer, copies for generation, activations, KV cache.

In: the shape of the model, the work of a stage, its settings, the device. Out: `StageMemory`: the expected peak, which
may use what is free for larger batches, and the least that works. The parts are those of the trainers as they are:
fp32 weights under bf16 autocast, or frozen bf16 weights with LoRA; a bf16 copy for rollouts; logits only of predicted
tokens, in dpo of all.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from stepladder.pipeline.plan.cost_constants import Rates
from stepladder.pipeline.plan.gpu_cluster import GIB, Cluster
from stepladder.pipeline.plan.model_shape import ModelShape
from stepladder.pipeline.plan.stage_work import StageWork, Training

#: Below this number of parameters, rollouts use the weights in training, and batches are not split.
_SMALL = 100e6
#: As in `train/loop/microbatches.py`: the share of the free memory for activations, and the fewest tokens.
_FREE_CUDA, _FREE_CPU, _MIN_TOKENS = 0.6, 0.25, 2048
#: As in `engines/paged/kv_cache.py`: the share of a GPU for the KV cache, and of what is free.
_KV_SHARE, _KV_FREE = 3 / 8, 0.8
#: vLLM: the usual share of the memory, and what it takes beside weights and KV cache.
_VLLM_SHARE, _VLLM_BYTES, _VLLM_ROW_BYTES = 0.85, 2.0e9, 8
#: Bytes of optimizer state per trained weight.
_STATE = {"adafactor": 0.1, "sgd": 0.0, "adagrad": 4.0, "rmsprop": 4.0, "lion_32bit": 4.0, "lion_8bit": 1.0}
#: The cache of prefixes on a CPU: this share of the memory, at most.
_PREFIX_SHARE, _PREFIX_MOST = 0.1, 4 * GIB
#: Bytes that the cache has on a CPU, relative to those of the whole context of every request.
_CACHED = 1.35
#: Buffers of a backward pass on a CPU.
_BUFFERS = 0.25e9


@dataclass(slots=True)
class StageMemory:
    """Bytes on one device, by part."""

    #: What is there all the time.
    fixed: dict[str, float] = field(default_factory=dict)
    #: While training, and while generating: the least, and what is expected.
    training: tuple[float, float] = (0.0, 0.0)
    generating: tuple[float, float] = (0.0, 0.0)
    #: Of that, what stays while training.
    kept: tuple[float, float] = (0.0, 0.0)
    #: vLLM's share of the device.
    vllm: float = 0.0
    #: While the recipe's vLLM generates before or after training, alone: the least, and what is expected.
    apart: tuple[float, float] = (0.0, 0.0)
    factor: float = 1.0

    @property
    def needed(self) -> float:
        """The least that works."""
        return self._peak(0)

    @property
    def expected(self) -> float:
        """The expected peak."""
        return self._peak(1)

    def _peak(self, kind: int) -> float:
        busy = max(self.training[kind] + self.kept[kind], self.generating[kind])
        return max((sum(self.fixed.values()) + busy) * self.factor + self.vllm, self.apart[kind])

    def parts(self) -> dict[str, float]:
        """The expected peak, by part; and vLLM before or after training, at another time."""
        found = {**self.fixed, "activations": self.training[1], "generation": self.generating[1], "vLLM": self.vllm}
        found["vLLM, apart from training"] = self.apart[1]
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Setup:
    """Where a stage runs."""

    cluster: Cluster
    rates: Rates
    #: Processes of a trainer; and whether its states are sharded over them.
    processes: int
    sharded: bool
    #: Whether training and generation are in bf16.
    bf16: bool

    @property
    def shards(self) -> int:
        """Parts that the states are divided into."""
        return self.processes if self.sharded else 1


def optimizer_bytes(name: str) -> float:
    """Bytes of optimizer state per trained weight."""
    return 2.0 if "8bit" in name and "adam" in name else _STATE.get(name, 8.0)


@dataclass(frozen=True, slots=True)
class VLLMPlan:
    """What vLLM takes, and the least that it works with, in bytes."""

    share: float
    taken: float
    #: The tokens of the longest row.
    limit: int
    needed: float


def vllm_plan(shape: ModelShape, setup: Setup, shared: Any, settings: Any, *, trains: bool) -> VLLMPlan | None:
    """vLLM in a stage; None if the stage does not use it. Rollouts of a trainer have settings of their own."""
    own = getattr(shared, "vllm", None)
    parallel = 1
    if trains:
        if getattr(settings, "engine", "") != "vllm":
            return None
        share, limit = settings.vllm_gpu_memory_utilization, getattr(settings, "vllm_max_model_length", None)
    else:
        if shared.engine != "vllm":
            return None
        share, limit = getattr(own, "gpu_memory_utilization", _VLLM_SHARE), getattr(own, "max_model_len", None)
        parallel = getattr(own, "tensor_parallel_size", 1)
    limit = limit or shape.window
    model = (2 * shape.parameters + limit * shape.kv_bytes(True)) / parallel
    needed = model + _VLLM_BYTES + shared.batch_size * shape.vocabulary * _VLLM_ROW_BYTES
    return VLLMPlan(share, share * setup.cluster.memory, limit, needed)


def vllm_apart(shape: ModelShape, work: StageWork, setup: Setup, shared: Any, settings: Any) -> VLLMPlan | None:
    """The recipe's vLLM in a stage that trains: it makes episodes before, or compares policies afterwards."""
    if all(each.by == "trainer" for each in work.generations):
        return None
    return vllm_plan(shape, setup, shared, settings, trains=False)


def generation_memory(
    shape: ModelShape, work: StageWork, setup: Setup, shared: Any, settings: Any, *, copies: int = 1
) -> StageMemory:
    """A stage that only generates and scores. `copies`: 2 with a reward model beside the policy."""
    memory, rates = StageMemory(factor=setup.rates.memory_factor), setup.rates
    memory.fixed["process"] = rates.process_bytes
    weight = (2 if setup.bf16 else 4) * shape.parameters
    if not work.generations and not work.scored:
        return memory
    if copies > 1:
        memory.fixed["reward model"] = weight
    vllm = vllm_plan(shape, setup, shared, settings, trains=False)
    if vllm is not None and not setup.cluster.is_cpu:
        memory.vllm = vllm.taken
        return memory
    memory.fixed["weights"] = weight
    memory.generating = _engine_memory(shape, work, setup, shared.batch_size, sum(memory.fixed.values()))
    return memory


def _engine_memory(
    shape: ModelShape, work: StageWork, setup: Setup, batch_size: int, used: float
) -> tuple[float, float]:
    """The KV cache and the logits of our own engine: the least, and the expected."""
    if not work.generations:
        return 0.0, 0.0
    kv = shape.kv_bytes(setup.bf16)
    rows = min(max(each.at_once for each in work.generations), batch_size)
    context = max(each.context for each in work.generations)
    logits = rows * shape.vocabulary * 4 * 2
    if not setup.cluster.is_cpu:
        free = max(setup.cluster.memory - used, 0.0)
        return context * 2 * kv + logits, min(_KV_SHARE * setup.cluster.memory, _KV_FREE * free) + logits
    # Every request keeps the keys and values of its context, in buffers that are longer than needed.
    cached = max(each.cached * each.context for each in work.generations) * _CACHED * kv
    return context * kv + logits, logits + min(cached, _PREFIX_SHARE * setup.cluster.memory, _PREFIX_MOST)


def training_memory(
    shape: ModelShape, work: StageWork, setup: Setup, shared: Any, settings: Any, kind: str
) -> StageMemory:
    """A stage that trains."""
    memory = StageMemory(factor=setup.rates.memory_factor)
    memory.fixed["process"] = setup.rates.process_bytes
    _add_states(memory, shape, setup, settings, kind)
    used = sum(memory.fixed.values())
    vllm = vllm_plan(shape, setup, shared, settings, trains=True)
    other = vllm_apart(shape, work, setup, shared, settings)
    if other is not None and not setup.cluster.is_cpu:
        work = replace(work, generations=tuple(each for each in work.generations if each.by == "trainer"))
        process = setup.rates.process_bytes
        memory.apart = process + other.needed, process + other.taken
    if vllm is not None and not setup.cluster.is_cpu:
        memory.vllm = vllm.taken
        used += vllm.taken
    elif kind != "prm" or work.generations:
        memory.generating = _engine_memory(shape, work, setup, shared.batch_size, used)
    assert work.training is not None
    if kind == "grpo" and not setup.cluster.is_cpu:  # its KV cache stays between rollouts
        memory.kept = memory.generating
    memory.training = _activations(shape, work.training, setup, settings, kind, used + memory.kept[1])
    return memory


def _add_states(memory: StageMemory, shape: ModelShape, setup: Setup, settings: Any, kind: str) -> None:
    """Weights, gradients, optimizer; copies of the model for rollouts, as reference, as reward model."""
    parameters, bf16, lora = shape.parameters, setup.bf16, settings.lora
    state = optimizer_bytes(getattr(settings, "optim", "adamw_torch"))
    if lora is None:
        memory.fixed["weights"] = 4 * parameters / setup.shards
        memory.fixed["gradients"] = 4 * parameters / setup.shards
        memory.fixed["optimizer"] = state * parameters / setup.shards
        if bf16:  # autocast keeps casted weights until the backward pass has used them; of shards one layer
            memory.fixed["bf16 weights"] = 2.0 * (parameters if setup.shards == 1 else 3 * shape.layer_parameters)
    else:
        adapters = shape.lora_parameters(lora.r)
        memory.fixed["weights"] = (2 if bf16 and setup.shards == 1 else 4) * parameters / setup.shards
        memory.fixed["adapters"] = (8 + state) * adapters
    own_engine = getattr(settings, "engine", "") != "vllm"
    if kind != "prm" and bf16 and parameters >= _SMALL and own_engine:
        memory.fixed["rollout copy"] = 2.0 * parameters
    small_reference = kind == "grpo" and parameters < _SMALL
    if lora is None and (kind == "dpo" or (kind == "grpo" and settings.beta) or small_reference):
        memory.fixed["reference"] = 4 * parameters / setup.shards
    scores = kind == "rft" and settings.threshold is not None
    if scores or (kind == "grpo" and settings.needs_reward_model):
        memory.fixed["reward model"] = (2 if bf16 else 4) * parameters


def padded(tokens: float) -> int:
    """The width that rows of this length are padded to."""
    from stepladder.models.length_batches import PAD_TO_MULTIPLE_OF  # imports torch

    return -(-int(tokens) // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF


def _activations(
    shape: ModelShape, training: Training, setup: Setup, settings: Any, kind: str, used: float
) -> tuple[float, float]:
    """Of one microbatch: the least that works, and the expected."""
    rank = None if settings.lora is None else settings.lora.r
    checkpointing = bool(getattr(settings, "gradient_checkpointing", False))
    per_token = shape.activation_bytes(lora=rank, bf16=setup.bf16, checkpointing=checkpointing)
    share = 1.0 if kind == "dpo" else training.predicted / max(training.tokens, 1.0)
    per_token += share * shape.logit_bytes(setup.bf16)
    buffers = _BUFFERS if setup.cluster.is_cpu else 0.0
    # Fewer examples than the batch size are one smaller batch.
    batch_rows = min(training.batch, -(-training.tokens // (training.example * training.updates)))
    rows = batch_rows / (settings.gradient_accumulation_steps * setup.processes)
    longest = padded(training.longest)
    # Rows of similar length are together: the longest batch has rows like the longest.
    # In grpo, rows are computed in groups of similar length.
    spread = 0.1 if kind == "grpo" else 0.75
    batch = rows * (training.example + (longest - training.example) * spread)
    batch = max(batch, longest)
    splits = kind in ("sft", "rft", "grpo") and shape.parameters >= _SMALL
    if not splits:
        return batch * per_token + buffers, batch * per_token + buffers
    share_of = (
        _FREE_CPU * setup.cluster.memory if setup.cluster.is_cpu else _FREE_CUDA * max(setup.cluster.memory - used, 0)
    )
    limit = max(share_of / _assumed_bytes(shape, setup, checkpointing=checkpointing), _MIN_TOKENS)
    least, expected = max(longest, min(batch, _MIN_TOKENS)), max(longest, min(batch, limit))
    return least * per_token + buffers, expected * per_token + buffers


def _assumed_bytes(shape: ModelShape, setup: Setup, *, checkpointing: bool) -> float:
    """The bytes per token that `train/loop/microbatches.py` assumes."""
    layer = 12 * shape.hidden + 6 * shape.intermediate
    numbers = layer + shape.layers * shape.hidden if checkpointing else shape.layers * layer
    return float(numbers * (4 if setup.cluster.is_cpu else 2))
