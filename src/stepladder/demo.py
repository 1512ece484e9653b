"""The demo: the whole path from a question to a scored answer on one machine, without key or download.

It makes a fictional encyclopedia, indexes it, lets an oracle and an untrained model answer the same questions through
the same agent, search, driver and metrics, and prints one table. The oracle is the ceiling that the search allows;
the untrained model is the floor.
"""

import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from stepladder.agents import make_agent
from stepladder.data import open_data
from stepladder.driver import Driver
from stepladder.engines import make_engine
from stepladder.evaluate.runner import Evaluation, evaluate
from stepladder.evaluate.table import interval_text
from stepladder.explore.episode import EpisodeSettings
from stepladder.narrate import Narrator
from stepladder.progress import Progress
from stepladder.request import Sampling
from stepladder.retrieval.bm25 import BM25Index


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who answers, and how."""

    label: str
    engine: str
    agent: str


CONTESTANTS = (
    Contestant("oracle, step by step", "gold", "prorag"),
    Contestant("oracle, one search", "gold", "rag"),
    Contestant("untrained model", "transformers", "prorag"),
)


def run_demo(console: Console, count: int, seed: int = 0, program: str = "stepladder") -> None:
    """Play `count` test questions with every contestant and print what happened."""
    started = time.monotonic()
    data = open_data("atlas")
    assert data.passages is not None
    retriever = BM25Index.from_passages(data.passages)
    questions = data.split("test")[:count]
    splits = ", ".join(f"{len(group):,} {name}" for name, group in data.questions.items())
    console.print(f"Atlas, a fictional encyclopedia: {len(data.passages):,} passages, {splits} questions; indexed.")

    settings = EpisodeSettings(sampling=Sampling(max_tokens=64))
    results: dict[Contestant, Evaluation] = {}
    for contestant in CONTESTANTS:
        agent = make_agent(contestant.agent)
        driver = Driver(make_engine(contestant.engine, agent), retriever)
        with Progress(contestant.label, len(questions)) as watch:
            results[contestant] = evaluate(driver, agent, questions, settings, seed=seed, watch=watch)
        stopped = results[contestant].stopped_by
        if stopped is not None:
            raise stopped

    console.print("\nThe longest of these questions, as the oracle answers it:\n")
    oracle = results[CONTESTANTS[0]]
    example = max((each for each in oracle.trajectories if each is not None), key=lambda each: len(each.steps))
    narrator = Narrator(console)
    narrator.question(example.question)
    narrator.show(example)

    console.print(f"\nThe first {len(questions):,} test questions, mean [95% interval]:\n", highlight=False)
    console.print(_table(results))
    console.print(
        "\nThe oracle knows which sub-question comes next, but reads only what the search returns: it is the ceiling.\n"
        "One search with the question itself rarely finds all that is needed. The untrained model is the floor.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"Done in {time.monotonic() - started:.0f} s. Next: {program} ask, {program} eval", highlight=False)


def _table(results: dict[Contestant, Evaluation]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("who", "EM", "F1", "valid", "searches"):
        table.add_column(column, justify="left" if column == "who" else "right", no_wrap=True)
    for contestant, evaluation in results.items():
        metrics = evaluation.summary().metrics
        table.add_row(
            contestant.label,
            interval_text(metrics["em"], 2),
            interval_text(metrics["f1"], 2),
            f"{1 - metrics['malformed'].mean:.2f}",
            f"{metrics['searches'].mean:.1f}",
        )
    return table
