"""`run` runs a recipe, `train sft` starts a run with one stage; `train prm`, `rft`, `dpo`, `grpo` and `prm` add one."""

from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

import typer

from stepladder.cli.declarations import (
    OptionGroup,
    argument,
    given,
    listed,
    number_option,
    option,
    path_option,
    takes_groups,
)
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
class TrainingOptions(OptionGroup):
    """Options of every training stage."""

    num_train_epochs: Annotated[float | None, number_option("--num-train-epochs", "Passes over the training data.")] = (
        None
    )
    learning_rate: Annotated[float | None, number_option("--learning-rate", "Peak learning rate.")] = None
    lora: Annotated[bool, typer.Option("--lora", help="Train a LoRA adapter instead of all weights.")] = False

    def settings(self) -> dict[str, Any]:
        """The settings that were given."""
        settings = self.typed()
        if settings.pop("lora"):
            settings["lora"] = {}
        return settings


def run_command(
    recipe: Annotated[str, argument("RECIPE", f"A recipe file (.yaml), or one of: {listed(shipped())}.")],
    folder: RunOut,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe. The same command resumes an interrupted run."""
    run_and_print(load_recipe(recipe, overrides or ()), folder, update, as_json)


@dataclass(frozen=True, slots=True)
class SFTRunOptions(OptionGroup):
    """Model, agent and data of a new run."""

    model: Policy = "nano"
    agent: Annotated[str, option("--agent", "NAME", f"Agent to imitate: {AGENTS_HELP}.")] = "prorag-brief"
    data: Annotated[
        str, option("--data", "NAME", f"{listed(DATA_SETS)}, a published data set, or a folder or file of questions.")
    ] = "atlas"
    dev: Annotated[Path | None, path_option("--dev", "FILE", "Dev questions, if --data is a question file.")] = None
    index: IndexName = None
    topk: TopK = 1
    world_seed: WorldSeed = 0
    seed: Seed = 0


@dataclass(frozen=True, slots=True)
class DemonstrationOptions(OptionGroup):
    """Settings of the demonstrations."""

    questions: Questions = None
    source: Annotated[
        str | None, option("--source", "NAME", "Source of the demonstrations: gold, mined, bootstrap or teacher.")
    ] = None
    teacher_url: Annotated[
        str | None, option("--teacher-url", "URL", "URL of the teacher's OpenAI-compatible server.")
    ] = None
    teacher_model: Annotated[
        str | None, option("--teacher-model", "NAME", "The teacher's model name on that server.")
    ] = None


@app.command("sft")
@takes_groups
def train_sft_command(
    *,
    folder: RunOut,
    start: SFTRunOptions,
    demonstrations: DemonstrationOptions,
    training: TrainingOptions,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Supervised fine-tuning on demonstrations. --set changes any other setting of the stage."""
    entry = demonstrations.typed() | training.settings()
    if demonstrations.teacher_url or demonstrations.teacher_model:
        entry.setdefault("source", "teacher")
    recipe = new_recipe("sft", {"sft": entry}, **start.typed())
    run_and_print(read_recipe(recipe, "sft", overrides), folder, update, as_json)


@app.command("prm")
@takes_groups
def train_prm_command(
    *,
    run: RunToExtend,
    objective: Annotated[
        str | None,
        option(
            "--objective",
            "NAME",
            "What to learn: pairs (which of two steps is better), or from trees: verdicts (of the gold "
            "judge), values (of each step) or outcome (the reward of the whole episode).",
            default="pairs",
        ),
    ] = None,
    model: Annotated[
        str | None, option("--model", "NAME", "Initial model, such as nano-critic.", default="the newest policy")
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
        option(
            "--threshold",
            "NUMBER|none",
            "Minimum reward model score of every step; none uses no reward model.",
            default="0",
        ),
    ] = None,
    keep: Annotated[int | None, number_option("--keep", "Maximum trajectories to keep per question.", min=1)] = None,
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
        path_option(
            "--pairs",
            "FILE",
            "Pairs in the format of RAG-ProGuide or Stepladder (a file or a folder).",
            default="the run's newest pairs",
        ),
    ] = None,
    beta: Annotated[
        float | None, number_option("--beta", "KL coefficient: how close the policy stays to the reference.")
    ] = None,
    loss_type: Annotated[str | None, option("--loss-type", "NAME", "sigmoid or ipo.", default="sigmoid")] = None,
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
        option(
            "--mode",
            "NAME",
            "Rewards: dual (the answer, and each step by the reward model), outcome (the answer only), "
            "process (steps only) or tree (each step by the answers below it).",
            default="dual",
        ),
    ] = None,
    questions: Questions = None,
    num_generations: Annotated[int | None, number_option("--num-generations", "Episodes per question.", min=2)] = None,
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
        str | None, option("--split", "NAME", "Split of the questions: test, dev or train.", default="test")
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
