"""Derive decompositions from evidence triples, as in 2WikiMultiHopQA.

In: a question, its triples (subject, relation, object) and its gold passages. Out: one hop per triple, formulated from
its relation (`wikidata_relations.yaml`). If the subject is the object of an earlier triple, the hop refers to it: "When
did #1 die?". If the last triple is not the answer, as in comparisons, a conclusion follows: the question itself with
the values found.

    Which film came out first, Rain or Dust? Rain: #1; Dust: #2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepladder.core.io.yaml_tables import read_table
from stepladder.core.trace import Hop
from stepladder.data.decompositions.gold_passages import (
    GoldPassage,
    passage_about,
    same_entity,
    same_name,
    with_aliases,
)

Triple = tuple[str, str, str]

#: The question template of each Wikidata relation. Others become "What is the RELATION of SUBJECT?".
_QUESTIONS: dict[str, str] = read_table(Path(__file__).with_name("wikidata_relations.yaml"))


def relation_question(relation: str, subject: str) -> str:
    """The question for the object of a relation. The subject is a name or a reference such as `#1`.

    >>> relation_question("place of birth", "Ada Orm"), relation_question("highest point", "#1")
    ('Where was Ada Orm born?', 'What is the highest point of #1?')
    """
    relation = " ".join(relation.split())
    return _QUESTIONS.get(relation, f"What is the {relation} of {{}}?").replace("{}", subject.strip())


@dataclass(frozen=True, slots=True)
class _Link:
    """All triples with the same subject and relation: one future hop."""

    subject: str
    relation: str
    objects: tuple[str, ...]
    #: The number, from 1, of the link whose object is the subject; 0 if there is none.
    refers: int
    gold: GoldPassage | None


def triple_hops(
    text: str, answers: Sequence[str], triples: Sequence[Triple], golds: Sequence[GoldPassage], *, is_comparison: bool
) -> tuple[Hop, ...]:
    """The hops of a question; none if a triple has no gold passage."""
    links = _links(triples, golds)
    if not links or any(link.gold is None or not link.gold.ids for link in links if golds):
        return ()
    hops = [_hop(link, text) for link in links]
    # Without gold passages, a hop without a passage could not be recognized as a conclusion.
    if golds and (is_comparison or not any(same_name(hops[-1].answer, answer) for answer in answers)):
        ends = [number for number in range(1, len(links) + 1) if all(link.refers != number for link in links)]
        values = "; ".join(f"{_origin(links, number).subject}: #{number}" for number in ends)
        hops.append(Hop(f"{text} {values}.", answers[0] if answers else ""))
    return with_aliases(hops, answers)


def _links(triples: Sequence[Triple], golds: Sequence[GoldPassage]) -> list[_Link]:
    links: list[_Link] = []
    for subject, relation, value in triples:
        known = next((n for n, link in enumerate(links) if (link.subject, link.relation) == (subject, relation)), None)
        if known is not None:
            links[known] = replace(links[known], objects=tuple(dict.fromkeys((*links[known].objects, value))))
            continue
        refers = next(
            (n for n, link in enumerate(links, start=1) if any(same_entity(each, subject) for each in link.objects)), 0
        )
        links.append(_Link(subject, relation, (value,), refers, passage_about(subject, golds)))
    unused = [gold for gold in golds if all(link.gold is not gold for link in links)]
    unmatched = [n for n, link in enumerate(links) if link.gold is None]
    if len(unmatched) == len(unused) == 1:  # the title must be an alias of the subject: no other passage is left
        links[unmatched[0]] = replace(links[unmatched[0]], gold=unused[0])
    return links


def _hop(link: _Link, text: str) -> Hop:
    name, gold = link.subject, link.gold
    if gold is not None and same_name(gold.title, name) and gold.title.casefold() in text.casefold():
        name = gold.title  # more specific, as in "Rain (1932 film)"; used only if the question contains it
    question = relation_question(link.relation, f"#{link.refers}" if link.refers else name)
    aliases = link.objects if len(link.objects) > 1 else ()
    return Hop(question, " and ".join(link.objects), gold.ids if gold else (), aliases)


def _origin(links: Sequence[_Link], number: int) -> _Link:
    link = links[number - 1]
    return _origin(links, link.refers) if link.refers else link
