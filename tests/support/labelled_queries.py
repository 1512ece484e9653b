"""Natural second- and third-hop queries with labels, in `tests/data/queries.jsonl`.

One line per question of HotpotQA (CC BY-SA 4.0), 2WikiMultiHopQA (Apache-2.0) or MuSiQue (CC BY 4.0): its hops,
excerpts of the gold passages that its queries find, and the queries:

    known     the hops that were answered before
    found     the gold passages among the first three results of BM25 over the set's corpus
    label     good: asks for something that the question still needs; else bad
    why       of a bad query: another entity or relation, known before, unrelated, the whole question repeated
    source    musique (the set's own wording), written by hand, or the model that wrote it

Questions of the split `develop` are from the train files, those of `held out` from the dev files.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.trace import Action, ActionKind, Author, Hop, Passage, Question, Segment, Step, Trajectory
from stepladder.oracle.decomposition import fill_references, hop_answers

QUERIES = Path(__file__).parent.parent / "data" / "queries.jsonl"


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """An episode that ends with a query, and the label of that query."""

    dataset: str
    split: str
    label: str
    why: str
    source: str
    trajectory: Trajectory


def labelled_queries(path: Path = QUERIES) -> Iterator[LabelledQuery]:
    """All queries of the file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            question = _question(row)
            passages = {key: Passage(key, title, text) for key, (title, text) in row["passages"].items()}
            for each in row["queries"]:
                steps = [step for number in each["known"] for step in _answered(question, number, passages)]
                found = tuple(passages[key] for key in each["found"])
                steps.append(_step(ActionKind.QUERY, each["query"], found))
                trajectory = Trajectory(question, "prorag", tuple(steps))
                yield LabelledQuery(row["set"], row["split"], each["label"], each["why"], each["source"], trajectory)


def _question(row: dict[str, Any]) -> Question:
    hops = tuple(
        Hop(hop["question"], hop["answer"], tuple(hop.get("passages", ())), tuple(hop.get("aliases", ())))
        for hop in row["hops"]
    )
    gold = tuple(dict.fromkeys(hop.passages for hop in hops if hop.passages))
    return Question(row["id"], row["question"], tuple(row["answers"]), hops, gold, row.get("kind", ""))


def _answered(question: Question, number: int, passages: dict[str, Passage]) -> Iterator[Step]:
    """The gold query for a hop, and its answer."""
    hop = question.hops[number - 1]
    found = tuple(passages.get(key, Passage(key, "", "")) for key in hop.passages[:1])
    yield _step(ActionKind.QUERY, fill_references(hop.question, hop_answers(question)), found)
    yield _step(ActionKind.SUB_ANSWER, hop.answer)


def _step(kind: ActionKind, content: str, found: tuple[Passage, ...] = ()) -> Step:
    return Step((), Segment(Author.POLICY, content), Action(kind, content), found)
