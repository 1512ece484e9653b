"""The core data types: questions, steps, trajectories, search trees and preference pairs.

All other modules produce or consume these frozen records (io/records.py reads and writes them as JSON):

    Question, Hop          a question with its accepted answers and, where known, its gold decomposition
    AnswerKind             what its answer is: a text, a choice, yes or no, a number, a list
    GoldText               what identifies a gold passage in any index (questions/question.py has these four)
    Passage                a passage of the corpus
    Segment, Author        tokens and their author: prompt, policy or environment
    Action, ActionKind     the policy's decision in one step, parsed from its text
    Step                   one turn: context read, text generated, parsed action, passages retrieved
    Trajectory, StopReason the steps of one episode and why it ended
    Node, Rollout, Tree    trajectories of one question that share prefixes
    Pair, Side             two steps from the same state, one preferred

The step is the unit: rewards, advantages, preference pairs and scores attach to steps. The token ids in a segment
are those that the engine consumed or produced. They are never decoded and re-encoded. The texts of questions, passages,
segments and actions can always be written: lone surrogates in them become U+FFFD.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from stepladder.core.display import Showable, shortened
from stepladder.core.questions.question import (
    AnswerKind as AnswerKind,
    GoldText as GoldText,
    Hop as Hop,
    Question as Question,
)
from stepladder.core.unicode import repair


class TraceError(ValueError):
    """A record that this version of Stepladder cannot have written."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of the corpus. `score` is its retrieval score when it comes from a search."""

    id: str
    title: str
    text: str
    score: float | None = None

    def __post_init__(self) -> None:
        repair(self, "id", "title", "text")


class Author(StrEnum):
    """The author of a segment. Only the policy's tokens are parsed for actions and trained on."""

    PROMPT = "prompt"
    POLICY = "policy"
    ENVIRONMENT = "environment"


#: `Segment.vocabulary` of text that a model behind a server wrote: it has token ids, but nobody knows them.
UNKNOWN_TOKENS = "unknown"


@dataclass(frozen=True, slots=True)
class Segment:
    """Text by one author, with the token ids that the engine used for it.

    `tokens` is empty until an engine has read the segment, and stays empty for engines that do not report tokens
    (remote APIs). `logprobs` belong to policy tokens: log p(token | context) under the model, before temperature and
    top-p; with a `grammar`, renormalized over the tokens that it allowed at that position. A policy's text is the exact
    decoding of its tokens without a final end-of-sequence token. A prompt's text is the agent's; its tokens include
    what the chat template adds around it.
    """

    author: Author
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    #: Fingerprint of the vocabulary of the ids. An engine with another vocabulary rejects them. See `UNKNOWN_TOKENS`.
    vocabulary: str = ""
    #: The `Constraint` that the policy's tokens were sampled under, as JSON. Not stored where it is empty.
    grammar: Annotated[str, Field(exclude_if=lambda grammar: not grammar)] = ""

    def __post_init__(self) -> None:
        repair(self, "text")
        if self.logprobs and len(self.logprobs) != len(self.tokens):
            raise TraceError(f"a segment has {len(self.tokens)} tokens but {len(self.logprobs)} log-probs")


class ActionKind(StrEnum):
    """The type of a step's action."""

    QUERY = "query"
    EVIDENCE = "evidence"
    SUB_ANSWER = "sub_answer"
    ANSWER = "answer"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Action:
    """The policy's decision in a step: its kind, its content, and the thought before it."""

    kind: ActionKind
    content: str
    thought: str = ""
    #: What is wrong with the text in the strict format: of a malformed action, or of one that was read leniently.
    problem: str = ""

    def __post_init__(self) -> None:
        repair(self, "content", "thought", "problem")

    @property
    def is_strict(self) -> bool:
        """Whether the text is in the strict format, however it was read."""
        return self.kind is not ActionKind.MALFORMED and not self.problem


@dataclass(frozen=True, slots=True)
class Usage:
    """Token usage of one generation: prompt tokens (`read`) and completion tokens (`written`). 0 if not reported."""

    read: int = 0
    written: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.read + other.read, self.written + other.written)


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """One turn of the policy: new context, generated text, parsed action, retrieved passages."""

    #: Segments that the engine read before generating, beyond those of earlier steps.
    read: tuple[Segment, ...]
    written: Segment
    action: Action
    #: Passages returned for a query. The next step reads them as rendered by the agent.
    passages: tuple[Passage, ...] = ()
    #: True if the context restarts here with `read` instead of continuing from earlier steps.
    restarts: bool = False
    usage: Usage = Usage()

    def __repr__(self) -> str:
        content = shortened(self.action.content, 80)
        return f"Step({self.action.kind.value}: {content}, passages={len(self.passages)})"


class StopReason(StrEnum):
    """Every way an episode can end."""

    ANSWERED = "answered"
    FORCED = "forced"  # answered, when asked for the answer at a limit or after the last slip
    MALFORMED = "malformed"  # the policy broke its agent's format
    STEP_LIMIT = "step_limit"  # all steps used without an answer
    TOKEN_LIMIT = "token_limit"  # a step exceeded its token limit
    CONTEXT_LIMIT = "context_limit"  # the transcript exceeded the model's context window
    FAILED = "failed"  # an error outside of the policy; its reason is recorded with the outcome
    CANCELLED = "cancelled"  # the run was stopped before the episode ended

    @property
    def is_truncation(self) -> bool:
        """Whether a limit or an external event ended the episode, not the policy."""
        return self not in (StopReason.ANSWERED, StopReason.FORCED, StopReason.MALFORMED)

    @property
    def has_answer(self) -> bool:
        """Whether the episode ended with an answer."""
        return self in (StopReason.ANSWERED, StopReason.FORCED)


@dataclass(frozen=True, slots=True, repr=False)
class Trajectory(Showable):
    """The steps of one episode. While unfinished (`stop is None`), it is the state that an agent renders."""

    question: Question
    agent: str
    steps: tuple[Step, ...] = ()
    stop: StopReason | None = None
    #: Passages retrieved before the first step (plain RAG).
    given: tuple[Passage, ...] = ()
    seed: int = 0

    @property
    def answer(self) -> str | None:
        """The final answer, or None when the episode ended without one."""
        if self.steps and self.steps[-1].action.kind is ActionKind.ANSWER:
            return self.steps[-1].action.content
        return None

    @property
    def queries(self) -> tuple[str, ...]:
        """All queries of the policy, in order."""
        return tuple(step.action.content for step in self.steps if step.action.kind is ActionKind.QUERY)

    @property
    def slips(self) -> int:
        """The number of malformed steps."""
        return sum(step.action.kind is ActionKind.MALFORMED for step in self.steps)

    @property
    def is_strict(self) -> bool:
        """Whether every step is in the strict format, and the answer was not forced."""
        return self.stop is not StopReason.FORCED and all(step.action.is_strict for step in self.steps)

    @property
    def found(self) -> tuple[Passage, ...]:
        """All retrieved passages, in order, repeats included."""
        return self.given + tuple(passage for step in self.steps for passage in step.passages)

    def context(self, upto: int | None = None) -> tuple[Segment, ...]:
        """The engine's context after the first `upto` steps (default: all).

        Step k was generated from `context(k)` followed by its own `read` segments, or from these alone if it restarts.
        """
        segments: list[Segment] = []
        for step in self.steps[:upto]:
            if step.restarts:
                segments.clear()
            segments.extend(step.read)
            segments.append(step.written)
        return tuple(segments)

    def consumed(self, index: int) -> tuple[Segment, ...]:
        """Exactly the segments that the engine read to generate step `index`."""
        step = self.steps[index]
        return step.read if step.restarts else self.context(index) + step.read

    def extend(self, step: Step, stop: StopReason | None = None) -> "Trajectory":
        """This trajectory with one more step."""
        return Trajectory(self.question, self.agent, (*self.steps, step), stop, self.given, self.seed)

    def __repr__(self) -> str:
        ended = self.stop.value if self.stop is not None else "unfinished"
        return f"Trajectory({shortened(self.question.text)}, {len(self.steps)} steps, {ended}, answer={self.answer!r})"


@dataclass(frozen=True, slots=True)
class Rollout:
    """The outcome of a rollout from a node: one sample of the node's value."""

    #: Final reward (F1), undiscounted.
    reward: float
    #: Steps from the node to the end of the episode.
    steps: int
    stop: StopReason
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A state in a search tree: the step from its parent to here, and its search statistics."""

    #: Position in `Tree.nodes`; a parent always comes before its children.
    id: int
    #: None for the root.
    parent: int | None
    #: None for the root, which is the question alone.
    step: Step | None
    visits: int = 0
    #: Mean value Q of the simulations through this node.
    value: float = 0.0
    prior: float | None = None
    #: Set for terminal nodes.
    stop: StopReason | None = None
    #: Final reward (F1) of a terminal node, undiscounted; else None. explore/values.py propagates it to other nodes.
    reward: float | None = None
    #: Rollouts from here that estimate the node's value and are not kept as nodes.
    rollouts: tuple[Rollout, ...] = ()
    #: Other scores by name, such as those of a PRM or a judge.
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class Tree(Showable):
    """All states visited for one question. `trajectory(node)` is the branch that leads to a node."""

    question: Question
    agent: str
    nodes: tuple[Node, ...]
    given: tuple[Passage, ...] = ()
    seed: int = 0
    #: Simulations that failed outside of the policy (such as a server error). They add nothing to the tree.
    failures: int = 0

    def __post_init__(self) -> None:
        for position, node in enumerate(self.nodes):
            root = position == 0
            if node.id != position or root != (node.parent is None) or root != (node.step is None):
                raise TraceError(f"tree of {self.question.id!r}: node at position {position} is out of place")
            if node.parent is not None and not 0 <= node.parent < position:
                raise TraceError(f"tree of {self.question.id!r}: node {node.id} comes before its parent {node.parent}")

    def children(self, node: Node) -> tuple[Node, ...]:
        """The children of a node, in order of creation."""
        return tuple(other for other in self.nodes[node.id + 1 :] if other.parent == node.id)

    def children_by_node(self) -> tuple[tuple[Node, ...], ...]:
        """The children of every node, indexed by node id."""
        found: list[list[Node]] = [[] for _ in self.nodes]
        for node in self.nodes[1:]:
            assert node.parent is not None
            found[node.parent].append(node)
        return tuple(map(tuple, found))

    def branch(self, node: Node) -> tuple[Node, ...]:
        """The nodes from the root to this one, inclusive."""
        path = [node]
        while path[-1].parent is not None:
            path.append(self.nodes[path[-1].parent])
        return tuple(reversed(path))

    def trajectory(self, node: Node) -> Trajectory:
        """The branch to a node as a trajectory, with the same tokens as a single episode."""
        steps = tuple(each.step for each in self.branch(node) if each.step is not None)
        return Trajectory(self.question, self.agent, steps, node.stop, self.given, self.seed)

    def __repr__(self) -> str:
        return f"Tree({shortened(self.question.text)}, {len(self.nodes)} nodes, {self.nodes[0].visits} simulations)"


@dataclass(frozen=True, slots=True)
class Side:
    """One step of a preference pair."""

    written: Segment
    action: Action
    #: The step's value according to the pair's judge; None where only the order is known.
    value: float | None = None
    visits: int = 0
    #: Other scores by name: other values, a judge's score.
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class Pair(Showable):
    """A preference pair: two steps from the same state. Training data of DPO and reward models."""

    question_id: str
    agent: str
    #: The exact context of both steps, with token ids.
    context: tuple[Segment, ...]
    chosen: Side
    rejected: Side
    #: Number of earlier steps.
    depth: int
    #: Source of the preference: the name of a value or a judge.
    judge: str
    #: The judge's explanation, if any.
    reason: str = ""

    @property
    def margin(self) -> float | None:
        """Value of the chosen step minus that of the rejected one; None if either is unknown."""
        if self.chosen.value is None or self.rejected.value is None:
            return None
        return self.chosen.value - self.rejected.value

    def __repr__(self) -> str:
        sides = (shortened(side.action.content, 40) for side in (self.chosen, self.rejected))
        return f"Pair({' > '.join(sides)}, judge={self.judge!r}, depth={self.depth})"
