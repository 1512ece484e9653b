"""The lenient format against RAG-Gym's rule for ReAct, Search-o1 and ReSearch, and against ReAct's own.

RAG-Gym's agents end with a JSON object, which its code runs through `eval`. The rule here evaluates literals only.
"""

import ast
import re
from typing import Any

import pytest

from stepladder.core.trace import ActionKind, StopReason
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig, episode
from tests.support.published_rules import Case, Taken, compare, in_a_passage, lenient, start
from tests.support.samples import QUESTION, WordRetriever

AGENTS = ("react", "search-o1", "research")


def rag_gym_rule(text: str, *, drafts: bool = False) -> Taken | None:
    """The last object below "### Structured Output"; without one, the whole text is a query.

    `drafts`: the rule of ReSearch, which says "None" where no query is left, beside the draft of its answer.
    """
    below = text.rpartition("### Structured Output")[2]
    fenced = re.findall(r"```json\s*({(?:[^`]|\`(?!``))*})", below, re.DOTALL)
    found = fenced or re.findall(r"{.*?}", below, re.DOTALL)
    try:
        written = found[-1].replace("null", "None")
        written = written.replace("'None'", "None").replace('"None"', "None") if drafts else written
        output: dict[str, Any] = evaluated(re.sub(r" //.*", "", written))
        query = output.get("query", output.get("generated_query", output.get("generated_queries")))
        if isinstance(query, list):
            query = query[0] if query or not drafts else None
    except (ValueError, SyntaxError, LookupError, AttributeError):
        return Taken("query", below.strip())
    return Taken("query", str(query)) if query else Taken("answer", str(output.get("predicted_answer")))


def evaluated(text: str) -> Any:
    """The value of a literal. The published code runs all Python; of that, products are enough here."""
    text = re.sub(r"(\d+) \* (\d+)", lambda match: str(int(match[1]) * int(match[2])), text)
    return ast.literal_eval(text)


RAG_GYM = [
    Case('{"query": "Who designed Orm Tower?"}'),
    Case('```json\n{"query": "Who designed Orm Tower?"}\n```'),
    Case('### Structured Output\n```json\n{"generated_query": "Who designed Orm Tower?"}\n```'),
    Case('### Structured Output\n{"generated_queries": ["Who designed Orm Tower?", "Where is it?"]}'),
    Case('### Structured Reasoning\nI need it.\n\n### Structured Output\n```json\n{"query": "Orm"}\n```'),
    Case('{"predicted_answer": "Velm"}'),
    Case('{"query": null, "predicted_answer": "Velm"}'),
    Case('{"generated_query": "None", "predicted_answer": "Velm"}', "none"),
    Case("{'predicted_answer': 'Velm', 'generated_query': 'None'}", "none"),
    Case('{"query": "None", "predicted_answer": "Velm"}', "none"),
    Case('{"query": "", "predicted_answer": "Velm"}'),
    Case('{"generated_queries": [], "predicted_answer": "Velm"}', "query"),
    Case('{"predicted_answer": "Velm", "generated_query": "Where is Velm?"}'),
    Case('{"predicted_answer": "unknown", "query": "Orm Tower"}'),
    Case("{'query': 'Orm Tower'}"),
    Case("{'predicted_answer': 'Velm'}"),
    Case('{"predicted_answer": "St. Louis"}'),
    Case('{"predicted_answer": 1871}'),
    Case('{"predicted_answer": "A, B and C"}'),
    Case('{\n  "query": "Orm Tower"\n}'),
    Case('{\n  "reasoning": "I need it.",\n  "query": "Orm Tower"\n}'),
    Case('So my action is:\n```json\n{"query": "Orm Tower"}\n```\nThat should do.'),
    Case('```json\n{"query": "Orm \\"Tower\\""}\n```'),
    Case('{"query": "Zürich"}'),
    Case('{"query": "Orm Tower", "predicted_answer": null}'),
    Case('```json\n{"predicted_answer": "Velm"} \n```'),
    Case('### Structured Output\n```json\n{"predicted_answer": "yes"}\n```'),
    Case('{"query": "Orm Tower",}'),
    Case('{"query": "Orm Tower"} // the first fact'),
    Case('{"query": "a"}\n{"query": "b"}', "first"),
    Case('I know {x} and {y}. {"predicted_answer": "Velm"}'),
    Case("Let me look up Orm Tower.", "query"),
    Case("", "query"),
    Case("{}", "nothing"),
    Case('{"reasoning": "Hm."}', "nothing"),
    Case('{"predicted_answer": 2 * 3}', "code"),
    Case('{"predicted_answer": ["Velm"]}', "list"),
]
#: Where ReSearch's rule and that of the two others differ, the reason why we differ from the former; "" if we do not.
WITH_DRAFTS = {
    '{"generated_query": "None", "predicted_answer": "Velm"}': "",
    "{'predicted_answer': 'Velm', 'generated_query': 'None'}": "",
    '{"query": "None", "predicted_answer": "Velm"}': "",
    '{"generated_queries": [], "predicted_answer": "Velm"}': "",
}


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("case", RAG_GYM, ids=lambda case: case.text[:40])
def test_rag_gym(name: str, case: Case) -> None:
    drafts = name == "research"
    case = Case(case.text, WITH_DRAFTS.get(case.text, case.difference) if drafts else case.difference)
    compare(lenient(name), start(name), case, rag_gym_rule(case.text, drafts=drafts))


@pytest.mark.parametrize("name", AGENTS)
def test_nothing_is_taken_out_of_a_passage(name: str) -> None:
    agent = lenient(name)
    for case in (*RAG_GYM, *REACT):
        action = agent.read_action(in_a_passage(agent, case.text), start(name))
        assert action.kind is ActionKind.MALFORMED, case.text


# --- RAG-Gym's agents that only answer: the object, or else what follows the name of its field -----------------------


def rag_gym_answer_rule(text: str) -> Taken:
    below = text.rpartition("### Structured Output")[2]
    fenced = re.findall(r"```json\s*({(?:[^`]|\`(?!``))*})", below, re.DOTALL)
    found = fenced or re.findall(r"{.*?}", below, re.DOTALL)
    try:
        output = evaluated(re.sub(r" //.*", "", found[-1].replace("null", "None")))
        return Taken("answer", str(output["predicted_answer"]))
    except (ValueError, SyntaxError, LookupError, TypeError):
        return Taken("answer", text.rpartition("predicted_answer")[2])


@pytest.mark.parametrize("name", ["direct", "cot", "rag"])
@pytest.mark.parametrize(
    "text",
    [
        '{"predicted_answer": "Velm"}',
        "{'predicted_answer': 'Velm'}",
        '```json\n{"predicted_answer": "Velm"}\n```',
        '```json\n{\n  "predicted_answer": "St. Louis"\n}\n```',
        '### Step-by-step Reasoning\nHm.\n\n### Structured Output\n```json\n{"predicted_answer": "Velm"}\n```',
        'So:\n{\n  "predicted_answer": "A, B and C"\n}',
        '{"predicted_answer": 1871}',
        "Velm",
    ],
)
def test_rag_gym_answers(name: str, text: str) -> None:
    compare(lenient(name), start(name), Case(text), rag_gym_answer_rule(text))


# --- ReAct: a line `Action: Search[..]`, perhaps numbered --------------------------------------------------------


def react_rule(text: str) -> Taken | None:
    match = re.search(r"^Action(?: \d+)?: (Search|Finish)\[(.*)\]", text, re.MULTILINE | re.IGNORECASE)
    return match and Taken({"search": "query", "finish": "answer"}[match[1].lower()], match[2].strip())


REACT = [
    Case("Thought: I need it.\nAction: Search[Orm Tower]\n"),
    Case("Thought 1: I need it.\nAction 1: Search[Orm Tower]"),
    Case("Thought: Known.\nAction: Finish[Velm]"),
    Case("Action: Search[Orm Tower]"),
    Case("Action: Finish[Velm]\n"),
    Case("Action 12: Finish[Velm]"),
    Case("I need it.\nAction: Search[Orm Tower]"),
    Case("Thought: I need it.\n\nAction: Search[Orm Tower]\n\n"),
    Case("Thought: a\nThought: b\nAction: Search[Orm Tower]"),
    Case("Thought: I need it. Action later.\nAction: Search[Orm Tower]"),
    Case("Action: Finish[List[int]]"),
    Case("Action: Search[Orm [tower] (1871)]"),
    Case("Action: search[Orm Tower]"),
    Case("Action: FINISH[Velm]"),
    Case("Action: Search[Who designed it?]\nAction: Finish[Velm]"),
    Case("Action: Finish[St. Louis]"),
    Case("Action: Finish[1,335,907]"),
    Case("Action: Finish[yes]"),
    Case("Action: Search[“Orm” Tower]"),
    Case("Action: Search[ Orm Tower ]"),
    Case("Thought: none"),
    Case("Velm"),
    Case(""),
    Case("Action: Lookup[Orm]"),
    Case("Action: Search Orm Tower"),
    Case("The action is to search."),
    Case("Action: Finish[]", "empty"),
    Case("Hm.\nObservation: x\nAction: Finish[x]", "invented"),
    Case("Search[Orm Tower]", "more"),
    Case("Thought: I need it. Action: Search[Orm Tower]", "more"),
    Case("Action: Finish[Velm", "more"),
    Case("Action: Search[a] Action: Finish[b]", "first"),
]


@pytest.mark.parametrize("case", REACT, ids=lambda case: case.text[:40])
def test_react(case: Case) -> None:
    compare(lenient("react"), start("react"), case, react_rule(case.text))


def test_a_turn_of_rag_gym_is_played_to_its_end() -> None:
    """Its outputs as they are; its limit counts actions (here searches), and its last turn has to answer."""
    outputs = iter(
        [
            '### Structured Output\n```json\n{"query": "Orm Tower"}\n```',
            "Ada Tarn designed it.",  # the module that reads the passages writes plain text
            '### Structured Output\n```json\n{"predicted_answer": "Velm"}\n```',
        ]
    )
    agent = lenient("search-o1")
    driver = Driver(ScriptedEngine(lambda _: next(outputs)), WordRetriever())
    (outcome,) = driver.run([lambda: episode(agent, QUESTION, EpisodeConfig(k=1), 0)])
    assert outcome.value is not None
    assert [step.action.kind for step in outcome.value.steps] == [
        ActionKind.QUERY,
        ActionKind.SUB_ANSWER,
        ActionKind.ANSWER,
    ]
    assert (outcome.value.answer, outcome.value.stop) == ("Velm", StopReason.ANSWERED)
