"""The vocabulary of Stepladder: what a question, a step, a trajectory and a search tree are.

Everything else produces or consumes these frozen records. Map of the file:

    Question, Hop          what is asked, its accepted answers, its gold decomposition where one is known
    Passage                a piece of the corpus
    Segment, Author        tokens with the mark of who wrote them: prompt, policy or environment
    Action, ActionKind     what the policy decided in one step, parsed from its text
    Step                   one turn: what was read, what was written, the action, what the search returned
    Trajectory, StopReason the steps of one episode and why it ended
    Node, Rollout, Tree    many trajectories of one question that share beginnings
    Pair, Side             two steps from one state, of which one is preferred
    dumps, loads           exact JSON both ways (records.py reads and writes files of them)

The unit of everything is the step: rewards, advantages, preference pairs and scores attach to steps. The
token ids in a segment are those that the engine consumed or produced. They are never decoded and re-encoded.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from pydantic import ConfigDict

_STRICT = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class TraceError(ValueError):
    """A record that is not what this version of Stepladder writes."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One link of a gold decomposition. `#1`, `#2` in the question stand for answers of earlier hops."""

    __pydantic_config__ = _STRICT

    question: str
    answer: str
    #: Passages that state the answer; empty when the hop is a conclusion that needs no search.
    passages: tuple[str, ...] = ()
    #: Other accepted spellings of the answer.
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its accepted answers and whatever gold annotation its data set has."""

    __pydantic_config__ = _STRICT

    id: str
    text: str
    #: Accepted answers: the first is canonical, the others are aliases. Empty when no answer is known.
    answers: tuple[str, ...]
    hops: tuple[Hop, ...] = ()
    #: One group a gold passage; any id of a group counts as having found it.
    gold_passages: tuple[tuple[str, ...], ...] = ()
    #: Kind of question in its data set: bridge, comparison, ...
    kind: str = ""

    @property
    def searches_needed(self) -> int:
        """How many hops of the gold decomposition need a search; 0 when no decomposition is known.

        Where a data set names no passages at all, every hop is taken to need one.
        """
        return sum(1 for hop in self.hops if hop.passages) or len(self.hops)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of the corpus; `score` says how well it matched, when it comes from a search."""

    __pydantic_config__ = _STRICT

    id: str
    title: str
    text: str
    score: float | None = None


class Author(StrEnum):
    """Who wrote a segment. Only the policy's tokens are parsed for actions and trained on."""

    PROMPT = "prompt"
    POLICY = "policy"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of text by one author, with the token ids the engine used for it.

    `tokens` is empty until an engine has read the segment, and stays empty for engines that do not tell
    (remote APIs). `logprobs` belong to policy tokens: log p(token | context) under the model itself, before
    temperature and top-p. A policy's text is the exact decoding of its tokens less a final end-of-sequence token. A
    prompt's text is the agent's; its tokens include what the model's chat template puts around it.
    """

    __pydantic_config__ = _STRICT

    author: Author
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    #: Fingerprint of the vocabulary that the ids belong to. Another engine's ids are refused, not misread.
    vocabulary: str = ""

    def __post_init__(self) -> None:
        if self.logprobs and len(self.logprobs) != len(self.tokens):
            raise TraceError(f"a segment has {len(self.tokens)} tokens but {len(self.logprobs)} log-probs")


class ActionKind(StrEnum):
    """What a step can do."""

    QUERY = "query"
    EVIDENCE = "evidence"
    SUB_ANSWER = "sub_answer"
    ANSWER = "answer"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Action:
    """A decision of the policy: its kind, its content, and the thought written before it."""

    __pydantic_config__ = _STRICT

    kind: ActionKind
    content: str
    thought: str = ""
    #: For malformed text only: what is wrong with it.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that one generation cost: read (context) and written. Zero when the engine does not count."""

    __pydantic_config__ = _STRICT

    read: int = 0
    written: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.read + other.read, self.written + other.written)


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the policy: what it newly read, what it wrote, what that means, what the search returned."""

    __pydantic_config__ = _STRICT

    #: Segments the engine read before writing, beyond those of the steps before.
    read: tuple[Segment, ...]
    written: Segment
    action: Action
    #: What the environment returned for a query. The next step reads it, as its agent renders it.
    passages: tuple[Passage, ...] = ()
    #: True when the context began anew here, with `read`, instead of going on from the steps before.
    restarts: bool = False
    usage: Usage = Usage()


class StopReason(StrEnum):
    """Every way an episode can end."""

    ANSWERED = "answered"
    MALFORMED = "malformed"  # the policy broke its agent's grammar
    STEP_LIMIT = "step_limit"  # all steps used without an answer
    TOKEN_LIMIT = "token_limit"  # a step did not come to an end within its tokens
    CONTEXT_LIMIT = "context_limit"  # the transcript outgrew the model's context
    FAILED = "failed"  # something broke around the policy; the reason is recorded beside it
    CANCELLED = "cancelled"  # the run was stopped before the episode ended

    @property
    def is_truncation(self) -> bool:
        """Whether a limit or an outside event ended the episode, rather than the policy itself."""
        return self not in (StopReason.ANSWERED, StopReason.MALFORMED)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The steps of one episode. Unfinished (`stop is None`) it is the state an agent renders and acts from."""

    __pydantic_config__ = _STRICT

    question: Question
    agent: str
    steps: tuple[Step, ...] = ()
    stop: StopReason | None = None
    #: Passages that an agent asked for before its first step (plain RAG).
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
        """Every query the policy wrote, in order."""
        return tuple(step.action.content for step in self.steps if step.action.kind is ActionKind.QUERY)

    @property
    def found(self) -> tuple[Passage, ...]:
        """Every passage the environment returned, in order, repeats included."""
        return self.given + tuple(passage for step in self.steps for passage in step.passages)

    def context(self, upto: int | None = None) -> tuple[Segment, ...]:
        """What an engine has in view after the first `upto` steps (all of them by default).

        The context that step k was generated from is `context(k)` followed by its own `read` segments,
        or these alone when the step restarts.
        """
        segments: list[Segment] = []
        for step in self.steps[:upto]:
            if step.restarts:
                segments.clear()
            segments.extend(step.read)
            segments.append(step.written)
        return tuple(segments)

    def consumed(self, index: int) -> tuple[Segment, ...]:
        """Exactly the segments the engine read to write step `index`."""
        step = self.steps[index]
        return step.read if step.restarts else self.context(index) + step.read

    def extend(self, step: Step, stop: StopReason | None = None) -> "Trajectory":
        """This trajectory with one more step."""
        return replace(self, steps=(*self.steps, step), stop=stop)


@dataclass(frozen=True, slots=True)
class Rollout:
    """How an episode that was played on from a node ended: one sample of what the node is worth."""

    __pydantic_config__ = _STRICT

    #: What the end earned (F1), before any discount.
    reward: float
    #: Steps from the node to the end.
    steps: int
    stop: StopReason
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A state in a search tree: the step that led here from its parent, and what the search learnt of it."""

    __pydantic_config__ = _STRICT

    #: Position in `Tree.nodes`; a parent always comes before its children.
    id: int
    #: None for the root.
    parent: int | None
    #: None for the root, which is the bare question.
    step: Step | None
    visits: int = 0
    #: Mean value Q of the simulations through this node.
    value: float = 0.0
    prior: float | None = None
    #: Set where an episode ended.
    stop: StopReason | None = None
    #: What an end earned (F1), before any discount; None elsewhere. explore/values.py spreads it to the other nodes.
    reward: float | None = None
    #: Episodes that were played on from here to value this node, and not kept as nodes.
    rollouts: tuple[Rollout, ...] = ()
    #: Further scores by name, such as a PRM's or a judge's.
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tree:
    """All states visited for one question. `trajectory(node)` gives the branch that leads to a node."""

    __pydantic_config__ = _STRICT

    question: Question
    agent: str
    nodes: tuple[Node, ...]
    given: tuple[Passage, ...] = ()
    seed: int = 0
    #: Simulations that broke, for reasons around the policy (a server that failed). They left nothing in the tree.
    failures: int = 0

    def __post_init__(self) -> None:
        for position, node in enumerate(self.nodes):
            root = position == 0
            if node.id != position or root != (node.parent is None) or root != (node.step is None):
                raise TraceError(f"tree of {self.question.id!r}: node at position {position} is out of place")
            if node.parent is not None and not 0 <= node.parent < position:
                raise TraceError(f"tree of {self.question.id!r}: node {node.id} stands before its parent {node.parent}")

    def children(self, node: Node) -> tuple[Node, ...]:
        """The nodes one step further, in the order they were made."""
        return tuple(other for other in self.nodes[node.id + 1 :] if other.parent == node.id)

    def children_by_node(self) -> tuple[tuple[Node, ...], ...]:
        """The children of every node, by its id."""
        found: list[list[Node]] = [[] for _ in self.nodes]
        for node in self.nodes[1:]:
            assert node.parent is not None
            found[node.parent].append(node)
        return tuple(map(tuple, found))

    def branch(self, node: Node) -> tuple[Node, ...]:
        """The nodes from the root to this one, both included."""
        path = [node]
        while path[-1].parent is not None:
            path.append(self.nodes[path[-1].parent])
        return tuple(reversed(path))

    def trajectory(self, node: Node) -> Trajectory:
        """The branch to a node as a trajectory: the same tokens that a single episode would hold."""
        steps = tuple(each.step for each in self.branch(node) if each.step is not None)
        return Trajectory(self.question, self.agent, steps, node.stop, self.given, self.seed)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two steps of a pair."""

    __pydantic_config__ = _STRICT

    written: Segment
    action: Action
    #: What the step is worth by whoever made the pair; None where only the order is known.
    value: float | None = None
    visits: int = 0
    #: Further scores by name: other values, a judge's grade.
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two steps from one state, of which one is preferred. What DPO and reward models learn from."""

    __pydantic_config__ = _STRICT

    question_id: str
    agent: str
    #: Exactly what the policy had in view when it wrote either step, token ids and all.
    context: tuple[Segment, ...]
    chosen: Side
    rejected: Side
    #: Steps before this one.
    depth: int
    #: Who preferred: the name of a value or a judge.
    judge: str
    #: Why, in the judge's words, where it gives any.
    reason: str = ""

    @property
    def margin(self) -> float | None:
        """By how much the chosen step is worth more, where both values are known."""
        if self.chosen.value is None or self.rejected.value is None:
            return None
        return self.chosen.value - self.rejected.value
