"""Summary lines of a finished stage, as the stage itself declares them (`StageSpec.summarize`)."""

from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stage_summary import Numbers, StageSummary, judge_lines
from stepladder.pipeline.stages import STAGES, get_stage
from stepladder.preferences.pair_stats import format_counts


def stage_summary(stage: StageRecord) -> StageSummary | None:
    """Headline and lines of a stage; None if it declares none, or this version does not have it."""
    return get_stage(stage.kind).summarize(stage.summary) if stage.summary and stage.kind in STAGES else None


def pair_lines(numbers: Numbers) -> dict[str, str]:
    """Agreement with the gold judge, kinds, depths, margins and judge cost of the pairs of a stage."""
    gold = {f"prefers {each}": (numbers["gold"] or {}).get(each, 0) for each in ("chosen", "rejected", "neither")}
    counts = {"gold judge": gold, **{name: numbers[name] for name in ("kinds", "depths", "margins", "dropped")}}
    counts["split"] = {name: numbers[name] for name in ("train", "dev")}
    return {**{name: format_counts(each) for name, each in counts.items()}, **judge_lines(numbers)}
