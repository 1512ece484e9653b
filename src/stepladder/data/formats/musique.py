"""MuSiQue's files: `musique_ans_v1.0_train.jsonl`, `musique_full_v1.0_dev.jsonl` and similar.

In: one object per line, with its paragraphs and its decomposition:

    {"id": "2hop__1_2", "question": "...", "answer": "Ena Voss", "answer_aliases": ["Voss"], "answerable": true,
     "paragraphs": [{"idx": 0, "title": "Orla", "paragraph_text": "...", "is_supporting": true}, ...],
     "question_decomposition": [{"question": "Orla >> bridge", "answer": "Span One", "paragraph_support_idx": 0},
                                {"question": "Who designed #1?", "answer": "Ena Voss", "paragraph_support_idx": 3}]}

Out: `Question`s with their hops. Hops of the form "subject >> relation" become questions. The full files contain every
question twice, the second time without the paragraphs it needs; these unanswerable copies are skipped. Test files have
no answers.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from stepladder.core.io.jsonl import Line
from stepladder.core.trace import Hop, Passage, Question
from stepladder.data.decompositions.gold_passages import GoldPassage, with_aliases
from stepladder.data.decompositions.triples import relation_question
from stepladder.data.formats.base import PublishedSet, QuestionFormat, read_rows
from stepladder.data.formats.rows import clean_answers, read_question
from stepladder.data.gold_texts import by_id, with_gold_texts

_HOP_KIND = re.compile(r"(\dhop\d?)__")


def as_question(text: str) -> str:
    """A sub-question as a natural-language question.

    >>> as_question("Bubye River >> country"), as_question("who was the mayor of #1 ?")
    ('Which country is Bubye River in?', 'Who was the mayor of #1?')
    """
    subject, arrow, relation = text.partition(">>")
    if arrow and subject.strip() and relation.strip():
        return relation_question(relation, subject)
    text = " ".join(text.split())
    text = re.sub(r"\s+(['’]s\b|[?.,])", r"\1", text)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('?', '.', '!')) else '?'}"


def hop_kind(question_id: str) -> str:
    """The kind of question according to its id: 2hop, 3hop1, ...; empty for other ids."""
    match = _HOP_KIND.match(question_id)
    return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class AnnotatedHop:
    """A hop as MuSiQue's files and FlashRAG's copies of them annotate it."""

    question: str
    answer: str
    #: The `idx` of its paragraph.
    paragraph_support_idx: Any = None


@dataclass(frozen=True, slots=True)
class _Paragraph:
    title: str
    paragraph_text: str
    idx: Any = None


def annotated_hops(data: Mapping[str, Any], line: Line) -> list[AnnotatedHop]:
    """The decomposition in a row, or in an object in it; none if it has none."""
    expected = "a list of objects with 'question' and 'answer'"
    found = data.get("question_decomposition") or []
    return line.checked("question_decomposition", found, list[AnnotatedHop], expected)


def _question(line: Line) -> Question | str:
    if line.data.get("answerable") is False:
        return "unanswerable"
    key = line.id("id")
    paragraphs = dict(_paragraphs(line))
    passages = {number: (passage.id,) for number, passage in paragraphs.items()}
    hops = tuple(
        Hop(as_question(hop.question), hop.answer.strip(), passages.get(hop.paragraph_support_idx, ()))
        for hop in annotated_hops(line.data, line)
    )
    aliases = line.checked("answer_aliases", line.data.get("answer_aliases") or [], list[str], "a list of strings")
    answers = clean_answers(line.data.get("answer"), *aliases)
    groups = tuple(dict.fromkeys(hop.passages for hop in hops if hop.passages))
    question = Question(key, read_question(line), answers, with_aliases(hops, answers), groups, hop_kind(key))
    golds = (GoldPassage(passage.title, (passage.id,), passage.text) for passage in paragraphs.values())
    return with_gold_texts(question, by_id(golds))


def _paragraphs(line: Line) -> Iterator[tuple[object, Passage]]:
    """Every paragraph with its number."""
    expected = "a list of objects with 'title' and 'paragraph_text'"
    for each in line.checked("paragraphs", line.data["paragraphs"] or [], list[_Paragraph], expected):
        title, text = each.title.strip(), each.paragraph_text.strip()
        digest = blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()  # paragraphs have no ids
        yield each.idx, Passage(f"{title}#{digest}", title, text)


FORMAT = QuestionFormat(
    "MuSiQue",
    frozenset({"question", "paragraphs"}),
    read_rows(_question),
    priority=40,
    passages=lambda line: (passage for _, passage in _paragraphs(line)),
    published=PublishedSet(
        "musique",
        "https://github.com/StonyBrookNLP/musique (download_data.sh)",
        ("musique_ans_v1.0_train.jsonl", "musique_ans_v1.0_dev.jsonl"),
        preferred="musique_ans",  # the full files also contain these questions
    ),
)
