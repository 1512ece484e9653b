"""The gold engine: plays a question's gold decomposition through an agent's own format. It proves the plumbing.

In: requests with their trajectory. Out: the text a perfect policy would write next. It knows which sub-question
comes next, but not more than the search returned: a sub-answer is given only when a gold passage of its hop was
found, else the oracle says "unknown". Its mistakes are therefore retrieval's.
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from stepladder.engines.base import Engine, EngineError
from stepladder.request import Finish, Generate, Generation
from stepladder.trace import Action, ActionKind, Author, Hop, Passage, Question, Segment, Trajectory

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
        answerable = not looks_first or all(_holds(hop, trajectory.given) for hop in search_hops(question))
        return _answer(question, answerable)

    hops = search_hops(question)
    searched = [step.passages for step in trajectory.steps if step.action.kind is ActionKind.QUERY]
    known = [hop.answer if _holds(hop, found) else UNKNOWN for hop, found in zip(hops, searched)]
    reading = _reading_due(trajectory, kinds)
    if reading is not None:
        hop_found = searched[-1]
        titles = ", ".join(passage.title for passage in hop_found[:1]) or "nothing"
        if reading is ActionKind.EVIDENCE:
            return Action(reading, _evidence(hops[len(searched) - 1], hop_found), "What do the passages say?")
        return Action(reading, known[-1], f"I read about {titles}.")
    if UNKNOWN in known:
        return _answer(question, False)
    if len(known) < len(hops):
        query = fill_references(hops[len(known)].question, _answers_by_number(question, known))
        return Action(ActionKind.QUERY, query, "I still have to find something out.")
    return _answer(question, True)


def search_hops(question: Question) -> tuple[Hop, ...]:
    """The hops that need a search. A question without a decomposition is one hop of its own."""
    needing = tuple(hop for hop in question.hops if hop.passages)
    if needing or question.hops:
        return needing or question.hops
    passages = tuple(id for group in question.gold_passages for id in group)
    return (Hop(question.text, question.answers[0], passages, question.answers[1:]),)


def fill_references(text: str, answers: Mapping[int, str]) -> str:
    """The sub-question with `#1`, `#2` ... replaced by the answers of those hops, as far as they are known.

    >>> fill_references("Where was #1 born?", {1: "Ada Orm"})
    'Where was Ada Orm born?'
    """
    return re.sub(r"#(\d+)", lambda match: answers.get(int(match[1]), match[0]), text)


def _answers_by_number(question: Question, known: Sequence[str]) -> dict[int, str]:
    """Answers by number in the whole decomposition, from those of the hops that were searched for."""
    numbered = list(enumerate(question.hops, start=1))
    searched = [number for number, hop in numbered if hop.passages] or [number for number, _ in numbered]
    return dict(zip(searched, known))


def _reading_due(trajectory: Trajectory, kinds: frozenset[ActionKind]) -> ActionKind | None:
    """The kind of step that has to follow a query before anything else, for agents that have one."""
    last = trajectory.steps[-1].action.kind if trajectory.steps else None
    if last is ActionKind.QUERY and ActionKind.EVIDENCE in kinds:
        return ActionKind.EVIDENCE
    if last in (ActionKind.QUERY, ActionKind.EVIDENCE) and ActionKind.SUB_ANSWER in kinds:
        return ActionKind.SUB_ANSWER
    return None


def _holds(hop: Hop, found: Sequence[Passage]) -> bool:
    """Whether the passages state the hop's answer: by gold id, or by its words where no ids are known."""
    if hop.passages:
        return any(passage.id in hop.passages for passage in found)
    names = [name.casefold() for name in (hop.answer, *hop.aliases)]
    return any(name in f"{passage.title} {passage.text}".casefold() for passage in found for name in names)


def _evidence(hop: Hop, found: Sequence[Passage]) -> str:
    """The first gold passage that was found, or the admission that there is none."""
    return next((passage.text for passage in found if _holds(hop, (passage,))), "No passage answers this.")


def _answer(question: Question, answerable: bool) -> Action:
    if answerable:
        return Action(ActionKind.ANSWER, question.answers[0], "Everything is known.")
    return Action(ActionKind.ANSWER, UNKNOWN, "What I needed was not found.")
