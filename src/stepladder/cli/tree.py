"""`tree` shows a search tree of a run in the terminal, or writes it as SVG or JSON."""

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from stepladder.cli.declarations import OUT, argument, path_option, say
from stepladder.cli.options import AsJson
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.records import dumps
from stepladder.core.trace import StopReason, Tree
from stepladder.core.trace_printer import printable
from stepladder.explore.tree_store import read_trees
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import TREES
from stepladder.reporting.charts.tree_diagram import tree_svg
from stepladder.reporting.tree_text import print_tree


def tree_command(
    run: Annotated[Path, path_option("--run", "DIR", "A run with trees.")],
    question_id: Annotated[
        str | None, argument("QUESTION-ID", "The question.", default="the tree with the most right and wrong answers")
    ] = None,
    svg: Annotated[Path | None, path_option("--svg", "FILE", "Write the tree as SVG.")] = None,
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
