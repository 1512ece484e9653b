"""The demo: a recipe carried out in front of a newcomer, on one machine, without key or download.

It shows the world, a question as the oracle answers it, the run stage by stage, the same question as the trained policy
answers it, the tables of the run, and where its report lies. The oracle is the ceiling that the search allows.
"""

from pathlib import Path

from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, Trajectory
from stepladder.core.trace_printer import TracePrinter
from stepladder.driver import Driver
from stepladder.explore.episode import episode, watched
from stepladder.pipeline import RunReport, run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import ORACLE, RunContext
from stepladder.reporting.report import write_report
from stepladder.reporting.run_tables import print_report


def run_demo(console: Console, recipe: Recipe, folder: Path, *, update: bool = False) -> RunReport:
    """Carry out the recipe, with a question answered before and after."""
    context = RunContext(recipe.shared, console)
    splits = ", ".join(f"{len(group):,} {name}" for name, group in context.data.questions.items())
    passages = f"{len(context.data.passages):,} passages, " if context.data.passages is not None else ""
    _say(console, f"A fictional encyclopedia, {recipe.shared.data.name}: {passages}{splits} questions.")
    example = _example(context.split("test"))
    _say(console, "\nA question, as the oracle answers it, which knows what to search for but not what is found:\n")
    _play(context, ORACLE, example, recipe.seed)

    _say(console, f"\nNow {recipe.shared.policy}, a small model, learns to do that. The run is kept in {folder}.\n")
    report = run_recipe(recipe, folder, update=update, console=console)
    if report.policy is not None:
        _say(console, "\nThe same question, as the trained model answers it:\n")
        _play(context, str(report.policy), example, recipe.seed)
    print_report(console, report)
    _say(console, f"\nAll of it as a page, with curves, search trees and transcripts: {write_report(folder)}")
    return report


def _example(questions: tuple[Question, ...]) -> Question:
    """The first question that needs two searches: enough to see what a step is."""
    return next((question for question in questions if question.searches_needed == 2), questions[0])


def _play(context: RunContext, policy: str, question: Question, seed: int) -> None:
    narrator = TracePrinter(context.console)
    narrator.question(question)

    def job() -> Algorithm[Trajectory]:
        return watched(episode(context.agent, question, context.episode(), seed_of(seed, question.id)), narrator.show)

    with context.engine(policy) as engine:
        (outcome,) = Driver(engine, context.retriever).run([job])
    if outcome.failure is not None:
        raise StepladderError(outcome.failure.reason)


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
