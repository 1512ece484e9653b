"""`explore` grows search trees, `pairs` makes preference pairs of them. Both are stages of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepladder.cli.agent_options import say_upper_bound
from stepladder.cli.declarations import (
    OptionGroup,
    Typed,
    budget_option,
    given,
    option,
    path_option,
    print_json,
    say,
    takes_groups,
)
from stepladder.cli.options import ExtendOptions, NewRunOptions, RayOptions, ServerOptions, StageOptions
from stepladder.cli.recipes import add_stage, extend_recipe, find_stage, new_recipe, output_of, run_and_print
from stepladder.core.errors import StepladderError
from stepladder.judges.llm.config import LLMJudgeConfig
from stepladder.pipeline.resources import BASE, ORACLE, SERVER, RunContext
from stepladder.pipeline.run_folder import RunFolder, is_run
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.pipeline.stage import POLICY, TREES
from stepladder.pipeline.stages.explore import dry_run as dry_run_explore
from stepladder.pipeline.stages.pairs import PairConfig, dry_run

if TYPE_CHECKING:
    from stepladder.judges.llm.estimate import Estimate


@dataclass(frozen=True, slots=True)
class JudgeOptions(OptionGroup):
    """Options of a language model as judge."""

    panel = "Language model as judge"

    judge_model: Annotated[
        str | None, option("NAME", "The judge: its model name on a server, or a local model folder.", "no LLM")
    ] = None
    judge_url: Annotated[str | None, option("URL", "URL of its OpenAI-compatible server.", "OpenAI's")] = None
    budget: Annotated[str | None, budget_option("Hard spending limit over all attempts: 5usd, 300ktok, 2Mtok.")] = None
    prices: Annotated[Path | None, path_option("FILE", "YAML file with more model prices.", "the shipped ones")] = None
    estimate_only: Annotated[
        bool, typer.Option("--dry-run", help="Print the estimated cost of the judge and stop.")
    ] = False

    def settings(self, *, paid_policy: bool = False, **more: Any) -> dict[str, Any]:
        """Settings of the judge; empty without --judge-model. `paid_policy`: the prices may be for the policy."""
        typed = given(model=self.judge_model, url=self.judge_url, budget=self.budget, prices=self.prices, **more)
        if typed and self.judge_model is None:
            if paid_policy and [*typed] == ["prices"]:
                return {}
            name = next(iter(typed))
            raise StepladderError(f"--{'judge-url' if name == 'url' else name} needs a --judge-model")
        return typed


_SEARCH = ExploreConfig()
_OF_PRESET = f"with the preset {_SEARCH.preset}"


@takes_groups
def explore_command(
    *,
    run: Annotated[Path | None, path_option("DIR", "The run to add the stage to.", "none: --out starts one")] = None,
    folder: Annotated[Path | None, path_option("DIR", "Folder of a new run.", "none: --run", flags="--out")] = None,
    search: Annotated[
        Typed,
        ExploreConfig,
        {
            "questions": "Number of questions to use.",
            "preset": "Default search settings: CHOICES.",
            "simulations": ("Simulations per tree.", f"{_SEARCH.simulations} {_OF_PRESET}"),
            "width": ("Children sampled per node.", f"{_SEARCH.width} {_OF_PRESET}"),
            "temperature": ("Sampling temperature of the children.", f"{_SEARCH.temperature:g} {_OF_PRESET}"),
            "evaluate": "How leaves are valued: CHOICES.",
        },
    ],
    stage: StageOptions,
    start: NewRunOptions,
    server: ServerOptions,
    judge: JudgeOptions,
    cluster: RayOptions,
) -> None:
    """Grow search trees with MCTS. --set changes any other setting of the stage."""
    served = {**server.typed(), **(given(prices=judge.prices) if server.policy_budget is not None else {})}
    if served and (server.base_url is None or start.model is None):
        raise StepladderError("a policy behind a server needs --base-url URL and --model NAME, its name on the server")
    entry = {"kind": "explore", **search}
    if llm := judge.settings(paid_policy=server.policy_budget is not None):
        entry = {"evaluate": "llm", **entry, "llm": llm}
    if (run is None) == (folder is None):
        raise StepladderError("give either --run DIR to extend a run, or --out DIR to start one")
    name = stage.name or "explore"
    if folder is not None and is_run(folder) and not _resumes(RunFolder.open(folder), name):
        raise StepladderError(f"--out: {folder} is a run already; --run {folder} adds the stage to it")
    if run is None:
        recipe = new_recipe(name, entry, start, stage.overrides, served)
    else:
        typed = start.typed()
        if served:
            entry = {"policy": SERVER, **entry}
            served = {"model": typed.pop("model"), **served}
        named = given(agent=typed.pop("agent", None), trust_agent=typed.pop("trust_agent", None))
        for flag in typed:
            raise StepladderError(f"--{flag.replace('_', '-')} was set when the run {run} was started: leave it out")
        recipe = extend_recipe(run, name, entry, stage.overrides, named=named, served=served)
    policy = find_stage(recipe, name).inputs[POLICY]
    oracle = (recipe.shared.policy if policy == BASE else policy) == ORACLE
    say_upper_bound(oracle=oracle, advice="For a model, leave out policy=oracle")
    if judge.estimate_only:
        settings = find_stage(recipe, name).settings
        assert isinstance(settings, ExploreConfig)
        _print_estimate(dry_run_explore(settings, RunContext(recipe.shared)), stage.as_json)
    elif run is not None:
        run_and_print(recipe, run, stage, only=name, ray=cluster.config())
    elif folder is not None:
        run_and_print(recipe, folder, stage, ray=cluster.config())


def _resumes(run: RunFolder, name: str) -> bool:
    """Whether `explore --out` continues a run: it has the stage, or its recipe has no other."""
    return name in run.stage_names() or {stage.name for stage in run.recipe().stages} == {name}


@takes_groups
def pairs_command(
    *,
    run: Annotated[Path, path_option("DIR", "A run with trees.")],
    settings: Annotated[
        Typed,
        PairConfig,
        {
            "judge": "What ranks the steps: spre, mc or q (tree values), gold, or llm (a language model).",
            "margin": (
                "Minimum difference of values, or of scores (--mode score or value).",
                f"{PairConfig().margin:g}; of scores {LLMJudgeConfig.model_fields['score_margin'].default:g}",
            ),
            "balance": ("Balance pairs by CHOICES, or both: kind,depth.", "not at all"),
        },
    ],
    asking: Annotated[
        Typed,
        LLMJudgeConfig,
        {"mode": "Question to the model: CHOICES.", "order": "Order of steps in the prompt: CHOICES."},
    ],
    judge_options: JudgeOptions,
    stage: ExtendOptions,
) -> None:
    """Make preference pairs from a run's trees: two steps from the same state, one better than the other."""
    llm = judge_options.settings(**asking)
    if "margin" in settings and asking.get("mode") in ("score", "value"):
        llm["score_margin"] = settings.pop("margin")
    if llm:
        settings = {"judge": "llm", **settings, "llm": llm}
    if not judge_options.estimate_only:
        add_stage(run, "pairs", settings, stage)
        return
    name = stage.name or "pairs"
    recipe = extend_recipe(run, name, {"kind": "pairs", **settings}, stage.overrides, named=stage.named())
    chosen = find_stage(recipe, name)
    assert isinstance(chosen.settings, PairConfig)
    trees = output_of(run, TREES, chosen.inputs[TREES])
    _print_estimate(dry_run(chosen.settings, trees, run / name), stage.as_json)


def _print_estimate(cost: "Estimate", as_json: bool) -> None:
    most = cost.tokens_at_most.read + cost.tokens_at_most.written
    if as_json:
        tokens = {"tokens_read": cost.tokens.read, "tokens_written": cost.tokens.written, "tokens_at_most": most}
        dollars = {"usd": cost.usd, "usd_at_most": cost.usd_at_most}
        print_json({"calls": cost.calls, "cached": cost.cached, **tokens, **dollars})
        return
    known = cost.usd is not None and cost.usd_at_most is not None
    price = f"about ${cost.usd:,.2f}, at most ${cost.usd_at_most:,.2f}" if known else "unknown for this model"
    say(
        f"calls: {cost.calls:,} ({cost.cached:,} more are in the response cache)\n"
        f"tokens: about {cost.tokens.read:,} read and {cost.tokens.written:,} written, at most {most:,} in total\n"
        f"price: {price}"
    )
