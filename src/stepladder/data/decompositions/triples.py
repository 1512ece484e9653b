"""Decompositions from evidence triples, as 2WikiMultiHopQA has them.

In: a question, its triples (subject, relation, object) and its gold passages. Out: one hop a triple, worded by its
relation (`relations.py`). Where the subject is the object of an earlier triple, the hop refers to it: "When did #1
die?". A comparison, and whatever else is not answered by the last triple, ends with a conclusion, which is the question
itself with what is compared:

    Which film came out first, Rain or Dust? Rain: #1; Dust: #2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepladder.core.trace import Hop
from stepladder.data.decompositions.entity_names import alike
from stepladder.data.decompositions.gold_passages import Gold, about, same, with_aliases
from stepladder.data.decompositions.wikidata_relations import asked

Triple = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Link:
    """A triple on its way to be a hop; several objects of one subject and relation are one link."""

    subject: str
    relation: str
    objects: tuple[str, ...]
    #: The link whose object is the subject, from 1; 0 where there is none.
    refers: int
    gold: Gold | None


def triple_hops(
    text: str, answers: Sequence[str], triples: Sequence[Triple], golds: Sequence[Gold], *, compares: bool
) -> tuple[Hop, ...]:
    """The hops of a question; none where no gold passage is about what a triple tells."""
    links = _links(triples, golds)
    if not links or any(link.gold is None or not link.gold.ids for link in links if golds):
        return ()
    hops = [_hop(link, text) for link in links]
    # Where no passages are known, a hop without one is not known to be a conclusion.
    if golds and (compares or not any(alike(hops[-1].answer, answer) for answer in answers)):
        ends = [number for number in range(1, len(links) + 1) if all(link.refers != number for link in links)]
        found = "; ".join(f"{_origin(links, number).subject}: #{number}" for number in ends)
        hops.append(Hop(f"{text} {found}.", answers[0] if answers else ""))
    return with_aliases(hops, answers)


def _links(triples: Sequence[Triple], golds: Sequence[Gold]) -> list[_Link]:
    links: list[_Link] = []
    for subject, relation, value in triples:
        twin = next((n for n, link in enumerate(links) if (link.subject, link.relation) == (subject, relation)), None)
        if twin is not None:
            links[twin] = replace(links[twin], objects=tuple(dict.fromkeys((*links[twin].objects, value))))
            continue
        refers = next((n for n, link in enumerate(links, start=1) if any(same(o, subject) for o in link.objects)), 0)
        links.append(_Link(subject, relation, (value,), refers, about(subject, golds)))
    left = [gold for gold in golds if all(link.gold is not gold for link in links)]
    homeless = [n for n, link in enumerate(links) if link.gold is None]
    if len(homeless) == len(left) == 1:  # the title is another name of the subject: nothing else is left for it
        links[homeless[0]] = replace(links[homeless[0]], gold=left[0])
    return links


def _hop(link: _Link, text: str) -> Hop:
    name, gold = link.subject, link.gold
    if gold is not None and alike(gold.title, name) and gold.title.casefold() in text.casefold():
        name = gold.title  # says more, as in "Rain (1932 film)"; used only where the question says it, too
    question = asked(link.relation, f"#{link.refers}" if link.refers else name)
    others = link.objects if len(link.objects) > 1 else ()
    return Hop(question, " and ".join(link.objects), gold.ids if gold else (), others)


def _origin(links: Sequence[_Link], number: int) -> _Link:
    link = links[number - 1]
    return _origin(links, link.refers) if link.refers else link
