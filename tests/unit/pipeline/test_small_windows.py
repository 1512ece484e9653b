"""When all trees are refused because the model's context window is too small, and when not."""

from pathlib import Path

from stepladder.core.trace import Action, ActionKind, Author, Node, Rollout, Segment, Step, StopReason, Tree
from stepladder.explore.tree_store import TreeFile
from stepladder.pipeline.tree_search import _window_is_too_small
from tests.support.samples import QUESTION

STEP = Step((), Segment(Author.POLICY, "?"), Action(ActionKind.QUERY, "?"))
FULL = StopReason.CONTEXT_LIMIT


def refused(folder: Path, *nodes: Node) -> bool:
    path = folder / "trees.jsonl.gz"
    path.unlink(missing_ok=True)
    with TreeFile(path) as file:
        file.add(Tree(QUESTION, "prorag", (Node(0, None, None, visits=2), *nodes)))
    return _window_is_too_small(path)


def test_trees_are_refused_only_if_no_branch_says_anything(tmp_path: Path) -> None:
    full = Node(1, 0, STEP, visits=1, stop=FULL)
    untried = Node(2, 0, STEP)
    assert refused(tmp_path, full, untried)
    rolled_out = Node(2, 0, STEP, visits=1, rollouts=(Rollout(0.0, 1, FULL, None),))
    assert refused(tmp_path, full, rolled_out)
    answered = Node(2, 0, STEP, visits=1, stop=StopReason.ANSWERED)
    assert not refused(tmp_path, full, answered)
    scored = Node(2, 0, STEP, visits=1, value=0.7)  # by a step scorer, without a rollout
    assert not refused(tmp_path, full, scored)
