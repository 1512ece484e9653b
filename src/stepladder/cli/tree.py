"""`tree` shows a search tree of a run: in the terminal, as a picture, or as the record it is."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepladder.cli.options import AsJson, path_of
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

out = Console()

_STYLES = {
    ActionKind.QUERY: "cyan",
    ActionKind.EVIDENCE: "blue",
    ActionKind.SUB_ANSWER: "blue",
    ActionKind.ANSWER: "green",
    ActionKind.MALFORMED: "red",
}


def tree_command(
    run: Annotated[Path, typer.Option("--run", parser=path_of, help="A run with trees.")],
    question_id: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION-ID", help="Without one: the tree with the most right and wrong answers side by side."
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", parser=path_of, help="Write a picture that browsers show.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at a search tree: its steps, what they are worth, and what the gold judge says of them."""
    path = RunFolder.open(run).newest(TREES)
    if path is None:
        raise StepladderError(f"the run {run} has no trees yet: `stepladder explore --run {run}` makes them")
    tree = find_tree(path, question_id) if question_id is not None else telling_tree(path)
    if svg is not None:
        with atomic_file(svg, what="picture") as file:
            file.write(tree_svg(tree))
    if as_json:
        typer.echo(dumps(tree))
    elif svg is not None:
        out.print(f"{printable(str(svg))}: the tree of {printable(tree.question.id)}", highlight=False, soft_wrap=True)
    else:
        print_tree(out, tree)


def find_tree(path: Path, question_id: str) -> Tree:
    """The tree of a question."""
    ids = []
    for tree in read_trees(path):
        if tree.question.id == question_id:
            return tree
        ids.append(tree.question.id)
    near = [each for each in ids if question_id in each][:3] or get_close_matches(question_id, ids, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else f" One that it has is {ids[0]}." if ids else ""
    raise StepladderError(f"{path} has no tree of a question '{question_id}', but {len(ids):,} others.{hint}")


def telling_tree(path: Path) -> Tree:
    """The tree that shows best what leads where: the most right and wrong answers side by side, in the fewest nodes."""

    def rank(tree: Tree) -> tuple[int, int]:
        earned = [node.reward for node in tree.nodes if node.stop is StopReason.ANSWERED]
        right = sum(reward == 1 for reward in earned)
        return min(right, len(earned) - right), -len(tree.nodes)

    tree = max(read_trees(path), key=rank, default=None)
    if tree is None:
        raise StepladderError(f"{path} holds no trees")
    return tree


def print_tree(console: Console, tree: Tree) -> None:
    """The tree as a table, a node a line."""
    answers = f"; answer: {printable(' | '.join(tree.question.answers[:3]))}" if tree.question.answers else ""
    console.print(f"[bold]{printable(tree.question.text)}[/]", highlight=False, soft_wrap=True)
    console.print(f"[dim]{printable(tree.question.id)}{answers}[/]\n", highlight=False, soft_wrap=True)
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
    console.print(
        "\n[dim]*: where most simulations went. N: simulations, Q: their mean value, SPRE: shortest-path reward; "
        "F1 of the ends. Steps with N 0 were made, but not visited.[/]",
        highlight=False,
        soft_wrap=True,
    )


def _lines(tree: Tree) -> Iterator[tuple[Node, str]]:
    """Every node from the top down, with the guide that leads to it."""
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
    """What a node does and says; cut where the line ends, so that a node is a line."""
    text = Text(guide, style="dim", no_wrap=True, overflow="ellipsis")
    text.append("* " if best else "", style="bold yellow")
    if node.step is None:
        return text.append("question", style="bold")
    text.append(f"{KIND_LABELS[node.step.action.kind]} ", style=_STYLES[node.step.action.kind])
    return text.append_text(Text.from_markup(printable(content_of(node)), style="bold" if best else ""))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
