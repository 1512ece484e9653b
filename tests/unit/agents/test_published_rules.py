"""The lenient format against the published rules of Search-R1, ReasonRAG, ProRAG and RAG-Gym.

Each family's rule is written here as a small function, from what its code does. For every output below the lenient
parser takes the action that the rule takes, and never one out of a passage. Where it deliberately differs, the row
names the reason (`DIFFERENCES`), and the test expects the difference. RAG-Gym is in test_rag_gym_rules.py.

    family     file of its code that holds the rule
    Search-R1  search_r1/llm_agent/generation.py
    ReasonRAG  pipeline/reasonrag_pipeline.py: one rule for inference, one for trees
    ProRAG     inference.py; prorag/rl/rollout.py has the same
    RAG-Gym    rag_gym/agents/react.py, search_o1.py, research.py; direct.py, cot.py, rag.py only answer
"""

import re

import pytest

from stepladder.core.trace import ActionKind
from tests.support.published_rules import (
    DIFFERENCES,
    Case,
    Taken,
    compare,
    in_a_passage,
    lenient,
    searched,
    start,
    stopped,
)

# --- Search-R1: cut at the first </search>, else </answer>; the first whole block counts; none: a hint, and a new turn


def search_r1_rule(text: str) -> Taken | None:
    end = next((tag for tag in ("</search>", "</answer>") if tag in text), "")
    text = text.partition(end)[0] + end if end else text
    match = re.search(r"<(search|answer)>(.*?)</\1>", text, re.DOTALL)
    return match and Taken({"search": "query", "answer": "answer"}[match[1]], match[2].strip())


SEARCH_R1 = [
    Case("<think>I need the town.</think><search>birthplace of Ada Tarn</search>"),
    Case("<think>I need the town.</think>\n\n<search> birthplace of Ada Tarn </search>"),
    Case("<search>Orm Tower</search>"),
    Case("<answer>Velm</answer>"),
    Case("<think>Known.</think> <answer> Velm </answer>"),
    Case("I should look this up. <search>Orm Tower architect</search>"),
    Case("<think>Two things.</think> First: <search>Orm\nTower</search>"),
    Case("<think>Known.</think><answer>Velm, in the north</answer> Done."),
    Case("<search>a</search><search>b</search>"),
    Case("<search>a</search><answer>b</answer>"),
    Case("<answer>b</answer><search>a</search>"),
    Case("<answer>Velm <search>Orm</search>"),
    Case("<think>Maybe <search>Orm</search> helps.</think>"),
    Case("</think><search>Orm</search>"),
    Case("<think>not closed <search>Orm</search>"),
    Case("<think>a</think><think>b</think><answer>Velm</answer>"),
    Case("<search>Who built <b>Orm</b>?</search>"),
    Case("**<answer>Velm</answer>**"),
    Case("```\n<search>Orm</search>\n```"),
    Case("<think>5 < 6 and 7 > 3</think><answer>5 < 6</answer>"),
    Case("Question: Who?\n<answer>nobody</answer>"),
    Case("<answer>Zürich – “quoted”</answer>"),
    Case("The answer is Velm."),
    Case("Velm"),
    Case(""),
    Case("<think>I know it.</think>"),
    Case("I put the query between the search tags."),
    Case("<search>Orm\nTower\nand more", ""),
    Case("search: Orm Tower"),
    Case("<query>Orm</query>"),
    Case("<search></search>", "empty"),
    Case("<think>a</think><answer>  </answer>", "empty"),
    Case("<information>[1] Orm: x</information><answer>x</answer>", "invented"),
    Case("<think>a</think><information>\n<search>Orm</search>\n</information>", "invented"),
    Case("<think>Known.</think><answer>Velm", "more"),
    Case("<Search>Orm</Search>", "more"),
    Case("<answer>Velm <search>Orm</search> or not</answer>"),
    Case("</search> <answer>Velm</answer>"),
    Case("<answer>Velm</answer> I need no </search>"),
]


@pytest.mark.parametrize("case", SEARCH_R1, ids=lambda case: case.text[:40])
def test_search_r1(case: Case) -> None:
    agent = lenient("search-r1")
    for state in (start("search-r1"), searched(agent)):
        compare(agent, state, case._replace(text=stopped(agent, case.text)), search_r1_rule(case.text))


# --- ReasonRAG, inference: the sentences that end a turn, tags removed, up to the end of the line --------------


def reasonrag_rule(text: str) -> Taken | None:
    def after(sentence: str) -> str:
        match = re.search(rf"{sentence}\s*(.*?)(?=\n|$)", text, re.IGNORECASE | re.DOTALL)
        return re.sub(r"</?(answer|query|evidence)>", "", match[1].strip()).strip() if match else ""

    if "So the next query is" in text:
        return Taken("query", after("So the next query is"))
    if "So the answer is" in text:
        return Taken("answer", after("So the answer is"))
    if "<evidence>" in text:
        return Taken(
            "evidence", re.sub(r"</?evidence>", "", text.partition("<evidence>")[2].partition("</ev")[0]).strip()
        )
    return None


REASONRAG = [
    Case("I need the town. So the next query is <query>birthplace of Ada Tarn</query>"),
    Case("I need the town.\nSo the next query is <query>birthplace of Ada Tarn</query>\n"),
    Case("So the next query is birthplace of Ada Tarn"),
    Case("So the next query is birthplace of Ada Tarn\nIt will tell."),
    Case('So the next query is "birthplace of Ada Tarn"'),
    Case("So the next query is <query>birthplace of Ada Tarn"),
    Case("So the next query is birthplace of Ada Tarn</query>"),
    Case("So the answer is <answer>Velm</answer>"),
    Case("All is known. So the answer is <answer>Velm</answer>."),
    Case("So the answer is Velm"),
    Case("So the answer is Velm.\n"),
    Case("So the answer is <answer>Velm"),
    Case("So the answer is Velm</answer>"),
    Case("So the answer is <answer>St. Louis</answer>"),
    Case("So the answer is\tVelm"),
    Case("So the answer is\nVelm"),
    Case("So the next query is\nOrm Tower\nIt will tell."),
    Case("I need it. So the next query is\n\n<query>Orm Tower</query>"),
    Case("So the answer is <answer>Velm</answer>\nBecause she was born there."),
    Case("Step 1: the tower. Step 2: the town. So the next query is <query>Orm Tower architect</query>"),
    Case("She was born in Velm.\n\nSo the answer is <answer>Velm</answer>"),
    Case("So the next query is <query>Who is “Ada”?</query>"),
    Case("So the next query is <query>5 < 6?</query>"),
    Case("So the answer is yes"),
    Case("So the answer is 1,335,907"),
    Case("So the answer is “Velm”"),
    Case("I do not know."),
    Case(""),
    Case("Let me search for the town."),
    Case("<query>Orm Tower</query>", "more"),
    Case("I need it. <query>Orm Tower</query>", "more"),
    Case("<answer>Velm</answer>", "more"),
    Case("so the answer is Velm", "more"),
    Case("So the answer is ", "empty"),
    Case("So the next query is\n", "empty"),
    Case("<evidence>Ada Tarn was born in Velm.</evidence>", "unread"),
    Case("So the answer is <answer>Velm</answer> So the next query is <query>Orm</query>", "first"),
    Case("<retrieval>x</retrieval> So the answer is <answer>x</answer>", "invented"),
]


@pytest.mark.parametrize("case", REASONRAG, ids=lambda case: case.text[:40])
def test_reasonrag(case: Case) -> None:
    compare(lenient("reasonrag"), start("reasonrag"), case, reasonrag_rule(case.text))


@pytest.mark.parametrize(
    "text",
    [
        "Based on the query, the relevant evidence is <evidence>Ada Tarn was born in Velm.</evidence>.",
        "<evidence>None</evidence>",
        "<evidence>Ada Tarn\nwas born in Velm.</evidence>",
        "So the next query is <query>Orm Tower</query>",
        "So the answer is <answer>Velm</answer>",
    ],
)
def test_reasonrag_reads_passages(text: str) -> None:
    agent = lenient("reasonrag")
    compare(agent, searched(agent), Case(text), reasonrag_rule(text))


# --- ReasonRAG, trees: what follows a sentence is put in tags; an answer in tags ends the episode, else a query counts


def reasonrag_tree_rule(text: str) -> Taken | None:
    for sentence, tag in (("So the next (?:query )?is ", "query"), ("So the answer is ", "answer")):

        def tagged(match: re.Match[str], tag: str = tag) -> str:
            content = re.sub(r'[."]+$', "", match[2].strip())
            content = content.replace('"', "") if tag == "query" else content
            content = content[1:-1] if content.startswith("“") and content.endswith("”") else content
            return match[1] + (content if re.search(f"<{tag}>.*</{tag}>", content) else f"<{tag}>{content}</{tag}>")

        text = re.sub(rf"({sentence})(.*?)(?= So the answer is|$)", tagged, text, flags=re.DOTALL)
    if re.search("<answer>.*?</answer>", text, re.DOTALL):
        answers = re.findall("<answer>(.*?)</answer>", text)
        return Taken("answer", answers[-1].strip()) if answers else None
    query = re.search(r"So the next query is\s*(.*?)(?=\n|$)", text, re.IGNORECASE)
    return query and Taken("query", re.sub("</?(answer|query|evidence)>", "", query[1]).strip())


#: Where the rule for trees and that for inference differ, the reason why we differ from the former; "" if we do not.
IN_TREES = {
    "So the answer is <answer>Velm": "tags",
    "So the answer is\tVelm": "more",
    "So the answer is\nVelm": "more",
    "<answer>Velm</answer>": "",
    "<evidence>Ada Tarn was born in Velm.</evidence>": "",
    "So the answer is <answer>Velm</answer> So the next query is <query>Orm</query>": "",
}


@pytest.mark.parametrize("case", REASONRAG, ids=lambda case: case.text[:40])
def test_reasonrag_trees(case: Case) -> None:
    case = Case(case.text, IN_TREES.get(case.text, case.difference))
    compare(lenient("reasonrag"), start("reasonrag"), case, reasonrag_tree_rule(case.text))


# --- ProRAG: an answer, else a sub-query; everything else is a step of the transcript ---------------------------


def prorag_rule(text: str) -> Taken | None:
    for end, kind in (("answer", "answer"), ("subquery", "query"), ("subanswer", "sub_answer")):
        if f"</{end}>" in text:
            match = re.search(rf"<{end}>(.*?)</{end}>", text, re.DOTALL)
            return match and Taken(kind, match[1].strip())
    return None


PRORAG = [
    Case("<step>\nI need the architect.</step>\n<subquery>\nWho designed Orm Tower?</subquery>\n"),
    Case("I need the architect.</step>\n<subquery>\nWho designed Orm Tower?</subquery>"),
    Case("<step>It is known.</step><answer>Velm</answer>"),
    Case("It is known.</step>\n<answer>\nVelm</answer>"),
    Case("<subquery>Who designed Orm Tower?</subquery>"),
    Case("<answer>Velm</answer>"),
    Case("[1] tells it.</step>\n<subanswer>\nAda Tarn</subanswer>"),
    Case("<step>[1] tells it.</step><subanswer>Ada Tarn</subanswer>"),
    Case("<subanswer>Ada Tarn</subanswer>"),
    Case("<step>Thought</step>: To answer this I need the architect.\n<subquery>Who designed Orm Tower?</subquery>:"),
    Case("<step>a</step><step>b</step><subquery>Orm</subquery>"),
    Case("<step>a<subquery>Orm</subquery>"),
    Case("<think>\n</think>\n<step>a</step><subquery>Orm</subquery>"),
    Case("Sure. <subquery>Orm</subquery>"),
    Case("<step>a</step> <subquery>Orm\nTower</subquery> "),
    Case("<step>a</step><answer>Velm</answer><|im_end|>"),
    Case("<step>a</step><answer>Velm, <b>north</b></answer>"),
    Case("<step></step><subquery>Orm</subquery>"),
    Case("<step>5 < 6</step><answer>yes</answer>"),
    Case("1. <subquery>Orm</subquery>"),
    Case("<subquery>Who is “Ada”?</subquery>"),
    Case("<step>a</step><answer>1,335,907</answer>"),
    Case("<step>a</step><answer>St. Louis</answer>"),
    Case("**<subquery>Orm</subquery>**"),
    Case("<step>I am not sure.</step>"),
    Case("I am not sure."),
    Case(""),
    Case("<step>a</step></answer>"),
    Case("<step>a</step><query>Orm</query>"),
    Case("<step>a</step><subquery>  </subquery>", "empty"),
    Case("<step>a</step><answer></answer>", "empty"),
    Case("<step>a</step><subquery>Orm</subquery><step>b</step><answer>Velm</answer>", "first"),
    Case("<retrieval>x</retrieval><answer>x</answer>", "invented"),
    Case("<step>a</step><subquery>Orm", "more"),
]


@pytest.mark.parametrize("case", PRORAG, ids=lambda case: case.text[:40])
def test_prorag(case: Case) -> None:
    compare(lenient("prorag"), start("prorag"), case, prorag_rule(case.text))


# --- All -----------------------------------------------------------------------------------------------------------

FAMILIES = {"search-r1": SEARCH_R1, "reasonrag": REASONRAG, "prorag": PRORAG}


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_is_taken_out_of_a_passage(name: str) -> None:
    """Whatever output stands in a passage that the policy wrote itself, no action comes of it."""
    assert len(FAMILIES[name]) >= 30
    assert {case.difference for case in FAMILIES[name]} <= {"", *DIFFERENCES}
    agent = lenient(name)
    for case in FAMILIES[name]:
        action = agent.read_action(in_a_passage(agent, case.text), start(name))
        assert action.kind is ActionKind.MALFORMED, case.text
