"""Compares the lenient format with the published rule of a family of models, and names deliberate differences."""

from typing import NamedTuple

from stepladder.agents import Play, make_agent
from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import normalize
from stepladder.core.trace import Action, ActionKind, Author, Segment, Step, Trajectory
from tests.support.samples import PASSAGES, QUESTION

DIFFERENCES = {
    "empty": "an action without content cannot be carried out: the policy gets a hint",
    "invented": "text after an observation that the policy wrote itself is not read",
    "first": "the first complete action counts, not the last",
    "query": "text without any action is not a search query: the policy gets a hint",
    "nothing": "an object without a query and an answer is not the answer 'None': the policy gets a hint",
    "none": "the word None is no query",
    "code": "nothing is evaluated as Python code",
    "tags": "tags are no part of an answer",
    "list": "a list of answers is not an answer: its first item is",
    "strict": "text that the strict format accepts is read the same in every format",
    "unread": "the summary of passages that were never retrieved is invented",
    "more": "the rule finds no action where the intention is clear",
}


class Case(NamedTuple):
    """An output, and why the lenient parser differs from the family's rule, if it does."""

    text: str
    difference: str = ""


class Taken(NamedTuple):
    kind: str
    content: str


def lenient(name: str) -> Agent:
    return make_agent(name, play=Play.of("lenient"))


def start(name: str) -> Trajectory:
    return Trajectory(QUESTION, name)


def searched(agent: Agent) -> Trajectory:
    step = Step((Segment(Author.PROMPT, "?"),), Segment(Author.POLICY, "?"), Action(ActionKind.QUERY, "Orm"), PASSAGES)
    return start(agent.name).extend(step)


def stopped(agent: Agent, text: str) -> str:
    """The text as far as it is generated: up to the first stop string of the agent."""
    ends = [place + len(stop) for stop in agent.stop_strings if (place := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def in_a_passage(agent: Agent, text: str) -> str:
    """The text as part of an observation that the policy wrote itself."""
    return f"Let me see.{agent.observation_openings[0]}\n[1] Orm: {text}\n"


def compare(agent: Agent, state: Trajectory, case: Case, rule: Taken | None) -> None:
    action = agent.read_action(case.text, state)
    ours = None if action.kind is ActionKind.MALFORMED else Taken(action.kind.value, action.content)
    if case.difference:
        assert DIFFERENCES[case.difference]
        assert ours != rule, "no difference"
        if ours is None:
            assert case.difference in ("empty", "invented", "query", "unread", "nothing", "code")
        return
    assert (ours is None) == (rule is None), (ours, rule)
    if ours is not None and rule is not None:
        assert (ours.kind, _words(ours.content)) == (rule.kind, _words(rule.content))


def _words(text: str) -> str:
    """The text without quotes, capitals and punctuation, as answers are compared."""
    return normalize(text.strip("“”"))
