"""`explore` grows search trees, `pairs` makes preference pairs of them. Both are stages of a run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepladder.cli.declarations import (
    OptionGroup,
    given,
    listed,
    number_option,
    option,
    path_option,
    say,
    takes_groups,
)
from stepladder.cli.options import (
    AgentName,
    DataName,
    ExploringModel,
    IndexName,
    Questions,
    RunToExtendOrNone,
    SharedTopK,
    SharedWorldSeed,
    StageOptions,
)
from stepladder.cli.recipes import add_stage, extend_recipe, missing_input, new_recipe, read_recipe, run_and_print
from stepladder.core.errors import StepladderError
from stepladder.pipeline.recipe import Recipe, Stage
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.search_config import PRESETS, ExploreConfig
from stepladder.pipeline.stage import TREES
from stepladder.pipeline.stages.explore import dry_run as dry_run_explore
from stepladder.pipeline.stages.pairs import PairConfig, dry_run

if TYPE_CHECKING:
    from stepladder.judges.llm.spend.estimate import Estimate


@dataclass(frozen=True, slots=True)
class JudgeOptions(OptionGroup):
    """Options of a language model as judge."""

    panel = "Language model as judge"

    judge_model: Annotated[
        str | None, option("--judge-model", "NAME", "The judge: its model name on a server, or a local model folder.")
    ] = None
    judge_url: Annotated[
        str | None, option("--judge-url", "URL", "URL of its OpenAI-compatible server.", default="OpenAI's")
    ] = None
    budget: Annotated[
        str | None, option("--budget", "AMOUNT", "Hard spending limit over all attempts: 5usd, 300ktok, 2Mtok.")
    ] = None
    prices: Annotated[Path | None, path_option("--prices", "FILE", "YAML file with more model prices.")] = None
    estimate_only: Annotated[
        bool, typer.Option("--dry-run", help="Print the estimated cost of the judge and stop.")
    ] = False

    def settings(self, **more: Any) -> dict[str, Any]:
        """Settings of the judge; empty without --judge-model."""
        typed = given(model=self.judge_model, url=self.judge_url, budget=self.budget, prices=self.prices, **more)
        if typed and self.judge_model is None:
            name = next(iter(typed))
            raise StepladderError(f"--{'judge-url' if name == 'url' else name} needs a --judge-model")
        return typed


@dataclass(frozen=True, slots=True)
class NewRunOptions(OptionGroup):
    """Options that only a new run takes."""

    panel = "New run (with --out)"

    model: ExploringModel = None
    agent: AgentName = None
    data: DataName = None
    index: IndexName = None
    topk: SharedTopK = None
    world_seed: SharedWorldSeed = None
    seed: Annotated[int | None, number_option("--seed", "Random seed.", default=0)] = None


@dataclass(frozen=True, slots=True)
class SearchOptions(OptionGroup):
    """Settings of the tree search."""

    questions: Questions = None
    preset: Annotated[str | None, option("--preset", "NAME", f"Default search settings: {listed(PRESETS)}.")] = None
    simulations: Annotated[int | None, number_option("--simulations", "Simulations per tree.", min=1)] = None
    width: Annotated[int | None, number_option("--width", "Children sampled per node.", min=1)] = None
    temperature: Annotated[
        float | None, number_option("--temperature", "Sampling temperature of the children.", min=0.0)
    ] = None
    evaluate: Annotated[str | None, option("--evaluate", "NAME", "How leaves are valued: rollout, gold or llm.")] = None


@takes_groups
def explore_command(
    *,
    run: RunToExtendOrNone = None,
    folder: Annotated[Path | None, path_option("--out", "DIR", "Folder of a new run, instead of --run.")] = None,
    search: SearchOptions,
    stage: StageOptions,
    start: NewRunOptions,
    judge: JudgeOptions,
) -> None:
    """Grow search trees with MCTS. --set changes any other setting of the stage."""
    entry = {"kind": "explore", **search.typed()}
    if llm := judge.settings():
        entry = {"evaluate": "llm", **entry, "llm": llm}
    if (run is None) == (folder is None):
        raise StepladderError("give either --run DIR to extend a run, or --out DIR to start one")
    name = stage.name or "explore"
    if run is None:
        recipe = read_recipe(new_recipe("explore", {name: entry}, **start.typed()), name, stage.overrides)
    elif typed := start.typed():
        flag = next(iter(typed)).replace("_", "-")
        raise StepladderError(f"--{flag} was set when the run {run} was started: leave it out")
    else:
        recipe = extend_recipe(run, name, entry, stage.overrides)
    if judge.estimate_only:
        settings = _stage(recipe, name).settings
        assert isinstance(settings, ExploreConfig)
        _print_estimate(dry_run_explore(settings, RunContext(recipe.shared)), stage.as_json)
    else:
        run_and_print(recipe, run or folder or Path(), stage.update, stage.as_json, only=name)


@takes_groups
def pairs_command(
    *,
    run: Annotated[Path, path_option("--run", "DIR", "A run with trees.")],
    judge: Annotated[
        str | None,
        option(
            "--judge",
            "NAME",
            "What ranks the steps: spre, mc or q (tree values), gold, or llm (a language model).",
            default="spre",
        ),
    ] = None,
    margin: Annotated[
        float | None, number_option("--margin", "Minimum difference of values, or of scores (--mode score).")
    ] = None,
    balance: Annotated[str | None, option("--balance", "KEYS", "Balance pairs by: kind, depth or kind,depth.")] = None,
    mode: Annotated[
        str | None, option("--mode", "NAME", "Question to the model: choice, ranking or score.", default="choice")
    ] = None,
    order: Annotated[
        str | None, option("--order", "NAME", "Order of steps in the prompt: made, reversed or both.", default="both")
    ] = None,
    judge_options: JudgeOptions,
    stage: StageOptions,
) -> None:
    """Make preference pairs from a run's trees: two steps from the same state, one better than the other."""
    llm = judge_options.settings(mode=mode, order=order)
    if margin is not None and mode == "score":
        llm["score_margin"], margin = margin, None
    if margin is not None and (llm or judge in ("gold", "llm")):
        raise StepladderError("--margin needs values (--judge spre, mc or q) or scores (--mode score): leave it out")
    settings = given(
        judge=judge or ("llm" if llm else None),
        margin=margin,
        balance=None if balance is None else [group.strip() for group in balance.split(",")],
        llm=llm or None,
    )
    if not judge_options.estimate_only:
        add_stage(run, "pairs", settings, stage)
        return
    name = stage.name or "pairs"
    chosen = _stage(extend_recipe(run, name, {"kind": "pairs", **settings}, stage.overrides), name)
    assert isinstance(chosen.settings, PairConfig)
    explored = RunFolder.open(run).done(chosen.inputs[TREES])
    if explored is None:
        raise missing_input(run, TREES)
    _print_estimate(dry_run(chosen.settings, run / explored.name / explored.outputs[TREES], run / name), stage.as_json)


def _stage(recipe: Recipe, name: str) -> Stage:
    return next(stage for stage in recipe.stages if stage.name == name)


def _print_estimate(cost: "Estimate", as_json: bool) -> None:
    most = cost.tokens_at_most.read + cost.tokens_at_most.written
    if as_json:
        tokens = {"tokens_read": cost.tokens.read, "tokens_written": cost.tokens.written, "tokens_at_most": most}
        dollars = {"usd": cost.usd, "usd_at_most": cost.usd_at_most}
        typer.echo(json.dumps({"calls": cost.calls, "cached": cost.cached, **tokens, **dollars}, indent=2))
        return
    known = cost.usd is not None and cost.usd_at_most is not None
    price = f"about ${cost.usd:,.2f}, at most ${cost.usd_at_most:,.2f}" if known else "unknown for this model"
    say(
        f"calls: {cost.calls:,} ({cost.cached:,} more are in the response cache)\n"
        f"tokens: about {cost.tokens.read:,} read and {cost.tokens.written:,} written, at most {most:,} in total\n"
        f"price: {price}"
    )
