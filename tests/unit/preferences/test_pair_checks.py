"""Which pairs can be trained on: their prompts must be those that the agent still renders."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stepladder.agents import Agent, Play, make_agent
from stepladder.core.trace import Action, ActionKind, Author, Pair, Question, Segment, Side, Step, Trajectory
from stepladder.preferences.pair_checks import PairCheck
from tests.support.samples import PASSAGES, QUESTION

ENCODING: Any = SimpleNamespace(
    vocabulary="v", encode=lambda segment: replace(segment, tokens=(1,), vocabulary="v" if segment.text else "")
)


def pair(agent: Agent, state: Trajectory, *, forced: bool = False) -> Pair:
    sides = [Side(Segment(Author.POLICY, text), Action(ActionKind.EVIDENCE, text)) for text in ("Velm", "Oss")]
    return Pair(
        QUESTION.id, agent.name, agent.context(state, forced=forced), sides[0], sides[1], len(state.steps), "mc"
    )


@pytest.mark.parametrize("prime", [False, True])
@pytest.mark.parametrize("name", ["reasonrag", "search-o1", "research", "search-r1", "react"])
def test_turns_that_were_begun_for_the_model_can_be_trained_on(name: str, prime: bool) -> None:
    agent = make_agent(name, play=replace(Play.of("lenient"), prime=prime))
    start = Trajectory(QUESTION, name)
    query = Step(agent.context(start), Segment(Author.POLICY, "?"), Action(ActionKind.QUERY, "Orm"), PASSAGES)
    after = start.extend(query)
    pairs = [pair(agent, start), pair(agent, after), pair(agent, after, forced=True)]
    found = PairCheck(agent, [QUESTION], ENCODING, None).check(pairs)
    assert (len(found.pairs), found.refused) == (3, {})
    other = Question(QUESTION.id, "Another question?", ())
    assert PairCheck(agent, [other], ENCODING, None).check(pairs).refused == {"other prompt": 3}
