"""The few passages of a corpus that an annotation speaks of.

In: a corpus, and the ids and titles that are wanted. Out: a `Shelf` with just these, read in one go through the corpus.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepladder.core.trace import Passage
from stepladder.data.dataset import ReadPassages
from stepladder.data.decompositions.gold_passages import Gold
from stepladder.data.formats.contexts import Context, gold_of


@dataclass(frozen=True, slots=True)
class Shelf:
    """Passages at hand."""

    by_id: dict[str, Passage] = field(default_factory=dict)
    by_title: dict[str, list[str]] = field(default_factory=dict)
    #: Whether there is a corpus at all.
    is_filled: bool = False

    def titled(self, title: str) -> tuple[str, ...]:
        """The ids of the passages with a title."""
        return tuple(self.by_title.get(title, ()))

    def gold(self, title: str, ids: tuple[str, ...], context: Context) -> Gold:
        """A gold passage whose ids are known, with its text where that is at hand."""
        passage = next((self.by_id[each] for each in ids if each in self.by_id), None)
        if passage is None:
            return gold_of(title, ids, [], context)
        return Gold(title or passage.title, ids, passage.text)


def filled(corpus: ReadPassages, ids: Iterable[str], titles: Iterable[str]) -> Shelf:
    """The passages of a corpus with these ids, and the ids of those with these titles."""
    ids, titles = set(ids), set(titles)
    shelf = Shelf(is_filled=True)
    if ids or titles:
        for passage in corpus.stream():
            if passage.id in ids:
                shelf.by_id[passage.id] = passage
            if passage.title in titles:
                shelf.by_title.setdefault(passage.title, []).append(passage.id)
    return shelf
