"""`tree` shows a search tree of a run in the terminal, or writes it as SVG or JSON."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepladder.cli.options import OUT, AsJson, path_of, say
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.records import dumps
from stepladder.core.trace import ActionKind, Node, StopReason, Tree
from stepladder.core.trace_printer import printable
from stepladder.explore.tree_store import read_trees
from stepladder.explore.values import spre
from stepladder.oracle.step_judge import judge_tree
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import TREES
from stepladder.reporting.charts.tree_diagram import KIND_LABELS, tree_svg
from stepladder.reporting.charts.tree_layout import content_of, is_unvisited, most_visited_path, ordered_children

_STYLES = {
    ActionKind.QUERY: "cyan",
    ActionKind.EVIDENCE: "blue",
    ActionKind.SUB_ANSWER: "blue",
    ActionKind.ANSWER: "green",
    ActionKind.MALFORMED: "red",
}


def tree_command(
    run: Annotated[Path, typer.Option("--run", parser=path_of, metavar="DIR", help="A run with trees.")],
    question_id: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION-ID",
            help="[dim](default: the tree with the most right and wrong answers)[/]",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", parser=path_of, help="Write the tree as SVG.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a search tree: its steps, their values and the verdicts of the gold judge."""
    path = RunFolder.open(run).newest(TREES)
    if path is None:
        raise StepladderError(f"the run {run} has no trees yet: `stepladder explore --run {run}` makes them")
    tree = find_tree(path, question_id) if question_id is not None else most_instructive_tree(path)
    if svg is not None:
        with atomic_file(svg, what="picture") as file:
            file.write(tree_svg(tree))
    if as_json:
        typer.echo(dumps(tree))
    elif svg is not None:
        say(f"{printable(str(svg))}: the tree of {printable(tree.question.id)}")
    else:
        print_tree(OUT, tree)


def find_tree(path: Path, question_id: str) -> Tree:
    """The tree of a question."""
    ids = []
    for tree in read_trees(path):
        if tree.question.id == question_id:
            return tree
        ids.append(tree.question.id)
    near = [each for each in ids if question_id in each][:3] or get_close_matches(question_id, ids, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else f" One of them is {ids[0]}." if ids else ""
    raise StepladderError(f"{path} has no tree of the question '{question_id}', but of {len(ids):,} others.{hint}")


def most_instructive_tree(path: Path) -> Tree:
    """The tree with the most right and wrong answers (the smaller of the two counts), then the fewest nodes."""

    def rank(tree: Tree) -> tuple[int, int]:
        rewards = [node.reward for node in tree.nodes if node.stop is StopReason.ANSWERED]
        right = sum(reward == 1 for reward in rewards)
        return min(right, len(rewards) - right), -len(tree.nodes)

    tree = max(read_trees(path), key=rank, default=None)
    if tree is None:
        raise StepladderError(f"{path} holds no trees")
    return tree


def print_tree(console: Console, tree: Tree) -> None:
    """Print the tree as a table, one line per node."""
    answers = f"; answer: {printable(' | '.join(tree.question.answers[:3]))}" if tree.question.answers else ""
    say(f"[bold]{printable(tree.question.text)}[/]\n[dim]{printable(tree.question.id)}{answers}[/]\n", console)
    table = Table(box=None, pad_edge=False)
    table.add_column("step")
    for name in ("N", "Q", "SPRE", "F1"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("gold judge", no_wrap=True)
    best, judged, shortest = most_visited_path(tree), judge_tree(tree), spre(tree)
    for node, guide in _lines(tree):
        verdict = judged[node.id]
        table.add_row(
            _step(node, guide, node.id in best),
            f"{node.visits:,}",
            _number(node.value if node.visits else None),
            _number(shortest[node.id]),
            _number(node.reward),
            "" if verdict is None else "good" if verdict.good else f"[red]{verdict.fault}[/]",
            style="dim" if is_unvisited(node) else None,
        )
    console.print(table)
    say(
        "\n[dim]*: most visited path. N: visits, Q: mean value, SPRE: shortest-path reward estimate, F1: of the final "
        "answers. Steps with N 0 were sampled but not visited.[/]",
        console,
    )


def _lines(tree: Tree) -> Iterator[tuple[Node, str]]:
    """Every node in depth-first order, with its indentation guide."""
    children_by_node = ordered_children(tree)
    waiting = [(tree.nodes[0], "", "")]
    while waiting:
        node, guide, below = waiting.pop()
        yield node, guide
        last = children_by_node[node.id][-1:]
        for child in reversed(children_by_node[node.id]):
            turn, on = ("└ ", "  ") if child in last else ("├ ", "│ ")
            waiting.append((child, below + turn, below + on))


def _step(node: Node, guide: str, best: bool) -> Text:
    """Action and content of a node, truncated to one line."""
    text = Text(guide, style="dim", no_wrap=True, overflow="ellipsis")
    text.append("* " if best else "", style="bold yellow")
    if node.step is None:
        return text.append("question", style="bold")
    text.append(f"{KIND_LABELS[node.step.action.kind]} ", style=_STYLES[node.step.action.kind])
    return text.append_text(Text.from_markup(printable(content_of(node)), style="bold" if best else ""))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
