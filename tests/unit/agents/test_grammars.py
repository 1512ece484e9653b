"""The grammars of agents: all they allow is well-formed, and what a trained policy writes is allowed."""

import re
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from stepladder.agents import AGENTS, Agent, make_agent
from stepladder.agents.direct import Direct
from stepladder.agents.formats.play import Format, Play
from stepladder.core.errors import ContractViolation, StepladderError
from stepladder.core.grammars.grammar import Grammar, Space, Text
from stepladder.core.trace import Action, ActionKind, Segment, Step, Trajectory
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.oracle.agent_check import check_agent
from stepladder.oracle.engine import OracleEngine
from tests.support.grpo_training import Loose
from tests.support.samples import PASSAGES, QUESTION, WordRetriever

NAMES = [name for name in AGENTS if not name.endswith("-brief")]
BYTES = LLTokenizer("byte")


def states(agent: Agent) -> list[Trajectory]:
    """States of an episode, the last after more searches than any agent may make."""
    (outcome,) = Driver(OracleEngine(agent), WordRetriever()).run(
        [lambda: episode(agent, QUESTION, EpisodeConfig(k=1), 0)]
    )
    assert outcome.value is not None
    whole = outcome.value
    found = [Trajectory(QUESTION, agent.name, whole.steps[:count]) for count in range(len(whole.steps))]
    return [*found, Trajectory(QUESTION, agent.name, whole.steps[:-1] * 9)] if len(found) > 1 else found


STATES = {name: states(make_agent(name)) for name in NAMES}


def accepts(lark: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_all_that_a_grammar_allows_is_a_well_formed_action_that_is_due(name: str, data: st.DataObject) -> None:
    agent = make_agent(name)
    state = data.draw(st.sampled_from(STATES[name]))
    grammar = agent.grammar(state)
    assert grammar is not None
    text = data.draw(st.from_regex(grammar.regex(), fullmatch=True))
    action = agent.parse(text, state)
    assert action.kind in agent.expected(state), (text, action)
    assert not any(stop in text[: -len(stop)] for stop in agent.stops), "a stop string would cut the action short"


@pytest.mark.parametrize("name", NAMES)
def test_what_the_oracle_writes_is_allowed(name: str) -> None:
    agent = make_agent(name)
    (outcome,) = Driver(OracleEngine(agent), WordRetriever()).run(
        [lambda: episode(agent, QUESTION, EpisodeConfig(k=1), 0)]
    )
    assert outcome.value is not None
    for number, step in enumerate(outcome.value.steps):
        grammar = agent.grammar(Trajectory(QUESTION, agent.name, outcome.value.steps[:number]))
        assert grammar is not None
        assert re.fullmatch(grammar.regex(200), step.written.text)


@pytest.mark.parametrize("name", NAMES)
def test_a_forced_step_can_only_be_the_answer(name: str) -> None:
    agent = make_agent(name)
    for state in STATES[name]:
        grammar = agent.grammar(state, forced=True)
        assert grammar is not None
        start = Trajectory(QUESTION, agent.name)
        assert re.fullmatch(grammar.regex(), agent.write(Action(ActionKind.ANSWER, "Rome", "So it is."), start))
        for kind in agent.kinds - {ActionKind.ANSWER}:
            assert not re.fullmatch(grammar.regex(), agent.write(Action(kind, "Rome", "So it is."), start))


def test_a_sub_answer_is_due_after_a_query_and_nowhere_else() -> None:
    agent = make_agent("prorag")
    start = Trajectory(QUESTION, agent.name)
    asked = start.extend(Step((), Segment("policy", "?"), Action(ActionKind.QUERY, "?"), PASSAGES[:1]))  # type: ignore[arg-type]
    tags = [
        {part for option in agent.grammar(state).options for part in option if isinstance(part, str)}  # type: ignore[union-attr]
        for state in (start, asked)
    ]
    assert tags == [
        {"<step>", "</step>", "<subquery>", "</subquery>", "<answer>", "</answer>"},
        {"<step>", "</step>", "<subanswer>", "</subanswer>"},
    ]


HOSTILE = [
    "<step>x</step><answer>Rome</answer>",
    " <step></step>\n<answer> Rome</answer>",
    "<step>a\nb\tc — é 日本 🙂 [1] {x}</step><subquery>Who?</subquery>",
    "<step>x</step><answer> </answer>",
    "<step>x</step><answer>\u3000</answer>",
    "<step>x</step><answer>Rome</subquery>",
    "<step>x</step>\n\n<answer>Rome</answer>",
    "<step>a<b</step><answer>Rome</answer>",
    "<step>a\x00b</step><answer>Rome</answer>",
    "<step>x</step><subanswer>Rome</subanswer>",
    "<step>x</step><answer>Rome</answer>\n",
    "<step>" + "x" * 5000 + "</step><answer>Rome</answer>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_all_notations_describe_the_same_texts(text: str) -> None:
    grammar = make_agent("prorag").grammar(Trajectory(QUESTION, "prorag"))
    assert grammar is not None
    expected = bool(re.fullmatch(grammar.regex(), text))
    assert accepts(f"start: /{grammar.regex().replace('/', chr(92) + '/')}/", text) == expected
    assert accepts(gbnf_to_lark(grammar.gbnf()), text) == expected
    limited = bool(re.fullmatch(grammar.regex(200), text))
    assert accepts(gbnf_to_lark(grammar.gbnf(200)), text) == limited == (expected and len(text) < 5000)


def test_texts_share_what_the_literals_leave_of_the_limit() -> None:
    grammar = Grammar((("<a>", Text(weight=3), "</a>", Space(), "<b>", Text(), "</b>"), ("<c>", Text(), "</c>")))
    assert [grammar.max_tokens_of(text, 121) for text in (Text(weight=3), Text())] == [75, 25]
    assert "{0,225}" in grammar.regex(121)
    assert "{0,75}" in grammar.gbnf(121)
    assert "{0,2000}" in grammar.gbnf(10_000), "llama.cpp refuses more"
    assert grammar.max_tokens_of(Text(), 5) == 8, "a small limit leaves room for some tokens"


@pytest.mark.parametrize("name", NAMES)
def test_negated_classes_have_ascii_characters_only(name: str) -> None:
    """xgrammar, which vLLM uses, takes the bytes of other characters for characters, and fails."""
    for state in STATES[name]:
        grammar = make_agent(name).grammar(state)
        assert grammar is not None
        for negated in re.findall(r"\[\^((?:\\.|[^\]\\])*)\]", grammar.regex()):
            assert negated.isascii(), negated
            assert r"\u" not in negated, negated
            assert all(int(code, 16) < 128 for code in re.findall(r"\\x(..)", negated)), negated


@pytest.mark.parametrize(
    ("name", "text"), [("reasonrag", "<evidence>x</evidence>"), ("search-o1", "<result>x</result>")]
)
def test_a_model_that_is_led_has_no_free_thought_before_the_only_action(name: str, text: str) -> None:
    start, analysis, *_ = STATES[name]
    led = make_agent(name, play=Play(Format.CONSTRAINED, prime=True))
    free = make_agent(name, play=Play(Format.CONSTRAINED))
    for agent, allowed in ((led, False), (free, True)):
        grammar = agent.grammar(analysis)
        assert grammar is not None
        assert re.fullmatch(grammar.regex(), text)
        assert bool(re.fullmatch(grammar.regex(), f"Hm.\n{text}")) is allowed
    choice = led.grammar(start)  # where there is something to decide, it may think
    assert choice is not None
    query = led.write(Action(ActionKind.QUERY, "Orm Tower", "Hm."), start)
    assert re.fullmatch(choice.regex(), query)
    assert led.context(analysis) == free.context(analysis)  # the grammar writes the tag, not the environment


def test_an_agent_whose_grammar_forbids_what_it_writes_breaks_its_contract() -> None:
    class Shouting(Direct):
        name: ClassVar[str] = "shouting"

        def grammar(self, trajectory: Trajectory, *, forced: bool = False) -> Grammar:
            return Grammar((("<ANSWER>", Text(), "</ANSWER>"),))

    with pytest.raises(ContractViolation, match="the grammar does not allow what write returns: '<answer>Velm"):
        check_agent(Shouting())


def test_other_formats_have_no_constraint_and_an_agent_without_a_grammar_cannot_be_constrained() -> None:
    agent, start = make_agent("react"), Trajectory(QUESTION, "react")
    assert agent.constraint(start) is None
    assert agent.playing(Play.of(Format.LENIENT)).constraint(start) is None
    assert agent.playing(Play.of(Format.CONSTRAINED)).constraint(start) == agent.grammar(start)
    with pytest.raises(StepladderError, match="agent 'loose' has no grammar, which format: constrained needs"):
        Loose().playing(Play.of(Format.CONSTRAINED))
