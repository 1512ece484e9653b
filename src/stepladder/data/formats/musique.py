"""MuSiQue's files: `musique_ans_v1.0_train.jsonl`, `musique_full_v1.0_dev.jsonl` and their like.

In: one object a line, with its paragraphs and its decomposition:

    {"id": "2hop__1_2", "question": "...", "answer": "Ena Voss", "answer_aliases": ["Voss"], "answerable": true,
     "paragraphs": [{"idx": 0, "title": "Orla", "paragraph_text": "...", "is_supporting": true}, ...],
     "question_decomposition": [{"question": "Orla >> bridge", "answer": "Span One", "paragraph_support_idx": 0},
                                {"question": "Who designed #1?", "answer": "Ena Voss", "paragraph_support_idx": 3}]}

Out: `Question`s with their hops. Hops that are written as "subject >> relation" become questions. The full files have
every question a second time without the paragraphs it needs: those are left out. Test files have no answers.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Hop, Passage, Question
from stepladder.data.dataset import Read, ReadPassages, counted
from stepladder.data.decompositions.gold_passages import with_aliases
from stepladder.data.decompositions.wikidata_relations import asked
from stepladder.data.formats.base import Layout, accepted, identifier, passage_id, question_text, strings
from stepladder.data.formats.rows import rows

_SHAPE = re.compile(r"(\dhop\d?)__")


def worded(text: str) -> str:
    """A sub-question as a person would write it.

    >>> worded("Bubye River >> country"), worded("who was the mayor of #1 ?")
    ('Which country is Bubye River in?', 'Who was the mayor of #1?')
    """
    subject, arrow, relation = text.partition(">>")
    if arrow and subject.strip() and relation.strip():
        return asked(relation, subject)
    text = " ".join(text.split())
    text = re.sub(r"\s+(['’]s\b|[?.,])", r"\1", text)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('?', '.', '!')) else '?'}"


def shape(identifier: str) -> str:
    """The kind of question that its id tells: 2hop, 3hop1, ...; empty for other ids."""
    found = _SHAPE.match(identifier)
    return found[1] if found else ""


def _read(path: Path, _corpus: ReadPassages | None) -> Read:
    return counted(_question(line) for line in rows(path))


def _question(line: Line) -> Question | str:
    if line.data.get("answerable") is False:
        return "unanswerable"
    key = identifier(line, "id")
    paragraphs = {number: passage.id for number, passage in _paragraphs(line)}
    hops = tuple(_hop(hop, paragraphs, line) for hop in line.data.get("question_decomposition") or ())
    answers = accepted(line.data.get("answer"), *(strings(line.data.get("answer_aliases")) or ()))
    groups = tuple(dict.fromkeys(hop.passages for hop in hops if hop.passages))
    return Question(key, question_text(line), answers, with_aliases(hops, answers), groups, shape(key))


def _hop(hop: object, paragraphs: dict[object, str], line: Line) -> Hop:
    texts = strings([hop.get("question"), hop.get("answer")]) if isinstance(hop, dict) else None
    if texts is None or not isinstance(hop, dict):
        raise line.wrong(f"'question_decomposition' should have 'question' and 'answer' for each hop; {preview(hop)}")
    place = paragraphs.get(hop.get("paragraph_support_idx"))
    return Hop(worded(texts[0]), texts[1].strip(), (place,) if place else ())


def _paragraphs(line: Line) -> Iterator[tuple[object, Passage]]:
    for paragraph in line.data["paragraphs"] or ():
        texts = (
            strings([paragraph.get("title"), paragraph.get("paragraph_text")]) if isinstance(paragraph, dict) else None
        )
        if texts is None:
            raise line.wrong(
                f"'paragraphs' should have 'title' and 'paragraph_text' for each; found {preview(paragraph)}"
            )
        title, text = (each.strip() for each in texts)
        yield paragraph.get("idx"), Passage(passage_id(title, text), title, text)


def _passages(line: Line) -> Iterable[Passage]:
    return (passage for _, passage in _paragraphs(line))


MUSIQUE = Layout("MuSiQue", frozenset({"question", "paragraphs"}), _read, _passages)
