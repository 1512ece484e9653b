"""The gold engine: plays a question's gold decomposition through an agent's own format. It proves the plumbing.

In: requests with their trajectory. Out: the text a perfect policy would write next. It knows which sub-question
comes next, but not more than the search returned: a sub-answer is given only when a gold passage of its hop was
found, else the oracle says "unknown". Its mistakes are therefore retrieval's. Without a decomposition it searches with
the question itself, and needs every gold passage. Agents that cannot search are played from memory: there the oracle
simply knows the answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from stepladder.engines.base import Engine, EngineError
from stepladder.request import Finish, Generate, Generation
from stepladder.trace import Action, ActionKind, Author, Hop, Passage, Question, Segment, Step, Trajectory

UNKNOWN = "unknown"


class Writer(Protocol):
    """What the oracle needs of an agent."""

    kinds: ClassVar[frozenset[ActionKind]]

    def write(self, action: Action, trajectory: Trajectory) -> str: ...

    def opening_query(self, question: Question) -> str | None: ...


class GoldEngine(Engine):
    """Writes what the gold decomposition wants next, in the format of one agent."""

    name = "gold"
    max_batch = 4096

    def __init__(self, agent: Writer) -> None:
        self.agent = agent

    def generate(self, requests: Sequence[Generate]) -> list[Generation | EngineError]:
        """One gold step a request."""
        return [self._next_step(request) for request in requests]

    def _next_step(self, request: Generate) -> Generation | EngineError:
        if request.trajectory is None:
            return EngineError("the gold engine plays trajectories; this request has none")
        looks_first = self.agent.opening_query(request.trajectory.question) is not None
        action = gold_action(request.trajectory, self.agent.kinds, looks_first=looks_first)
        text = self.agent.write(action, request.trajectory)
        return Generation(request.context, Segment(Author.POLICY, text), text, Finish.STOP)


def gold_action(trajectory: Trajectory, kinds: frozenset[ActionKind], *, looks_first: bool = False) -> Action:
    """What a perfect policy does next, with the kinds of action it has. `looks_first`: it was given passages."""
    question = trajectory.question
    if ActionKind.QUERY not in kinds:
        return _answer(question, not looks_first or _answerable(question, trajectory.given))

    plan = _plan(trajectory)
    reading = _reading_due(trajectory, kinds)
    if reading is not None:
        last = next(step for step in reversed(trajectory.steps) if step.action.kind is ActionKind.QUERY)
        asked = next((each for each in plan if _alike(each.query, last.action.content)), None)
        if reading is ActionKind.EVIDENCE:
            evidence = next((each.text for each in last.passages if asked and asked.holds((each,))), "Nothing helps.")
            return Action(reading, evidence, "What do the passages say?")
        titles = last.passages[0].title if last.passages else "nothing"
        return Action(reading, asked.answer if asked and asked.found else UNKNOWN, f"I read about {titles}.")
    if any(each.found is False for each in plan):
        return _answer(question, False)
    if plan and plan[-1].found is None:
        return Action(ActionKind.QUERY, plan[-1].query, "I still have to find something out.")
    return _answer(question, True)


@dataclass(frozen=True, slots=True)
class _Search:
    """A sub-question of the gold decomposition with its references filled in."""

    query: str
    holds: Callable[[Sequence[Passage]], bool]
    answer: str
    #: Whether the search found the answer; None when it was not made yet.
    found: bool | None


def _plan(trajectory: Trajectory) -> list[_Search]:
    """The searches of the gold decomposition as far as the trajectory went, and the next one that is due."""
    question = trajectory.question
    made = [step for step in trajectory.steps if step.action.kind is ActionKind.QUERY]
    if not question.hops:
        return [_search(question.text, question.answers, lambda found: _answerable(question, found), made)]
    annotated = any(hop.passages for hop in question.hops)
    plan: list[_Search] = []
    answers: dict[int, str] = {}
    for number, hop in enumerate(question.hops, start=1):
        if annotated and not hop.passages:  # a conclusion: nothing to search for
            answers[number] = hop.answer
            continue
        query = fill_references(hop.question, answers)
        plan.append(_search(query, (hop.answer,), lambda found, hop=hop: _holds(hop, found), made))  # type: ignore[misc]
        if not plan[-1].found:
            break
        answers[number] = hop.answer
    return plan


def _search(
    query: str, answers: Sequence[str], holds: Callable[[Sequence[Passage]], bool], made: Sequence[Step]
) -> _Search:
    results = [step.passages for step in made if _alike(step.action.content, query)]
    found = bool(answers) and any(map(holds, results)) if results else None
    return _Search(query, holds, answers[0] if answers else UNKNOWN, found)


def _alike(a: str, b: str) -> bool:
    """Whether two queries are the same but for brackets, which agents may have made harmless, and space."""
    return a.replace("<", "‹").split() == b.replace("<", "‹").split()


def fill_references(text: str, answers: Mapping[int, str]) -> str:
    """The sub-question with `#1`, `#2` ... replaced by the answers of those hops, as far as they are known.

    >>> fill_references("Where was #1 born?", {1: "Ada Orm"})
    'Where was Ada Orm born?'
    """
    return re.sub(r"#(\d+)", lambda match: answers.get(int(match[1]), match[0]), text)


def _reading_due(trajectory: Trajectory, kinds: frozenset[ActionKind]) -> ActionKind | None:
    """The kind of step that has to follow a query before anything else, for agents that have one."""
    last = trajectory.steps[-1].action.kind if trajectory.steps else None
    if last is ActionKind.QUERY and ActionKind.EVIDENCE in kinds:
        return ActionKind.EVIDENCE
    if last in (ActionKind.QUERY, ActionKind.EVIDENCE) and ActionKind.SUB_ANSWER in kinds:
        return ActionKind.SUB_ANSWER
    return None


def _answerable(question: Question, found: Sequence[Passage]) -> bool:
    """Whether passages hold all that the question needs: every gold passage or, where none is known, the answer."""
    if question.gold_passages:
        ids = {passage.id for passage in found}
        return all(not ids.isdisjoint(group) for group in question.gold_passages)
    if question.hops:
        return all(_holds(hop, found) for hop in question.hops)
    return _mentions(question.answers, found)


def _holds(hop: Hop, found: Sequence[Passage]) -> bool:
    """Whether the passages state the hop's answer: by gold id, or by its words where no ids are known."""
    if hop.passages:
        return any(passage.id in hop.passages for passage in found)
    return _mentions((hop.answer, *hop.aliases), found)


def _mentions(answers: Sequence[str], found: Sequence[Passage]) -> bool:
    """Whether a passage has one of the answers in it, as whole words."""
    return any(
        re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", f"{passage.title} {passage.text}", re.IGNORECASE)
        for passage in found
        for answer in answers
        if answer.strip()
    )


def _answer(question: Question, answerable: bool) -> Action:
    if answerable and question.answers:
        return Action(ActionKind.ANSWER, question.answers[0], "Everything is known.")
    return Action(ActionKind.ANSWER, UNKNOWN, "What I needed was not found.")
