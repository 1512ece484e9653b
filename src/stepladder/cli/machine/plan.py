"""`plan` prints memory and time of every stage of a recipe on some hardware, before anything runs.

In: a recipe, overrides, the hardware. Out: a table or JSON. The exit status is 1 if a stage does not fit.
"""

import math
from dataclasses import replace
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from stepladder.cli.declarations import ERR, OUT, argument, listed, option, print_json, say
from stepladder.cli.options import AsJson
from stepladder.core.errors import StepladderError
from stepladder.core.trace_printer import printable
from stepladder.pipeline.plan.cost_constants import constants, measured_file
from stepladder.pipeline.plan.gpu_cluster import CPU, Cluster, parse_cluster, this_machine
from stepladder.pipeline.plan.model_shape import find_shape
from stepladder.pipeline.plan.planner import Plan, StagePlan, find_profile, plan_recipe, stored_profile
from stepladder.pipeline.plan.transcript_profile import TranscriptProfile
from stepladder.pipeline.recipe import Recipe, load_recipe, shipped
from stepladder.reporting.number_text import brief

#: Models that `--measure` uses without a recipe.
_MEASURED = ("nano", "smollm2-135m")
#: The least columns of the table.
_WIDTH = 120


def plan_command(
    recipe: Annotated[
        str | None, argument("[RECIPE]", f"A recipe file (.yaml), or one of: {listed(shipped())}.")
    ] = None,
    gpus: Annotated[
        str | None,
        option(
            "NxNAME",
            f"The hardware, such as 8xH100-80G or cpu. Known: {listed(constants()['devices'])}.",
            "this machine",
        ),
    ] = None,
    strategy: Annotated[
        Literal["fsdp", "ddp", "none"],
        option(
            "NAME", "How several GPUs train: fsdp shards all states (so does DeepSpeed ZeRO-3), ddp copies them, none."
        ),
    ] = "fsdp",
    tokens_written: Annotated[float | None, option("N", "Tokens that an episode writes.", "stored or counted")] = None,
    tokens_read: Annotated[float | None, option("N", "Other tokens of an episode.", "stored or counted")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="First measure this machine, and store its rates with the date.")
    ] = False,
    overrides: Annotated[
        list[str] | None, option("NAME=VALUE", "Override a setting of the recipe. Repeatable.", "none", flags="--set")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict memory and time of every stage, and say what does not fit. The exit status is then 1."""
    if recipe is None and not measure:
        raise StepladderError(f"name a recipe: {', '.join(shipped())}, or a file; or measure this machine: --measure")
    devices = constants()["devices"]
    cluster = this_machine(devices) if gpus is None else parse_cluster(gpus, devices)
    read = None if recipe is None else load_recipe(recipe, overrides or ())
    if measure:
        _measure(read, cluster, devices, as_json=as_json)
    if read is None:
        return
    profile = None
    if tokens_written is not None or tokens_read is not None:
        profile = _given_profile(read, tokens_written, tokens_read)
    plan = plan_recipe(read, cluster, strategy=strategy, profile=profile)
    if as_json:
        print_json(plan.plain())
    else:
        print_plan(plan)
    if not plan.fits:
        raise typer.Exit(1)


def _given_profile(recipe: Recipe, written: float | None, read: float | None) -> TranscriptProfile:
    for name, tokens in (("--tokens-written", written), ("--tokens-read", read)):
        if tokens is not None and not 1 <= tokens < math.inf:
            raise StepladderError(f"{name} {tokens:g}: expected a number from 1 on")
    if written is None or read is None:
        known = find_profile(recipe)
    elif stored := stored_profile(recipe.shared):
        known = stored[0]
    else:
        known = TranscriptProfile(5.5, 2.2, written, read, 1.0, int(2 * (written + read)), 100_000, "given")
    found = replace(known, written=written or known.written, read=read or known.read, source="given")
    return replace(found, longest=round(known.longest * found.tokens / known.tokens))


def _measure(recipe: Recipe | None, cluster: Cluster, devices: dict[str, dict[str, float]], *, as_json: bool) -> None:
    """Measure this machine, with the recipe's model, or with small ones."""
    from stepladder.pipeline.plan.machine_rates import measure_rates, save_rates

    here = this_machine(devices)
    if here.device != cluster.device:
        raise StepladderError(
            f"--measure measures this machine, {here.device}, and not {cluster.device}: leave out --gpus"
        )
    known = constants()["models"]
    for name in _MEASURED if recipe is None else (recipe.shared.policy,):
        entry = save_rates(here.device, measure_rates(find_shape(name, known), here))
    if as_json:
        return
    engine = entry["generation"]["transformers"]
    say(f"measured {entry['date']}: {printable(entry['source'])}; stored in {printable(str(measured_file()))}", ERR)
    for title, points in (
        ("reading", engine["flops"]), ("decoding", engine["decode_flops"]), ("training", entry["training"]["flops"])
    ):  # fmt: skip
        values = ", ".join(f"hidden size {hidden}: {brief(value)}FLOP/s" for hidden, value in sorted(points.items()))
        say(f"  {title:<10} {values}", ERR)


# --- printing ---------------------------------------------------------------------------------------------------


def print_plan(plan: Plan) -> None:
    """A table of the stages, and what does not fit."""
    shape, profile = plan.shape, plan.profile
    size = f"{printable(shape.name)}, {brief(shape.parameters)} parameters"
    say(f"[bold]{printable(plan.recipe)}[/] on {plan.cluster}: {size}")
    device = "CPU" if plan.cluster.device == CPU else "GPU"
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("stage", no_wrap=True)
    for title in (
        f"{device}s",
        "memory GB",
        "limit",
        "time",
        "range",
        f"{device} hours",
        "new tokens",
        "trained",
        "judge",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    start = plan.start
    table.add_row("start", "", "", "", duration(start), _range(start / 2, 2 * start))
    for stage in plan.stages:
        table.add_row(*_cells(stage))
    expected, low, high = plan.seconds()
    hours = sum(stage.device_hours for stage in plan.stages)
    table.add_row("[bold]all[/]", "", "", "", f"[bold]{duration(expected)}[/]", _range(low, high), f"{hours:.1f}")
    Console(width=max(OUT.width, _WIDTH)).print(table)  # in a narrow terminal lines wrap, and nothing is cut
    say(f"[dim]rates:[/] {printable(plan.rates.label())}")
    say(
        f"[dim]transcripts:[/] {profile.steps:.1f} steps, {profile.written:,.0f} tokens written and "
        f"{profile.read:,.0f} read, the longest {profile.longest:,} ({printable(profile.source)})"
    )
    for stage in plan.stages:
        if stage.work.notes:
            say(f"[dim]{printable(stage.name)}:[/] {printable('; '.join(stage.work.notes))}")
    for stage in plan.stages:
        if not stage.fits:
            _print_problem(stage)


def _cells(stage: StagePlan) -> list[str]:
    trained = stage.work.training.tokens if stage.work.training else 0.0
    written = sum(each.written for each in stage.work.generations)
    memory = f"{stage.memory.expected / 1e9:,.1f}"
    return [
        printable(stage.name),
        str(stage.devices),
        memory if stage.fits else f"[bold red]{max(stage.memory.needed, stage.memory.expected) / 1e9:,.1f}[/]",
        f"{stage.limit / 1e9:,.0f}",
        duration(stage.time.expected),
        _range(stage.time.low, stage.time.high),
        f"{stage.device_hours:.2f}",
        brief(written) if written else "",
        brief(trained) if trained else "",
        f"{brief(stage.work.calls)} calls, {brief(stage.work.call_tokens)} tokens" if stage.work.calls else "",
    ]


def _print_problem(stage: StagePlan) -> None:
    reason = stage.problem or (
        f"needs {stage.memory.needed / 1e9:,.0f} GB of {stage.limit / 1e9:,.0f}: "
        + ", ".join(f"{name} {value / 1e9:,.1f}" for name, value in stage.memory.parts().items() if value >= 5e7)
    )
    say(f"[bold red]{printable(stage.name)} does not fit:[/] {printable(reason)}")
    for advice in stage.advice:
        say(f"  {printable(advice.options)}   [dim]{printable(advice.about)}[/]")
    if not stage.advice:
        say("  no settings make it fit: use another model, or devices with more memory")


def _range(low: float, high: float) -> str:
    return f"{duration(low)} to {duration(high)}"


def duration(seconds: float) -> str:
    """A duration with one unit.

    >>> duration(0.4), duration(42), duration(600), duration(9000)
    ('0 s', '42 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
