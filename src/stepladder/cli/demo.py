"""`demo`: run a recipe from start to end on one machine, without a key or a download.

It shows the data, one question answered by the oracle, the run stage by stage, the same question answered by the
trained policy, and the tables and the report of the run. The oracle is the upper bound that retrieval allows.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from stepladder.cli.declarations import OUT, option, takes_groups
from stepladder.cli.options import RunOut, Seed, UpdateOptions
from stepladder.cli.recipes import interruptible
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, Trajectory
from stepladder.core.trace_printer import TracePrinter
from stepladder.driver import Driver
from stepladder.explore.episode import episode, watch_states
from stepladder.pipeline import RunReport, run_recipe
from stepladder.pipeline.agent_config import users_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import ORACLE, RunContext
from stepladder.reporting.report import write_report
from stepladder.reporting.run_tables import print_report
from stepladder.train.grpo.config import GRPOConfig

#: The recipe of each --size.
RECIPES = {"small": "prorag-nano", "large": "prorag-nano-large"}
#: With --minutes: the fastest update to plan for, in seconds, and the maximum number of questions (two thirds of the
#: train split of Atlas).
_SECONDS_PER_UPDATE, _MAX_QUESTIONS = 1.0, 800


@takes_groups
def demo_command(
    *,
    folder: RunOut = Path("runs/demo"),
    seed: Seed = 0,
    size: Annotated[
        Literal["small", "large"],
        typer.Option("--size", help="small: minutes on a laptop. large: trains longer and scores higher."),
    ] = "small",
    minutes: Annotated[
        float | None, option("N", "Minutes of reinforcement learning.", "as the recipe says", min=0.1, max=100_000)
    ] = None,
    options: UpdateOptions,
) -> None:
    """Train a small model to search on this machine: a generated encyclopedia, an oracle, scores after each stage."""
    changes = [f"seed={seed}", *(options.overrides or ())]
    recipe = users_recipe(RECIPES[size], changes)
    if minutes is not None:
        recipe = users_recipe(RECIPES[size], [*changes, *_time_limit(minutes, recipe)])
    with interruptible():
        run_demo(OUT, recipe, folder, **options.updating())


def _time_limit(minutes: float, recipe: Recipe) -> list[str]:
    """Overrides that let reinforcement learning run until the time is up, on new questions while there are any."""
    (stage,) = (stage for stage in recipe.stages if isinstance(stage.settings, GRPOConfig))
    settings = stage.settings
    assert isinstance(settings, GRPOConfig)
    needed = math.ceil(minutes * 60 / _SECONDS_PER_UPDATE) * (settings.batch_size // settings.num_generations)
    questions = min(max(needed, settings.questions), _MAX_QUESTIONS)
    changes = {"minutes": minutes, "questions": questions, "num_train_epochs": needed / questions}
    return [f"stages.{stage.name}.{key}={value}" for key, value in changes.items()]


def run_demo(console: Console, recipe: Recipe, folder: Path, **updating: Any) -> RunReport:
    """Run the recipe, and show a question answered before and after. `updating`: arguments of `run_recipe`."""
    context = RunContext(recipe.shared, console)
    splits = ", ".join(f"{len(group):,} {name}" for name, group in context.data.questions.items())
    passages = f"{len(context.data.passages):,} passages, " if context.data.passages is not None else ""
    _say(console, f"A generated encyclopedia, {recipe.shared.data.name}: {passages}{splits} questions.")
    questions = context.split("test")
    example = next((question for question in questions if question.searches_needed == 2), questions[0])
    _say(console, "\nA question answered by the oracle, which replays the gold queries over real search results:\n")
    _answer(context, ORACLE, example, recipe.seed)

    _say(console, f"\nNow {recipe.shared.policy}, a small model, is trained to do the same. Run folder: {folder}\n")
    report = run_recipe(recipe, folder, console=console, **updating)
    if report.choice is not None:
        _say(console, f"\nThe same question answered by the trained model, {report.choice}:\n")
        _answer(context, str(report.choice.path), example, recipe.seed)
    print_report(console, report)
    _say(console, f"\nHTML report with curves, search trees and transcripts: {write_report(folder)}")
    return report


def _answer(context: RunContext, policy: str, question: Question, seed: int) -> None:
    printer = TracePrinter(context.console)
    printer.question(question)

    def job() -> Algorithm[Trajectory]:
        return watch_states(
            episode(context.agent, question, context.episode(), seed_of(seed, question.id)), printer.show
        )

    with context.engine(policy) as engine:
        (outcome,) = Driver(engine, context.retriever).run([job])
    if outcome.failure is not None:
        raise StepladderError(outcome.failure.reason)


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
