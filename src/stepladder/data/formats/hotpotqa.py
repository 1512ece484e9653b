"""HotpotQA's files: `hotpot_train_v1.1.json`, `hotpot_dev_distractor_v1.json`, `hotpot_dev_fullwiki_v1.json`.

In: a list of objects with a context and supporting facts (`contexts.py`). Fullwiki files may lack gold passages; the
test file has no answers. Out: `Question`s, with hops if they can be derived from the texts of the gold passages
(`decompositions/passage_chains.py`).
"""

from stepladder.core.io.jsonl import Line
from stepladder.core.trace import Question
from stepladder.data.decompositions.gold_passages import gold_groups
from stepladder.data.decompositions.passage_chains import chain_hops
from stepladder.data.formats.base import PublishedSet, QuestionFormat, read_rows
from stepladder.data.formats.contexts import context_passages, gold_passages
from stepladder.data.formats.rows import clean_answers, read_kind, read_question
from stepladder.data.gold_texts import by_id, with_gold_texts


def _question(line: Line) -> Question:
    golds, text, kind = gold_passages(line), read_question(line), read_kind(line.data)
    answers = clean_answers(line.data.get("answer"))
    hops = chain_hops(text, answers, golds, kind)
    question = Question(line.id("_id", "id"), text, answers, hops, gold_groups(golds), kind)
    return with_gold_texts(question, by_id(golds))


FORMAT = QuestionFormat(
    "HotpotQA",
    frozenset({"question", "context"}),
    read_rows(_question),
    priority=20,
    passages=context_passages,
    published=PublishedSet(
        "hotpotqa",
        "http://curtis.ml.cmu.edu/datasets/hotpot/",
        ("hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json"),
        preferred="distractor",
    ),
)
