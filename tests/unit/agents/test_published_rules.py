"""The lenient format against the published rules of Search-R1, ReasonRAG, ProRAG and RAG-Gym.

Each family's rule is written here as a small function, from what its code does. For every output below the lenient
parser takes the action that the rule takes, and never one out of a passage. Where it deliberately differs, the row
names the reason (`DIFFERENCES`), and the test expects the difference. RAG-Gym is in test_rag_gym_rules.py.
"""

import re

import pytest

from tests.support.published_rules import Case, Taken, compare, lenient, searched, start

# --- Search-R1: the first <search> or <answer> block counts; no block: a hint, and the next turn ---------------


def search_r1_rule(text: str) -> Taken | None:
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
]


@pytest.mark.parametrize("case", SEARCH_R1, ids=lambda case: case.text[:40])
def test_search_r1(case: Case) -> None:
    agent = lenient("search-r1")
    for state in (start("search-r1"), searched(agent)):
        compare(agent, state, case, search_r1_rule(case.text))


# --- ReasonRAG: the sentences that end a turn, tags removed, up to the end of the line -------------------------


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
