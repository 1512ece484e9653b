"""The search trees of a stage, while they are grown: where each is in its file, and what can be filtered by.

In: a file of trees, which may grow or be sorted meanwhile; PRM scores of these trees, if there are any. Out: one small
entry per tree, in the order of the file. A tree is read from the file when it is shown. The index is made in slices of
time, in two passes: the second asks the gold judge, which takes longer than reading a tree.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from time import monotonic

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Tree
from stepladder.core.unicode import readable
from stepladder.evaluation.prm.tree_scores import NodeScores
from stepladder.explore.tree_store import new_trees, read_tree
from stepladder.oracle.step_judge import judge_tree
from stepladder.reporting.report.tree_disputes import disputes_of
from stepladder.reporting.report.tree_view import answers_of, prm_scores

#: Characters of a question in the list.
_QUESTION = 160


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One tree in the list."""

    #: The id of its question.
    id: str
    question: str
    place: slice
    searches: int
    nodes: int
    #: Leaves with an answer, and how many of them are right.
    answered: int
    right: int
    #: Disputed steps and steps where the PRM is against gold, see tree_disputes.py; None: not looked at yet.
    disputed: int | None = None
    prm_against_gold: int | None = None


class TreeFilter(StrEnum):
    """What is listed."""

    ALL = "all"
    SOLVED = "solved"
    MIXED = "mixed"
    UNSOLVED = "unsolved"
    DISPUTED = "disputed"
    PRM_AGAINST_GOLD = "prm"


#: What each filter lets through.
_RULES: Mapping[TreeFilter, Callable[[TreeEntry], bool]] = {
    TreeFilter.ALL: lambda tree: True,  # noqa: ARG005
    TreeFilter.SOLVED: lambda tree: tree.right > 0,
    TreeFilter.MIXED: lambda tree: 0 < tree.right < tree.answered,
    TreeFilter.UNSOLVED: lambda tree: tree.right == 0,
    TreeFilter.DISPUTED: lambda tree: bool(tree.disputed),
    TreeFilter.PRM_AGAINST_GOLD: lambda tree: bool(tree.prm_against_gold),
}


class TreeIndex:
    """The trees of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[TreeEntry] = []
        #: Entries that the second pass has looked at.
        self.judged = 0
        #: What is wrong with the file; empty if nothing is.
        self.problem = ""
        #: Bytes at the end of the file that hold no whole tree: more of it is still to be written, or never will be.
        self.leftover = 0
        #: Increased when an entry has changed or is new.
        self.version = 0
        self._positions: dict[str, int] = {}
        self._scores: Mapping[str, NodeScores] = {}
        self._end, self._inode, self._size = 0, 0, -1

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to do."""
        return self._size == self._end and self.judged == len(self.entries)

    @property
    def has_scores(self) -> bool:
        """Whether a PRM has scored these trees."""
        return bool(self._scores)

    def use_scores(self, scores: Mapping[str, NodeScores]) -> None:
        """PRM logits by question id and node. Entries are judged again."""
        if scores is not self._scores:
            self._scores, self.judged = scores, 0
            self.version += 1

    def update(self, seconds: float) -> None:
        """Read what is new, for at most so many seconds; at least one tree."""
        until = monotonic() + seconds
        try:
            self._read(until)
            self._judge(until)
        except (OSError, StepladderError) as error:
            problem = str(error)
            self.version += problem != self.problem
            self.problem = problem

    def _read(self, until: float) -> None:
        found = self.path.stat()
        if found.st_ino != self._inode or found.st_size < self._end:
            self.entries, self._positions, self.judged, self._end = [], {}, 0, 0
            self._inode = found.st_ino
            self.version += 1
        if found.st_size == self._size and self._end == self._size:
            return
        self._size, self.problem, self.leftover = found.st_size, "", 0
        for tree, end in new_trees(self.path, self._end):
            self._positions[tree.question.id] = len(self.entries)
            self.entries.append(_entry(tree, slice(self._end, end)))
            self._end = end
            self.version += 1
            if monotonic() > until:
                return
        self.leftover = max(self._size - self._end, 0)

    def _judge(self, until: float) -> None:
        while self.judged < len(self.entries) and monotonic() < until:
            entry = self.entries[self.judged]
            tree = read_tree(self.path, entry.place)
            scores = self._scores.get(entry.id, {})
            disputes = disputes_of(tree, judge_tree(tree), prm_scores(scores))
            self.entries[self.judged] = replace(
                entry, disputed=len(disputes.values), prm_against_gold=len(disputes.prm) if scores else None
            )
            self.judged += 1
            self.version += 1

    def counts(self) -> dict[TreeFilter, int]:
        """How many trees each filter lets through, of those that are known."""
        return {name: sum(map(rule, self.entries)) for name, rule in _RULES.items()}

    def find(self, by: TreeFilter, words: str = "") -> list[TreeEntry]:
        """The entries that a filter lets through, with these words in their question or its id."""
        wanted = words.casefold().split()
        rule = _RULES[by]
        return [
            each
            for each in self.entries
            if rule(each) and all(word in f"{each.id} {each.question}".casefold() for word in wanted)
        ]

    def tree(self, question_id: str) -> tuple[Tree, NodeScores]:
        """A tree and its PRM logits, read from the file. Raises `KeyError` for an unknown question."""
        entry = self.entries[self._positions[question_id]]
        tree = read_tree(self.path, entry.place)
        if tree.question.id != question_id:  # the file has been sorted since
            raise KeyError(question_id)
        return tree, self._scores.get(question_id, {})


def _entry(tree: Tree, place: slice) -> TreeEntry:
    answered, right = answers_of(tree)
    question = tree.question
    text = readable(question.text, _QUESTION)
    return TreeEntry(question.id, text, place, question.searches_needed, len(tree.nodes), answered, right)
