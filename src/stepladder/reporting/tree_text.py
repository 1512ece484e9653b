"""A search tree as a table in the terminal, one line per node."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepladder.core.trace import ActionKind, Node, Tree
from stepladder.core.trace_printer import printable
from stepladder.explore.values import spre
from stepladder.oracle.step_judge import judge_tree
from stepladder.reporting.charts.tree_diagram import KIND_LABELS
from stepladder.reporting.charts.tree_layout import content_of, is_unvisited, most_visited_path, ordered_children

#: The styles of faults, and of steps that follow from an earlier one.
_FAULTS = {False: "red", True: "yellow"}
_STYLES = {
    ActionKind.QUERY: "cyan",
    ActionKind.EVIDENCE: "blue",
    ActionKind.SUB_ANSWER: "blue",
    ActionKind.ANSWER: "green",
    ActionKind.MALFORMED: "red",
}


def print_tree(console: Console, tree: Tree) -> None:
    """Print the tree as a table, one line per node."""
    answers = f"; answer: {printable(' | '.join(tree.question.shown_answers[:3]))}" if tree.question.answers else ""
    heading = f"[bold]{printable(tree.question.text)}[/]\n[dim]{printable(tree.question.id)}{answers}[/]\n"
    console.print(heading, highlight=False, soft_wrap=True)
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
            "" if verdict is None else "good" if verdict.good else f"[{_FAULTS[verdict.derived]}]{verdict.fault}[/]",
            style="dim" if is_unvisited(node) else None,
        )
    console.print(table)
    console.print(
        "\n[dim]*: most visited path. N: visits, Q: mean value, SPRE: shortest-path reward estimate, F1: of the final "
        "answers. Steps with N 0 were sampled but not visited.[/]",
        highlight=False,
        soft_wrap=True,
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
