"""`run` runs a recipe, `train sft` starts a run with one stage; `train prm`, `rft`, `dpo`, `grpo` and `prm` add one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

import typer

from stepladder.cli.declarations import Typed, argument, listed, option, path_option, takes_groups
from stepladder.cli.options import (
    AGENTS_HELP,
    ExtendOptions,
    NewRunOptions,
    RayOptions,
    RunOptions,
    RunOut,
    RunToExtend,
    TopK,
    TrustAgent,
)
from stepladder.cli.recipes import add_stage, new_recipe, run_and_print, stages_before
from stepladder.core.errors import unknown_name
from stepladder.pipeline.agent_config import users_recipe
from stepladder.pipeline.recipe import shipped
from stepladder.pipeline.resources import SharedConfig
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import PAIRS, TREES
from stepladder.pipeline.stages import get_stage
from stepladder.pipeline.stages.prm_eval import PRMEvalConfig
from stepladder.train.dpo.config import DPOConfig
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.loop.config import TrainingConfig
from stepladder.train.loop.trackers import TRACKERS
from stepladder.train.prm.config import PRMConfig
from stepladder.train.rft.config import RFTConfig
from stepladder.train.sft.config import SFTConfig

app = typer.Typer(help="Train with one stage: sft starts a run, the others extend one.", no_args_is_help=True)

_QUESTIONS = {"questions": "Number of questions to use."}
_GENERATIONS = {"num_generations": "Episodes per question."}
_TRACKERS = (f"Report to experiment trackers: {listed(TRACKERS)}. Repeatable.", "none")
_RUN_SETTINGS = {"agent": (f"Agent: {AGENTS_HELP}.", "as the recipe says"), "report_to": _TRACKERS}


def _training(config: type[TrainingConfig]) -> dict[str, str | tuple[str, str]]:
    """Help texts of the settings that all trainers share."""
    rates = [f"{rate:.0e}".replace("e-0", "e-") for rate in (*config.auto_rates, config.auto_lora_rate)]
    by_size = "{} below 20M parameters, {} below 1B, else {}; {} with LoRA".format(*rates)
    return {
        "num_train_epochs": "Passes over the training data.",
        "learning_rate": ("Peak learning rate.", by_size),
        "lora": "Train a LoRA adapter instead of all weights.",
        "report_to": _TRACKERS,
    }


@takes_groups
def run_command(
    *,
    recipe: Annotated[str, argument("RECIPE", f"A recipe file (.yaml), or one of: {listed(shipped())}.")],
    folder: RunOut,
    only: Annotated[str | None, option("STAGE", "Run this stage and those that it needs.", "all stages")] = None,
    trust_agent: TrustAgent = None,
    settings: Annotated[Typed, SharedConfig, _RUN_SETTINGS],
    options: RunOptions,
    cluster: RayOptions,
) -> None:
    """Run a recipe. The same command resumes an interrupted run. `stepladder recipes` lists the built-in ones."""
    typed = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    chosen = users_recipe(recipe, [*typed, *(options.overrides or ())], trust_agent=bool(trust_agent))
    stages = [stage.name for stage in chosen.stages]
    if only is not None and only not in stages:
        raise unknown_name("stage", only, stages)
    run_and_print(chosen, folder, options, only=only, ray=cluster.config())


@dataclass(frozen=True, slots=True)
class SFTRunOptions(NewRunOptions):
    """The defaults of `train sft` fit nano."""

    panel = None

    agent: Annotated[str, option("NAME", f"Agent to imitate: {AGENTS_HELP}.")] = "prorag-brief"
    topk: TopK = 1


@app.command("sft")
@takes_groups
def train_sft_command(
    *,
    folder: RunOut,
    start: SFTRunOptions,
    settings: Annotated[
        Typed,
        SFTConfig,
        {
            **_QUESTIONS,
            "source": "Source of the demonstrations: CHOICES.",
            "teacher_url": ("URL of the teacher's OpenAI-compatible server.", "OpenAI's"),
            "teacher_model": ("The teacher's model name on that server.", "none; --source teacher needs it"),
            "teacher_budget": ("Hard spending limit of the teacher over all attempts: 5usd, 2Mtok.", "no limit"),
            **_training(SFTConfig),
        },
    ],
    options: RunOptions,
) -> None:
    """Supervised fine-tuning on demonstrations. --set changes any other setting of the stage."""
    if {"teacher_url", "teacher_model"}.intersection(settings):
        settings = {"source": "teacher", **settings}
    run_and_print(new_recipe("sft", {"kind": "sft", **settings}, start, options.overrides), folder, options)


def _adds_stage(
    kind: str, config: type[TrainingConfig], texts: Mapping[str, str | tuple[str, str]], about: str, otherwise: str = ""
) -> None:
    """Make the command of a trainer that adds a stage to a run. `otherwise` ends the error about a missing input."""

    @takes_groups
    def command(
        *,
        run: RunToExtend,
        settings: Annotated[Typed, config, {**texts, **_training(config)}],
        stage: ExtendOptions,
    ) -> None:
        add_stage(run, kind, settings, stage, alternative=otherwise)

    app.command(kind, help=about)(command)


_adds_stage(
    "prm",
    PRMConfig,
    {
        "objective": "What to learn: pairs (which of two steps is better), or from trees: verdicts (of the gold "
        "judge), values (of each step) or outcome (the reward of the whole episode).",
        "model": ("Initial model, such as nano-critic.", "the newest policy"),
    },
    "Train a process reward model on a run's pairs or trees. --set changes any other setting of the stage.",
)
_adds_stage(
    "rft",
    RFTConfig,
    {
        **_QUESTIONS,
        **_GENERATIONS,
        "threshold": "Minimum reward model score of every step; none uses no reward model.",
        "keep": "Maximum trajectories to keep per question.",
    },
    "Rejection sampling: fine-tune on the policy's own correct trajectories. --set changes any other setting.",
    ", and --threshold none does without",
)
_adds_stage(
    "grpo",
    GRPOConfig,
    {
        "mode": "Credit: dual (the answer, and each step by the reward model), outcome (the answer only), process "
        "(steps only), first-error (dual up to the first faulty step), gain (how much closer to the answer a step "
        "leads, by a potential) or tree (each step by the answers below it).",
        **_QUESTIONS,
        **_GENERATIONS,
        "beta": "KL coefficient: how close the policy stays to the initial one.",
    },
    "Reinforcement learning with GRPO. --set changes any other setting of the stage.",
    ", and --mode outcome or tree does without, as does gain with most potentials",
)


@app.command("dpo")
@takes_groups
def train_dpo_command(
    *,
    run: RunToExtend,
    pairs: Annotated[
        Path | None,
        path_option(
            "FILE", "Pairs in the format of RAG-ProGuide or Stepladder (a file or a folder).", "the run's newest pairs"
        ),
    ] = None,
    settings: Annotated[
        Typed,
        DPOConfig,
        {
            "beta": "KL coefficient: how close the policy stays to the reference.",
            "loss_type": "CHOICES.",
            **_training(DPOConfig),
        },
    ],
    stage: ExtendOptions,
) -> None:
    """Direct preference optimization (DPO) on step pairs. --set changes any other setting of the stage."""
    sources = {}
    if pairs is not None:
        settings[PAIRS], source = _pairs_file_stage(run, stage.name or "dpo", pairs.absolute())
        sources[settings[PAIRS]] = source
    add_stage(run, "dpo", settings, stage, sources=sources, alternative=", and --pairs FILE reads others")


@takes_groups
def prm_command(
    *,
    run: RunToExtend,
    settings: Annotated[
        Typed,
        PRMEvalConfig,
        {"split": "Split of the questions: test, dev or train.", **_QUESTIONS, **_GENERATIONS},
    ],
    stage: ExtendOptions,
    cluster: RayOptions,
) -> None:
    """Evaluate a run's reward model: against the gold judge, on held-out pairs, on corrupted trajectories."""
    earlier = stages_before(run, stage.name or "prm-eval").values()
    written = {role for each in earlier for role in get_stage(each["kind"]).outputs}
    if PAIRS not in written:
        settings["held_out_pairs"] = False
    if TREES in written:
        settings["score_trees"] = True
    add_stage(run, "prm-eval", settings, stage, ray=cluster.config())


def _pairs_file_stage(run: Path, name: str, path: Path) -> tuple[str, dict[str, Any]]:
    """Name and settings of a stage before `name` that reads pairs from a file: an existing one, or a new one."""
    for each, stage in stages_before(run, name).items():
        if stage["kind"] == "pairs-file" and stage["path"] == str(path):
            return each, stage
    taken = {name, *(stage.name for stage in RunFolder.open(run).recipe().stages)}
    names = chain(["pairs-file"], (f"pairs-file-{number}" for number in count(2)))
    return next(each for each in names if each not in taken), {"kind": "pairs-file", "path": str(path)}
