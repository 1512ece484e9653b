"""JSON actions: a query that says "None", and objects with more fields than the one that is due."""

import pytest

from stepladder.agents import Play, make_agent
from stepladder.core.trace import ActionKind, Trajectory
from tests.support.samples import QUESTION


@pytest.mark.parametrize("no_query", ['"None"', '"none"', '"null"', '" NULL "', "null", '""'])
@pytest.mark.parametrize("play_format", ["strict", "lenient"])
def test_research_does_not_search_for_none(no_query: str, play_format: str) -> None:
    agent, state = make_agent("research", play=Play.of(play_format)), Trajectory(QUESTION, "research")
    text = f'{{"reasoning": "All is known.", "answer": "Velm", "claim": "None", "query": {no_query}}}'
    action = agent.read_action(text, state)
    assert (action.kind, action.content, action.thought) == (ActionKind.ANSWER, "Velm", "All is known.")
    nothing = agent.read_action(f'{{"reasoning": "Hm.", "query": {no_query}}}', state)
    assert nothing.kind is ActionKind.MALFORMED


@pytest.mark.parametrize("name", ["research", "react", "search-o1", "prorag"])
def test_a_forced_answer_is_the_answer_field_beside_a_query(name: str) -> None:
    agent, state = make_agent(name, play=Play.of("lenient")), Trajectory(QUESTION, name)
    text = '{"reasoning": "Hm.", "answer": "Velm", "claim": "It is in Velm.", "query": "Where is Velm?"}'
    action = agent.read_action(text, state, forced=True)
    assert (action.kind, action.content, action.thought) == (ActionKind.ANSWER, "Velm", "Hm.")
