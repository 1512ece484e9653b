"""`run` runs a recipe, `train sft` starts a run with one stage; `train prm`, `rft`, `dpo`, `grpo` and `prm` add one."""

from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

import typer

from stepladder.cli.options import (
    AGENTS_HELP,
    AsJson,
    IndexName,
    NumGenerations,
    Overrides,
    Policy,
    Questions,
    RunOut,
    RunToExtend,
    Seed,
    StageOptions,
    TopK,
    Update,
    WorldSeed,
    given,
    listed,
    path_of,
    takes_groups,
)
from stepladder.cli.recipes import add_stage, new_recipe, read_recipe, run_and_print, stages_before
from stepladder.core.errors import StepladderError
from stepladder.data import DATA_SETS
from stepladder.pipeline.recipe import load_recipe, shipped
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import PAIRS, TREES
from stepladder.pipeline.stages import get_stage

app = typer.Typer(help="Train with one stage: sft starts a run, the others extend one.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options of every training stage."""

    num_train_epochs: Annotated[
        float | None, number_option("--num-train-epochs", "Passes over the training data.")
    ] = None
    learning_rate: Annotated[float | None, number_option("--learning-rate", "Peak learning rate.")] = None
    lora: Annotated[bool, typer.Option("--lora", help="Train a LoRA adapter instead of all weights.")] = False

    def settings(self) -> dict[str, Any]:
        """The settings that were given."""
        return given(
            num_train_epochs=self.num_train_epochs,
            learning_rate=self.learning_rate,
            lora={} if self.lora else None,
        )


def run_command(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help=f"A recipe file (.yaml), or one of: {listed(shipped())}.")
    ],
    folder: RunOut,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe. The same command resumes an interrupted run."""
    run_and_print(load_recipe(recipe, overrides or ()), folder, update, as_json)


@app.command("sft")
@takes_groups
def train_sft_command(
    *,
    folder: RunOut,
    model: Policy = "nano",
    agent: Annotated[
        str, option("--agent", "NAME", f"Agent to imitate: {AGENTS_HELP}.")
    ] = "prorag-brief",
    data: Annotated[
        str,
        option("--data", "NAME", f"{listed(DATA_SETS)}, a published data set, or a folder or file of questions to train on."),
    ] = "atlas",
    dev: Annotated[
        Path | None,
        path_option("--dev", "FILE", "Dev questions, if --data is a question file."),
    ] = None,
    index: IndexName = None,
    topk: TopK = 1,
    world_seed: WorldSeed = 0,
    questions: Questions = None,
    source: Annotated[
        str | None,
        option("--source", "NAME", "Source of the demonstrations: gold, mined, bootstrap or teacher."),
    ] = None,
    teacher_url: Annotated[
        str | None,
        option("--teacher-url", "URL", "URL of the teacher's OpenAI-compatible server."),
    ] = None,
    teacher_model: Annotated[
        str | None, option("--teacher-model", "NAME", "The teacher's model name on that server.")
    ] = None,
    seed: Seed = 0,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
    training: TrainingOptions,
) -> None:
    """Supervised fine-tuning on demonstrations. --set changes any other setting of the stage."""
    entry = given(
        questions=questions,
        source=source or ("teacher" if teacher_url or teacher_model else None),
        teacher_url=teacher_url,
        teacher_model=teacher_model,
    )
    recipe = new_recipe(
        "sft",
        {"sft": entry | training.settings()},
        model=model,
        agent=agent,
        data=data,
        dev=dev,
        index=index,
        topk=topk,
        world_seed=world_seed,
        seed=seed,
    )
    run_and_print(read_recipe(recipe, "sft", overrides), folder, update, as_json)


@app.command("prm")
@takes_groups
def train_prm_command(
    *,
    run: RunToExtend,
    objective: Annotated[
        str | None,
        option("--objective", "NAME", "What to learn: pairs (default: which of two steps is better), or from trees: verdicts (of the gold "
            "judge), values (of each step) or outcome (the reward of the whole episode)."),
    ] = None,
    model: Annotated[
        str | None,
        option("--model", "NAME", "Initial model, such as nano-critic", default="the newest policy"),
    ] = None,
    training: TrainingOptions,
    stage: StageOptions,
) -> None:
    """Train a process reward model on a run's pairs or trees. --set changes any other setting of the stage."""
    add_stage(run, "prm", given(objective=objective, model=model) | training.settings(), stage)


@app.command("rft")
@takes_groups
def train_rft_command(
    *,
    run: RunToExtend,
    questions: Questions = None,
    num_generations: NumGenerations = None,
    threshold: Annotated[
        str | None,
        option("--threshold", "NUMBER|none", "Minimum reward model score of every step (default: 0); none uses no reward model."),
    ] = None,
    keep: Annotated[
        int | None, number_option("--keep", "Maximum trajectories to keep per question.", min=1)
    ] = None,
    training: TrainingOptions,
    stage: StageOptions,
) -> None:
    """Rejection sampling: fine-tune on the policy's own correct trajectories. --set changes any other setting."""
    settings = given(questions=questions, num_generations=num_generations, keep=keep) | training.settings()
    if threshold is not None:
        settings["threshold"] = _number_or_none("--threshold", threshold)
    add_stage(run, "rft", settings, stage, alternative=", and --threshold none does without")


@app.command("dpo")
@takes_groups
def train_dpo_command(
    *,
    run: RunToExtend,
    pairs: Annotated[
        Path | None,
        path_option("--pairs", "FILE", "Pairs in the format of RAG-ProGuide or Stepladder (a file or a folder) "
            "[dim](default: the run's newest pairs)[/]"),
    ] = None,
    beta: Annotated[
        float | None, number_option("--beta", "KL coefficient: how close the policy stays to the reference.")
    ] = None,
    loss_type: Annotated[
        str | None, option("--loss-type", "NAME", "sigmoid [dim](default)[/] or ipo.")
    ] = None,
    training: TrainingOptions,
    stage: StageOptions,
) -> None:
    """Direct preference optimization (DPO) on step pairs. --set changes any other setting of the stage."""
    settings = given(beta=beta, loss_type=loss_type) | training.settings()
    sources = {}
    if pairs is not None:
        settings[PAIRS], source = _pairs_file_stage(run, stage.name or "dpo", pairs.absolute())
        sources[settings[PAIRS]] = source
    add_stage(run, "dpo", settings, stage, sources=sources, alternative=", and --pairs FILE reads others")


@app.command("grpo")
@takes_groups
def train_grpo_command(
    *,
    run: RunToExtend,
    mode: Annotated[
        str | None,
        option("--mode", "NAME", "Rewards: dual (default: the answer, and each step by the reward model), outcome (the answer only), "
            "process (steps only) or tree (each step by the answers below it)."),
    ] = None,
    questions: Questions = None,
    num_generations: Annotated[
        int | None, number_option("--num-generations", "Episodes per question.", min=2)
    ] = None,
    training: TrainingOptions,
    stage: StageOptions,
) -> None:
    """Reinforcement learning with GRPO. --set changes any other setting of the stage."""
    settings = given(mode=mode, questions=questions, num_generations=num_generations) | training.settings()
    add_stage(run, "grpo", settings, stage, alternative=", and --mode outcome or tree does without")


@takes_groups
def prm_command(
    *,
    run: RunToExtend,
    split: Annotated[
        str | None,
        option("--split", "NAME", "Split of the questions: test [dim](default)[/], dev or train."),
    ] = None,
    questions: Questions = None,
    num_generations: NumGenerations = None,
    stage: StageOptions,
) -> None:
    """Evaluate a run's reward model: against the gold judge, on held-out pairs, on corrupted trajectories."""
    earlier = stages_before(run, stage.name or "prm-eval").values()
    written = {role for each in earlier for role in get_stage(each["kind"]).outputs}
    settings = given(
        split=split,
        questions=questions,
        num_generations=num_generations,
        held_out_pairs=None if PAIRS in written else False,
        score_trees=True if TREES in written else None,
    )
    add_stage(run, "prm-eval", settings, stage)


def _number_or_none(option: str, text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise StepladderError(f"{option}: expected a number or none, found {text!r}") from error


def _pairs_file_stage(run: Path, name: str, path: Path) -> tuple[str, dict[str, Any]]:
    """Name and settings of a stage before `name` that reads pairs from a file: an existing one, or a new one."""
    for each, stage in stages_before(run, name).items():
        if stage["kind"] == "pairs-file" and stage["path"] == str(path):
            return each, stage
    taken = {name, *(stage.name for stage in RunFolder.open(run).recipe().stages)}
    names = chain(["pairs-file"], (f"pairs-file-{number}" for number in count(2)))
    return next(each for each in names if each not in taken), {"kind": "pairs-file", "path": str(path)}
