"""The passages of a corpus that an annotation refers to.

In: a corpus, and the ids and titles to look up. Out: a `PassageLookup` with these passages, filled in one pass.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepladder.core.trace import Passage
from stepladder.data.dataset import LazyPassages
from stepladder.data.decompositions.gold_passages import GoldPassage
from stepladder.data.formats.contexts import Context, gold_passage


@dataclass(frozen=True, slots=True)
class PassageLookup:
    """Selected passages by id, and passage ids by title."""

    by_id: dict[str, Passage] = field(default_factory=dict)
    by_title: dict[str, list[str]] = field(default_factory=dict)
    has_corpus: bool = False

    def ids_titled(self, title: str) -> tuple[str, ...]:
        """The ids of the passages with a title."""
        return tuple(self.by_title.get(title, ()))

    def gold_passage(self, title: str, ids: tuple[str, ...], context: Context) -> GoldPassage:
        """The gold passage with these ids, with its text from the corpus or the context if available."""
        passage = next((self.by_id[each] for each in ids if each in self.by_id), None)
        if passage is None:
            return gold_passage(title, ids, [], context)
        return GoldPassage(title or passage.title, ids, passage.text)


def look_up(corpus: LazyPassages, ids: Iterable[str], titles: Iterable[str]) -> PassageLookup:
    """Look up the passages with these ids, and the ids of the passages with these titles."""
    ids, titles = set(ids), set(titles)
    lookup = PassageLookup(has_corpus=True)
    if ids or titles:
        for passage in corpus.stream():
            if passage.id in ids:
                lookup.by_id[passage.id] = passage
            if passage.title in titles:
                lookup.by_title.setdefault(passage.title, []).append(passage.id)
    return lookup
