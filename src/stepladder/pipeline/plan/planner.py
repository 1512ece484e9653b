"""The plan of a recipe: memory and time of every stage on some hardware, what does not fit, and what would.

In: a recipe and a `Cluster`. Out: a `Plan`. For a stage that does not fit, settings are changed one after the other
and planned again; those that make it fit are suggested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.pipeline.plan.cost_constants import Rates, constants, rates_of
from stepladder.pipeline.plan.fitting import Advice, advise
from stepladder.pipeline.plan.gpu_cluster import Cluster
from stepladder.pipeline.plan.memory_model import (
    Setup,
    StageMemory,
    VLLMPlan,
    generation_memory,
    training_memory,
    vllm_apart,
    vllm_plan,
)
from stepladder.pipeline.plan.model_shape import ModelShape, find_shape, is_local
from stepladder.pipeline.plan.stage_work import StageWork, WorkModel
from stepladder.pipeline.plan.time_model import StageTime, stage_time
from stepladder.pipeline.plan.transcript_profile import (
    TranscriptProfile,
    count_transcripts,
    mean_profile,
    within_limits,
)
from stepladder.pipeline.recipe import Recipe, Stage
from stepladder.pipeline.resources import SharedConfig

TRAINED = ("sft", "rft", "prm", "dpo", "grpo")
#: How several GPUs train: every process has all states, or a share of them.
STRATEGIES = ("fsdp", "ddp", "none")
#: Bytes per second of a checksum of the weights.
_CHECKSUM = 0.29e9
#: Tokens that Qwen2.5 and SmolLM2 write on Atlas, relative to nano, whose tokenizer was made for it.
_OTHER_TOKENIZER = 1.3


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What one stage needs."""

    name: str
    kind: str
    #: Devices that it uses.
    devices: int
    work: StageWork
    memory: StageMemory
    time: StageTime
    #: Memory of one device, in bytes.
    limit: float
    #: Why it cannot run here although the memory might do; empty if it can.
    problem: str = ""
    advice: tuple[Advice, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it can run."""
        return not self.problem and self.memory.needed <= self.limit

    @property
    def device_hours(self) -> float:
        """Hours of all devices that it uses."""
        return self.devices * self.time.expected / 3600


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a recipe."""

    recipe: str
    cluster: Cluster
    shape: ModelShape
    profile: TranscriptProfile
    rates: Rates
    strategy: str
    stages: tuple[StagePlan, ...]

    @property
    def fits(self) -> bool:
        """Whether every stage can run."""
        return all(stage.fits for stage in self.stages)

    @property
    def start(self) -> float:
        """Seconds before the first stage: imports, data, index, the checksum of the weights."""
        return self.rates.process_seconds + 2 * self.shape.parameters / _CHECKSUM

    def seconds(self) -> tuple[float, float, float]:
        """The expected time of all stages with the start of the process, and its range."""
        times, start = [stage.time for stage in self.stages], self.start
        low, high = sum(each.low for each in times) + start / 2, sum(each.high for each in times) + 2 * start
        return sum(each.expected for each in times) + start, low, high

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        expected, low, high = self.seconds()
        return {
            "recipe": self.recipe,
            "hardware": str(self.cluster),
            "strategy": self.strategy,
            "model": {"name": self.shape.name, "parameters": self.shape.parameters},
            "rates": {
                "source": self.rates.source, "date": self.rates.date, "scaled_from": self.rates.scaled_from
            },
            "transcripts": asdict(self.profile),
            "fits": self.fits,
            "seconds": expected,
            "seconds_low": low,
            "seconds_high": high,
            "start_seconds": self.start,
            "device_hours": sum(stage.device_hours for stage in self.stages),
            "stages": [_plain_stage(stage) for stage in self.stages],
        }  # fmt: skip


def _plain_stage(stage: StagePlan) -> dict[str, Any]:
    return {
        "name": stage.name,
        "kind": stage.kind,
        "devices": stage.devices,
        "fits": stage.fits,
        "problem": stage.problem,
        "memory": {
            "needed": stage.memory.needed, "expected": stage.memory.expected, "limit": stage.limit,
            "parts": stage.memory.parts(),
        },
        "seconds": stage.time.expected,
        "seconds_low": stage.time.low,
        "seconds_high": stage.time.high,
        "seconds_by_part": stage.time.parts,
        "device_hours": stage.device_hours,
        "tokens": {
            "written": sum(each.written for each in stage.work.generations),
            "read": sum(each.read for each in stage.work.generations),
            "scored": stage.work.scored,
            "trained": stage.work.training.tokens if stage.work.training else 0.0,
        },
        "judge": {"calls": stage.work.calls, "tokens": stage.work.call_tokens},
        "notes": list(stage.work.notes),
        "advice": [asdict(each) for each in stage.advice],
    }  # fmt: skip


def plan_recipe(
    recipe: Recipe,
    cluster: Cluster,
    *,
    strategy: str = "fsdp",
    profile: TranscriptProfile | None = None,
    shape: ModelShape | None = None,
    works: Mapping[str, StageWork] | None = None,
) -> Plan:
    """The plan of a recipe. `works`: of stages whose work is known, instead of the estimate."""
    stored, shared = constants(), recipe.shared
    known: Mapping[str, Any] = stored["models"]
    served = shared.engine == "openai"
    shape = shape or find_shape("tiny" if served else shared.policy, dict(known))
    profile = profile or find_profile(recipe, shape)
    recipe = replace(recipe, shared=shared.model_copy(update={"engine": _engine(shared, shape, cluster)}))
    rates = rates_of(cluster)
    estimated = WorkModel(recipe, profile, stored["trees"])
    planner = _Planner(recipe, cluster, shape, profile, rates, strategy)
    estimates = {stage.name: estimated.of(stage) for stage in recipe.stages} | dict(works or {})
    stages = [planner.plan(stage, estimates[stage.name]) for stage in recipe.stages]
    _add_first_starts(stages, recipe, rates)
    return Plan(recipe.name, cluster, shape, profile, rates, strategy, tuple(stages))


def _add_first_starts(stages: Sequence[StagePlan], recipe: Recipe, rates: Rates) -> None:
    """The first start of an engine on a new machine reads its libraries and compiles kernels."""
    started: set[str] = set()
    for plan, stage in zip(stages, recipe.stages, strict=True):
        for each in plan.work.generations:
            name = getattr(stage.settings, "engine", "") if each.by == "trainer" else recipe.shared.engine
            if name not in started:
                plan.time.add("start", rates.first_start_seconds.get(name, 0.0), 0.0, 1.5)
            started.add(name)


def _engine(shared: SharedConfig, shape: ModelShape, cluster: Cluster) -> str:
    """The engine of a recipe; for `auto` the one that it chooses there, with vLLM installed."""
    from stepladder.engines.auto import faster_engine, measurements  # imports torch

    if shared.engine != "auto":
        return shared.engine
    if cluster.is_cpu:
        return "transformers"
    parallel = shared.vllm.tensor_parallel_size > 1  # only vLLM does that
    return "vllm" if parallel else faster_engine(shape.parameters, shared.batch_size, measurements())


def find_profile(recipe: Recipe, shape: ModelShape | None = None) -> TranscriptProfile:
    """The stored lengths of transcripts of this agent, data and tokenizer, or counted ones."""
    shared = recipe.shared
    shape = shape or find_shape(shared.policy, dict(constants()["models"]))
    stored = stored_profile(shared)
    # Stored lengths hold for tokenizers of a similar size: nano's has 4,096 tokens, those of others 49,000 and more.
    similar = stored is not None and 1 / 4 < stored[1] / shape.vocabulary < 4
    if stored is not None and (similar or not is_local(shared.policy)):
        found = stored[0]
        if not similar:
            written, source = _OTHER_TOKENIZER * found.written, f"{found.source}, of another tokenizer"
            found = replace(found, written=written, source=source)
        return within_limits(found, shared.episode.max_steps, shared.episode.max_tokens)
    try:
        return count_transcripts(shared)
    except StepladderError as error:
        raise StepladderError(
            "the lengths of this recipe's transcripts are not stored, and cannot be counted: "
            f"{str(error).rstrip('.')}. Give them: --tokens-read N --tokens-written N"
        ) from error


def stored_profile(shared: SharedConfig) -> tuple[TranscriptProfile, int] | None:
    """The lengths in `constants.yaml`, and the size of the vocabulary that they were counted with."""
    names = [each.rpartition("/")[2] for each in (shared.data.name or "").split("+")]
    stored = constants()
    entries = [
        each
        for name in names
        for each in stored["transcripts"]
        if (each["data"], each["agent"], each["k"]) == (name, shared.agent, shared.search.k)
    ]
    if not names or len(entries) != len(names) or shared.data.index is not None:
        return None
    fields = [field for field in TranscriptProfile.__slots__ if field != "source"]
    source = f"stored, {stored['transcripts_date']}"
    profiles = [TranscriptProfile(**{name: each[name] for name in fields}, source=source) for each in entries]
    return mean_profile(profiles), min(stored["vocabularies"][each["data"]] for each in entries)


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans single stages of a recipe."""

    recipe: Recipe
    cluster: Cluster
    shape: ModelShape
    profile: TranscriptProfile
    rates: Rates
    strategy: str

    def plan(self, stage: Stage, work: StageWork) -> StagePlan:
        """The plan of a stage, with advice if it does not fit."""
        found = self._plan(stage, work, stage.settings, self.recipe.shared, self.cluster, self.strategy)
        if found.fits:
            return found
        return replace(found, advice=tuple(self._advice(stage, work)))

    def _advice(self, stage: Stage, work: StageWork) -> Sequence[Advice]:
        def missing(settings: Any, shared: Any, cluster: Cluster, strategy: str) -> float:
            found = self._plan(stage, work, settings, shared, cluster, strategy)
            if found.fits:
                return 0.0
            # A problem beside the memory weighs more than any shortage.
            return max(found.memory.needed - found.limit, 1.0) + (1e15 if found.problem else 0.0)

        return advise(stage, self.recipe.shared, self.cluster, self.strategy, self.profile, missing)

    def _plan(
        self, stage: Stage, work: StageWork, settings: Any, shared: Any, cluster: Cluster, strategy: str
    ) -> StagePlan:
        trains = work.training is not None
        many = 1 if cluster.is_cpu else cluster.count
        processes = many if trains and strategy != "none" else 1
        bf16 = self._bf16(settings, shared, cluster, trains=trains)
        setup = Setup(cluster, self.rates, processes, strategy == "fsdp" and processes > 1, bf16)
        engines = 1 if trains else self._engines(shared, many)
        if trains:
            memory = training_memory(self.shape, work, setup, shared, settings, stage.kind)
        else:
            copies = 2 if work.scored else 1
            memory = generation_memory(self.shape, work, setup, shared, settings, copies=copies)
        time = stage_time(self.shape, work, setup, shared, settings, passages=self.profile.passages, engines=engines)
        return StagePlan(
            stage.name, stage.kind, max(processes, engines), work, memory, time, cluster.memory,
            self._problem(work, settings, shared, setup),
        )  # fmt: skip

    def _problem(self, work: StageWork, settings: Any, shared: Any, setup: Setup) -> str:
        """What prevents the stage from running, beside its total memory."""
        trains = work.training is not None
        if trains:
            parts = settings.gradient_accumulation_steps * setup.processes
            if settings.batch_size % parts:
                return f"batch_size {settings.batch_size} cannot be divided by {parts} (accumulation x processes)"
        if (work.generations or trains) and 0 < self.shape.window < self.profile.longest:
            return (
                f"the longest transcript has {self.profile.longest:,} tokens, the context window of "
                f"{self.shape.name} {self.shape.window:,}"
            )
        on_workers = not trains and shared.ray is not None and (work.generations or work.scored)
        if on_workers and not shared.ray.gpus_per_worker and not setup.cluster.is_cpu:
            return "ray.gpus_per_worker is 0: workers would compute on the CPU"
        if not work.generations:
            return ""
        own = vllm_plan(self.shape, setup, shared, settings, trains=trains)
        other = vllm_apart(self.shape, work, setup, shared, settings) if trains else None
        if not trains or other is not None:
            parallel = shared.vllm.tensor_parallel_size
            if shared.engine == "vllm" and not setup.cluster.is_cpu and parallel > setup.cluster.count:
                return f"vllm.tensor_parallel_size {parallel} needs as many GPUs"
        problems = (self._vllm_problem(each, setup) for each in (own, other) if each is not None)
        return next((each for each in problems if each), "")

    def _vllm_problem(self, vllm: VLLMPlan, setup: Setup) -> str:
        """What prevents this vLLM from running."""
        if setup.cluster.is_cpu:
            return "engine: vllm needs a GPU"
        if vllm.limit > self.shape.window > 0:
            return (
                f"vLLM's limit of {vllm.limit:,} tokens is more than the context window of {self.shape.name}, "
                f"{self.shape.window:,}"
            )
        if vllm.needed > vllm.taken:
            return (
                f"vLLM's share of {vllm.share:g} is {vllm.taken / 1e9:,.0f} GB; weights, buffers and one row of "
                f"{vllm.limit:,} tokens need {vllm.needed / 1e9:,.0f} GB"
            )
        if vllm.limit < self.profile.longest:
            return f"the longest transcript has {self.profile.longest:,} tokens, vLLM's limit is {vllm.limit:,}"
        return ""

    @staticmethod
    def _bf16(settings: Any, shared: Any, cluster: Cluster, *, trains: bool) -> bool:
        name = getattr(settings, "precision", "auto") if trains else shared.dtype
        if not cluster.is_cpu:
            return bool(name != "fp32")
        if name != "bf16":
            return False
        import torch

        from stepladder.models.devices import pick_dtype

        return pick_dtype("bf16", torch.device("cpu")) is torch.bfloat16

    @staticmethod
    def _engines(shared: Any, devices: int) -> int:
        """Engines that share the work: with Ray its workers, else one."""
        if (ray := shared.ray) is None:
            return 1
        room = int(devices / max(ray.gpus_per_worker, 1))
        return max(min(ray.workers or room, room), 1)
