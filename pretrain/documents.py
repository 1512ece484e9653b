"""What nano reads before it ever sees an agent: plain documents from Atlas worlds that are not the default one.

In: a world's seed. Out: documents, as `styles.py` defines them. Six kinds, each document in a style of its own:

    passages      an encyclopedia, as it stands
    reading       some passages, then questions about them with answers
    looking up    a question first, then passages, then the answer; several in a row, often each about the last answer
    plans         a long question and the sub-questions it breaks into, sometimes filled in and answered
    conclusions   which of two values is greater, whether two things are the same
    markup        sentences in tags

None of them is a transcript in an agent's format: no document has a long question, its plan, searches and readings
together, and tags that agents use mark nothing but arbitrary sentences here. nano-critic reads others (`checks.py`).
"""

import random
from collections.abc import Callable, Iterator, Sequence

from pretrain.checks import Checks
from pretrain.source import Source
from pretrain.styles import AGENT_TAGS, ANSWER, FRAME, GIVEN, PASSAGE, PLAIN_TAGS, Document, Style, tidy
from stepladder.core.trace import Hop, Question
from stepladder.data.atlas import Atlas, generate_atlas
from stepladder.data.atlas.catalogue import RELATIONS
from stepladder.oracle.decomposition import fill_references

#: Worlds of these seeds are for pre-training; the default world is seed 0.
FIRST_WORLD = 1_000_000

#: Of a hundred documents. Long kinds have fewer.
MIX = {"passages": 5, "reading": 14, "looking_up": 38, "plans": 26, "conclusions": 14, "markup": 3}

_INVERTIBLE = tuple(name for name, relation in RELATIONS.items() if relation.inverse_asks)


class WorldWriter:
    """Writes documents about one world."""

    def __init__(self, atlas: Atlas, rng: random.Random) -> None:
        self.rng, self.source = rng, Source(atlas, rng)

    def write(self) -> Document:
        """One document of a kind drawn from the mix."""
        (kind,) = self.rng.choices(list(MIX), list(MIX.values()))
        makers: dict[str, Callable[[], Document]] = {
            "passages": self.encyclopedia,
            "reading": self.reading,
            "looking_up": self.looking_up,
            "plans": self.plans,
            "conclusions": self.conclusions,
            "markup": self.markup,
        }
        return makers[kind]()

    def encyclopedia(self) -> Document:
        style = Style.draw(self.rng)
        return style.shown([self.source.any_passage() for _ in range(self.rng.randint(1, 4))])

    def reading(self) -> Document:
        """Passages first, then questions about them."""
        rng, style = self.rng, Style.draw(self.rng)
        entities = [self.source.any_index() for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.4:
            entities += self.source.twins.get(entities[0], [])[:1]
        document = style.shown([self.source.listed[index] for index in entities])
        facts = [self.source.world.fact(index, name) for index in entities for name in self.source.world.facts[index]]
        for fact in rng.sample(facts, min(len(facts), rng.randint(2, 6))):
            question, answer, _ = self.source.question_about(fact)
            document += style.asked(question, GIVEN) + style.replied(answer)
        return document

    def looking_up(self) -> Document:
        """A question first, then what was found, then the answer; and on from there."""
        return self._hops() if self.rng.random() < 0.4 else self._walk()

    def _hops(self) -> Document:
        """The sub-questions of a long question, which itself is not told, each with passages and answer."""
        rng, style = self.rng, Style.draw(self.rng)
        shown = rng.choice((1, 1, 1, 2, 3))
        document: Document = []
        answers: dict[int, str] = {}
        for number, hop in enumerate(rng.choice(self.source.questions).hops, start=1):
            document += style.asked(fill_references(hop.question, answers), GIVEN, number)
            place = 0
            if hop.passages:
                gold = [self.source.passages[each] for each in hop.passages]
                found, place = self.source.among_others(gold, self.source.index[hop.passages[0]], shown)
                document += style.shown(found)
            document += style.replied(hop.answer, place=place)
            answers[number] = hop.answer
        return document

    def _walk(self) -> Document:
        """From entity to entity, or on to any other."""
        rng, style = self.rng, Style.draw(self.rng)
        shown = rng.choice((1, 1, 1, 2, 3))
        document: Document = []
        here: int | None = None
        for number in range(1, rng.randint(2, 6)):
            walking = here is not None and bool(self.source.world.facts[here]) and rng.random() < 0.75
            subject = here if walking and here is not None else self.source.any_index()
            incoming = self.source.world.incoming(subject, _INVERTIBLE) if rng.random() < 0.2 else []
            fact = rng.choice(incoming) if incoming else self.source.own_fact(subject)
            question, answer, gold = self.source.question_about(fact, inverse=bool(incoming))
            found, place = self.source.among_others(gold, fact.subject, shown)
            document += style.asked(question, GIVEN, number) + style.shown(found)
            document += style.replied(answer, place=place)
            target = fact.subject if incoming else fact.object
            here = target if isinstance(target, int) else None
        return document

    def plans(self) -> Document:
        """Long questions broken into sub-questions; some filled in with answers that are simply given."""
        rng, style = self.rng, Style.draw(self.rng)
        document: Document = []
        filled = rng.random() < 0.7
        between = rng.choice((0, 0, 1, 1, 2))
        for question in rng.sample(self.source.long, 1 if filled and between else rng.randint(1, 3)):
            document += style.asked(question.text, GIVEN)
            hops = question.hops
            if not filled or rng.random() < 0.75:
                document += style.planned([hop.question for hop in hops])
            if filled:
                document += self._filled_in(question, hops, style, between)
        return document

    def _filled_in(self, question: Question, hops: Sequence[Hop], style: Style, between: int) -> Document:
        """The sub-questions with the answers put in. Passages in between have nothing to do with them."""
        document: Document = []
        answers: dict[int, str] = {}
        for number, hop in enumerate(hops, start=1):
            document += style.asked(fill_references(hop.question, answers), ANSWER, number)
            if between and hop.passages:
                document += style.shown([self.source.any_passage() for _ in range(between)])
            document += style.replied(hop.answer, ANSWER if not hop.passages else GIVEN, place=between and 1)
            answers[number] = hop.answer
        return [
            *document,
            (self.rng.choice(("So ", "Then ", "Hence ", "Total: ")), FRAME),
            (question.answers[0], ANSWER),
            ("\n", ANSWER),
        ]

    def conclusions(self) -> Document:
        """Which is greater, and are they the same."""
        rng, style = self.rng, Style.draw(self.rng)
        document: Document = []
        for _ in range(rng.randint(4, 12)):
            question, answer = self.source.comparison() if rng.random() < 0.75 else self.source.sameness()
            document += style.asked(question, GIVEN) + style.replied(answer)
        return document

    def markup(self) -> Document:
        """Sentences of one article in arbitrary tags."""
        rng = self.rng
        tags = rng.sample(AGENT_TAGS + PLAIN_TAGS, rng.randint(1, 4))
        gap = rng.choice(("", "", "\n", " "))
        document: Document = []
        for _ in range(rng.randint(1, 3)):
            for sentence in self.source.any_passage().text.split(". "):
                tag = rng.choice(tags)
                document += [(f"<{tag}>", FRAME), (sentence.rstrip("."), PASSAGE), (f"</{tag}>{gap}", FRAME)]
        return document


def documents(world_seed: int, count: int, avoid: frozenset[str], chains: float | None = None) -> Iterator[Document]:
    """So many documents about the world of a seed, whose names have none of the words to avoid.

    `chains`: the share of chains among checked documents; None for documents that are not checked.
    """
    atlas, rng = generate_atlas("small", seed=world_seed, avoid=avoid), random.Random(world_seed)
    write = WorldWriter(atlas, rng).write if chains is None else Checks(Source(atlas, rng), avoid, chains).write
    for _ in range(count):
        yield tidy(write())
