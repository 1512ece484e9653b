"""`demo`: run a recipe from start to end on one machine, without a key or a download.

It shows the data, one question answered by the oracle, the run stage by stage, the same question answered by the
trained policy, the tables and the report of the run, and what to type next. The oracle is the upper bound that
retrieval allows. The studio shows the run meanwhile.
"""

import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from stepladder.cli.declarations import ERR, OUT, option, takes_groups
from stepladder.cli.demo.demo_size import RECIPES, expected_seconds, fitting_size, size_of_run
from stepladder.cli.demo.demo_studio import open_page, studio_of
from stepladder.cli.machine.plan import duration
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
from stepladder.pipeline.run_folder import check_no_other_files
from stepladder.reporting.report import write_report
from stepladder.reporting.run_tables import print_report
from stepladder.train.grpo.config import GRPOConfig

#: With --minutes: the fastest update to plan for, in seconds, and the maximum number of questions (two thirds of the
#: train split of Atlas).
_SECONDS_PER_UPDATE, _MAX_QUESTIONS = 1.0, 800


@takes_groups
def demo_command(
    *,
    folder: RunOut = Path("runs/demo"),
    seed: Seed = 0,
    size: Annotated[
        Literal["auto", "small", "full", "large"],
        typer.Option(
            "--size",
            help="small, full: minutes on a laptop. large: trains longer and scores higher, on a GPU. "
            "auto measures this machine, and takes full if that ends within ten minutes, else small.",
        ),
    ] = "auto",
    minutes: Annotated[
        float | None, option("N", "Minutes of reinforcement learning.", "as the recipe says", min=0.1, max=100_000)
    ] = None,
    studio: Annotated[
        bool, typer.Option("--studio/--no-studio", help="Show the run in a browser while it trains.")
    ] = True,
    options: UpdateOptions,
) -> None:
    """Train a small model to search on this machine: a generated encyclopedia, an oracle, scores after each stage."""
    check_no_other_files(folder)
    changes = [f"seed={seed}", *(options.overrides or ())]
    chosen = _choose_size(folder, changes) if size == "auto" else size
    recipe = users_recipe(RECIPES[chosen], changes)
    if minutes is not None:
        recipe = users_recipe(RECIPES[chosen], [*changes, *_time_limit(minutes, recipe)])
    with interruptible(), studio_of(folder, _show_studio) if studio else nullcontext():
        run_demo(OUT, recipe, folder, **options.updating())
    _say_next(OUT, folder)


def _choose_size(folder: Path, changes: Sequence[str]) -> str:
    """The size of a run that exists, or the one for this machine."""
    if (known := size_of_run(folder)) is not None:
        return known
    if _has_gpu():
        return "full"
    _say(ERR, "Measuring this machine, a few seconds ...")
    seconds = expected_seconds(changes)
    chosen = fitting_size(seconds)
    times = ", ".join(f"{size} about {duration(each)}" for size, each in seconds.items())
    _say(ERR, f"Expected here: {times}. Taking --size {chosen}.\n")
    return chosen


def _has_gpu() -> bool:
    import torch  # slow to import

    return torch.cuda.is_available()


def _show_studio(url: str) -> None:
    opened = OUT.is_terminal and sys.stdin.isatty() and open_page(url)
    _say(OUT, f"\nWatch it {'in your browser' if opened else 'live'}: {url}\n")


def _say_next(console: Console, folder: Path) -> None:
    """What to type after the demo."""
    commands = {
        f"stepladder studio {folder}": "its trees and curves, and a page to ask it questions",
        f"stepladder ask --run {folder}": "one question in the terminal, step by step",
        "stepladder index build FOLDER --out my-index": "your own texts: then docs/your-data.md",
    }
    width = max(map(len, commands))
    _say(console, "\nNext:")
    for command, what in commands.items():
        _say(console, f"  {command:<{width}}   {what}")


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
    example = next((each for each in questions if each.searches_needed == 2 and each.kind == "bridge"), questions[0])
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
