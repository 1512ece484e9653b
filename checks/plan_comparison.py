"""Compares a plan with a run: for `plan_against_run.py`.

In: what was measured of a run (`stage_probe.py`). Out: one row per stage: seconds predicted from the recipe, seconds
predicted from the measured amounts, measured seconds; memory predicted in both ways, and measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from stepladder.pipeline.plan.gpu_cluster import Cluster
from stepladder.pipeline.plan.model_shape import ModelShape
from stepladder.pipeline.plan.planner import Plan, StagePlan, plan_recipe
from stepladder.pipeline.plan.stage_work import Generation, StageWork, Training
from stepladder.pipeline.plan.transcript_profile import TranscriptProfile
from stepladder.pipeline.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Row:
    """One stage."""

    name: str
    predicted: float
    given_amounts: float
    measured: float
    predicted_bytes: float
    given_amounts_bytes: float
    measured_bytes: float
    judged: bool
    error: str = ""

    def errors(self) -> tuple[float, float, float, float]:
        """Relative errors of the time and of the memory, each from the recipe and for the measured amounts."""
        seconds, size = max(self.measured, 1e-9), max(self.measured_bytes, 1.0)
        return (
            self.predicted / seconds - 1,
            self.given_amounts / seconds - 1,
            self.predicted_bytes / size - 1,
            self.given_amounts_bytes / size - 1,
        )

    def misses(self, time_error: float, memory_error: float) -> bool:
        """Whether the prediction from the recipe is worse than the limits."""
        time, _, memory, _ = self.errors()
        return abs(time) > time_error or abs(memory) > memory_error


def plans_of(entry: Mapping[str, Any]) -> tuple[Plan, Plan]:
    """The plan of the recipe, and the plan with the measured amounts."""
    # Stages that were not run are no part of the plan: the first start of vLLM belongs to the first that was.
    stages = {name: each for name, each in entry["recipe"]["stages"].items() if name in entry["stages_run"]}
    recipe = Recipe.read({**entry["recipe"], "stages": stages}, entry["recipe"]["name"])
    cluster, shape = Cluster(**entry["cluster"]), ModelShape(**entry["shape"])
    profile = TranscriptProfile(**entry["profile"])
    plan = plan_recipe(recipe, cluster, strategy="none", profile=profile, shape=shape)
    works = {
        stage.name: measured_work(stage, entry["stages"][stage.name])
        for stage in plan.stages
        if "error" not in entry["stages"].get(stage.name, {"error": ""})
    }
    return plan, plan_recipe(recipe, cluster, strategy="none", profile=profile, shape=shape, works=works)


def measured_work(stage: StagePlan, found: Mapping[str, Any]) -> StageWork:
    """The work that a stage did."""
    generations = tuple(
        _generation(stage, phase, numbers, found) for phase, numbers in found.get("generation", {}).items()
    )
    scored = sum(each["tokens"] for each in found.get("scoring", {}).values())
    return StageWork(generations, _training(stage, found), scored)


def _generation(stage: StagePlan, phase: str, numbers: Mapping[str, Any], found: Mapping[str, Any]) -> Generation:
    episodes = found.get("episodes", {}).get(phase, {})
    requests = max(numbers.get("requests", 0), 1)
    trained = phase in ("dev", "rollouts") or (phase == "main" and stage.kind in ("rft", "sft"))
    return Generation(
        phase,
        numbers.get("written", 0),
        numbers.get("prefilled") or episodes.get("read", 0),
        episodes.get("searches", 0),
        numbers.get("most_rows", 1),
        (numbers.get("prompts", 0) + numbers.get("written", 0) / 2) / requests,
        requests,
        requests,
        "trainer" if trained else "shared",
        steps=numbers.get("decoding_steps"),
        starts=found["parts"].get("compare/engine start", [0])[0] if phase == "compare" else 0,
        resets=_dev_evaluations(found) - 1 if phase == "dev" and stage.kind != "grpo" else 0,
    )


def _dev_evaluations(found: Mapping[str, Any]) -> int:
    return sum(count for path, (count, _) in found["parts"].items() if path.endswith("/dev"))


def _training(stage: StagePlan, found: Mapping[str, Any]) -> Training | None:
    assumed, numbers = stage.work.training, found.get("training", {}).get("main")
    if assumed is None or not numbers:
        return assumed
    updates = sum("loss" in row for row in found["curves"])
    return Training(
        numbers["tokens"],
        numbers.get("predicted", 0),
        updates,
        assumed.batch,
        numbers["tokens"] / numbers["rows"],
        numbers["longest"],
        extra_forward=assumed.extra_forward,
        saves=sum(count for path, (count, _) in found["parts"].items() if path.endswith("/checkpoint")),
        # grpo computes rows in groups of similar length
        made=assumed.made,
        passes=numbers["microbatches"],
        padded=None if stage.kind == "grpo" else numbers["padded"],
    )


def in_use(memory: Mapping[str, float]) -> float:
    """The peak of what is used: on a GPU without what torch's allocator keeps of freed memory."""
    return memory["process_start"] + memory["allocated"] if "allocated" in memory else memory["peak"]


def compare(entry: Mapping[str, Any], *, shortest: float) -> list[Row]:
    """One row per stage that was run."""
    plan, known = plans_of(entry)
    rows = []
    for stage, given in zip(plan.stages, known.stages):
        found = entry["stages"].get(stage.name)
        if found is None:
            continue
        if "error" in found or "seconds" not in found:
            rows.append(Row(stage.name, 0, 0, 0, 0, 0, 0, False, str(found.get("error", "nothing was done"))))
            continue
        seconds = found["seconds"]
        rows.append(
            Row(
                stage.name, stage.time.expected, given.time.expected, seconds, stage.memory.expected,
                given.memory.expected, in_use(found["memory"]), seconds >= shortest,
            )
        )  # fmt: skip
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    """As a table."""
    times = ("recipe s", "amounts s", "measured s", "error", "error of rates")
    table = Table("stage", *times, "recipe GB", "amounts GB", "measured GB", "error", "error of parts")
    for row in rows:
        if row.error:
            table.add_row(row.name, row.error[:60])
            continue
        time, rates, memory, given = row.errors()
        table.add_row(
            row.name, f"{row.predicted:,.1f}", f"{row.given_amounts:,.1f}", f"{row.measured:,.1f}", f"{time:+.0%}",
            f"{rates:+.0%}", f"{row.predicted_bytes / 1e9:.2f}", f"{row.given_amounts_bytes / 1e9:.2f}",
            f"{row.measured_bytes / 1e9:.2f}", f"{memory:+.0%}", f"{given:+.0%}",
            style=None if row.judged else "dim",
        )  # fmt: skip
    done = [row for row in rows if not row.error]
    sums = [sum(values) for values in zip(*((row.predicted, row.given_amounts, row.measured) for row in done))]
    if sums and sums[2]:
        table.add_row("all", *(f"{each:,.1f}" for each in sums), f"{sums[0] / sums[2] - 1:+.0%}",
                      f"{sums[1] / sums[2] - 1:+.0%}")  # fmt: skip
    return table
