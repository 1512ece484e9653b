"""What nano reads before it ever sees an agent: plain documents from Atlas worlds that are not the default one.

In: a world's seed and a random generator. Out: documents, each a list of (text, weight) pieces; the weight says how
much its tokens count in the loss: 1 for what a reader can work out (answers, sub-questions, conclusions), less for the
rest.

Six kinds of document, every one in one of many plain styles drawn at random:

    passages      an encyclopedia, as it stands
    reading       some passages, then questions about them with answers
    looking up    a question first, then passages, then the answer; several in a row, often each about the last answer
    plans         a long question and the sub-questions it breaks into, sometimes filled in and answered
    conclusions   which of two values is greater, whether two things are the same
    markup        sentences in tags

None of them is a transcript in an agent's format: no document has a long question, its plan, searches and readings
together, and tags that agents use mark nothing but arbitrary sentences here.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stepladder.data.atlas import Atlas, generate_atlas
from stepladder.data.atlas.catalogue import RELATIONS
from stepladder.data.atlas.passages import Library, write_library
from stepladder.data.atlas.phrasing import Link, Outline
from stepladder.data.atlas.values import Value
from stepladder.data.atlas.world import Fact
from stepladder.engines.gold import fill_references
from stepladder.trace import Hop, Passage, Question

Piece = tuple[str, float]
Document = list[Piece]

#: Worlds of these seeds are for pre-training; the default world is seed 0.
FIRST_WORLD = 1_000_000

#: Weights in the loss.
ANSWER, FRAME, PASSAGE, GIVEN = 1.0, 0.3, 0.15, 0.0

#: Of a hundred documents. Long kinds have fewer.
MIX = {"passages": 5, "reading": 14, "looking_up": 38, "plans": 26, "conclusions": 14, "markup": 3}

#: Tags that agents of this field use. Here they stand around arbitrary sentences.
AGENT_TAGS = (
    *("step", "subquery", "subanswer", "answer", "retrieval", "query", "evidence", "think", "search"),
    *("information", "thought", "reasoning", "document", "documents", "result", "question", "reference"),
)
#: Tags for styles. Any of them may mark a question, an answer or passages: only its place tells.
PLAIN_TAGS = (
    *("q", "a", "doc", "text", "note", "title", "line", "item", "entry", "page", "part", "name", "row", "block"),
    *("field", "box", "cell", "data", "list", "book", "card", "memo", "file", "sheet"),
)

_ASK = (
    *(("Q: ", "\n"), ("Question: ", "\n"), ("Asked: ", "\n"), ("? ", "\n"), ("* ", "\n"), ("<q>", "</q>")),
    *(("[question] ", "\n"), ("- ", " "), ('"', '" '), ("", "\n"), ("", " "), ("Find: ", "\n"), ("Look up: ", "\n")),
    *(("<line>", "</line>\n"), ("{", "}\n"), ("Query: ", "\n"), ("(", ") "), ("<item>", "</item>")),
)
_REPLY = (
    *(("A: ", "\n"), ("Answer: ", "\n"), ("Reply: ", "\n"), ("= ", "\n"), ("-> ", "\n"), ("<a>", "</a>\n")),
    *(("[answer] ", "\n"), ("", ".\n"), ("It is ", ".\n"), ("So: ", "\n"), ("- ", "\n"), ("", "\n"), ("Found: ", "\n")),
    *(("<entry>", "</entry>"), ("{", "}\n"), ("Result: ", "\n"), ('"', '"\n'), ("<note>", "</note>")),
)
_PASSAGE = (
    *("[{n}] {title}: {text}", "{title}: {text}", "# {title}\n{text}", "({title}) {text}", "{n}) {title}: {text}"),
    *("<doc>{title}: {text}</doc>", "== {title} ==\n{text}", '"{title}": {text}', "{n}. {title} - {text}", "{text}"),
    *("* {title}: {text}", "<title>{title}</title>\n{text}", "[{n}] {text}"),
)
_AROUND = (
    *(
        ("", "\n"),
        ("", "\n\n"),
        ("Text:\n", "\n"),
        ("---\n", "\n---\n"),
        ("<text>\n", "\n</text>\n"),
        ("Found:\n", "\n"),
    ),
    *(("\n<page>\n", "\n</page>\n"), ("[\n", "\n]\n"), ("\n", "\n\n"), ("Sources:\n", "\n"), ("<part>", "</part>")),
)
#: Remarks that may stand before an answer, or between an answer and the next question.
_REMARK = (
    *(
        "Here it is.",
        "Text {n} has it.",
        "The text says this.",
        "({n})",
        "See {n}.",
        "That is told above.",
        "Found.",
        "I read it.",
    ),
    *("This is said there.", "[{n}] it is.", "As written:", "Reading {n}.", "Look at [{n}].", "The one above tells."),
)
_ONWARD = (
    *(
        "Next.",
        "Go on.",
        "{n}.",
        "Then {n}.",
        "And now {n}:",
        "Continue.",
        "More.",
        "Another one.",
        "Next, {n}.",
        "Then:",
    ),
)
_PLAN = (
    *(
        "{n}. {q} ",
        "{n}. {q}\n",
        "{n}) {q} ",
        "{n}: {q}\n",
        "({n}) {q} ",
        "{n} - {q}\n",
        "#{n} {q} ",
        "<item>{q}</item>",
    ),
)
_PLAN_HEAD = (
    "",
    "Plan: ",
    "Steps:\n",
    "I need: ",
    "To find out: ",
    "Parts: ",
    "Sub-questions:\n",
    "<part>",
    "First ask: ",
)


@dataclass(frozen=True, slots=True)
class Style:
    """How one document marks questions, answers, passages and plans."""

    ask: tuple[str, str]
    reply: tuple[str, str]
    passage: str
    around: tuple[str, str]
    plan: str
    plan_head: str
    #: Around remarks, and whether there are any before answers and before questions.
    aside: tuple[str, str]
    remarks: bool
    onward: bool
    rng: random.Random

    @staticmethod
    def draw(rng: random.Random) -> "Style":
        """Marks from the lists above, or tags that mean nothing by themselves."""
        ask, reply, passage, around, plan, head = (
            rng.choice(each) for each in (_ASK, _REPLY, _PASSAGE, _AROUND, _PLAN, _PLAN_HEAD)
        )
        aside = rng.choice((("", " "), ("", "\n"), ("(", ") "), ("- ", "\n")))
        if rng.random() < 0.5:
            tags = rng.sample(PLAIN_TAGS, 4)
            gap = rng.choice(("", "", "\n"))
            ask, reply, aside = ((f"<{tag}>", f"</{tag}>{gap}") for tag in tags[:3])
            inner = rng.choice(("", "\n"))
            around = (
                f"{rng.choice(('', chr(10)))}<{tags[3]}>{inner}",
                f"{inner}</{tags[3]}>{rng.choice(('', chr(10)))}",
            )
        return Style(ask, reply, passage, around, plan, head, aside, rng.random() < 0.5, rng.random() < 0.4, rng)

    def remark(self, wordings: Sequence[str], number: int) -> Document:
        """A remark in passing, which tells nothing new."""
        return [(self.aside[0], FRAME), (self.rng.choice(wordings).format(n=number), FRAME), (self.aside[1], FRAME)]

    def asked(self, question: str, weight: float, number: int = 1) -> Document:
        """A question; `number` says the how-maniest it is."""
        before = self.remark(_ONWARD, number) if self.onward and number > 1 else []
        return [*before, (self.ask[0], FRAME), (question, weight), (self.ask[1], weight or FRAME)]

    def replied(self, answer: str, weight: float = ANSWER, place: int = 0) -> Document:
        """An answer; `place` says which passage tells it."""
        before = self.remark(_REMARK, place) if self.remarks and place else []
        return [*before, (self.reply[0], FRAME), (answer, weight), (self.reply[1], weight)]

    def shown(self, passages: Sequence[Passage]) -> Document:
        lines = [self.passage.format(n=n, title=p.title, text=p.text) for n, p in enumerate(passages, start=1)]
        return [(self.around[0], FRAME), ("\n".join(lines), PASSAGE), (self.around[1], FRAME)]

    def planned(self, questions: Sequence[str]) -> Document:
        listed = "".join(self.plan.format(n=n, q=question) for n, question in enumerate(questions, start=1))
        return [(self.plan_head, FRAME), (listed.rstrip(" "), ANSWER), ("\n", ANSWER)]


class WorldWriter:
    """Writes documents about one world."""

    def __init__(self, atlas: Atlas, rng: random.Random) -> None:
        self.world, self.rng = atlas.world, rng
        self.library: Library = write_library(atlas.world)
        self.passages = {passage.id: passage for passage in atlas.passages}
        self.listed = atlas.passages
        self.index = {passage.id: index for index, passage in enumerate(atlas.passages)}
        self.questions = [question for split in atlas.questions.values() for question in split]
        self.long = [question for question in self.questions if len(question.hops) > 1]
        self.twins: dict[int, list[int]] = {}
        for entity in self.world.entities:
            if entity.twin >= 0:
                self.twins.setdefault(entity.twin, []).append(entity.index)
                self.twins.setdefault(entity.index, []).append(entity.twin)
        self.comparable: dict[tuple[str, str], list[int]] = {}
        for entity in self.world.entities:
            for name in self.world.facts[entity.index]:
                if RELATIONS[name].compare is not None:
                    self.comparable.setdefault((entity.kind, name), []).append(entity.index)

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

    # --- the six kinds ------------------------------------------------------------------------------------

    def encyclopedia(self) -> Document:
        style = Style.draw(self.rng)
        return style.shown([self._any() for _ in range(self.rng.randint(1, 4))])

    def reading(self) -> Document:
        """Passages first, then questions about them."""
        rng, style = self.rng, Style.draw(self.rng)
        entities = [self._any_index() for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.4:
            entities += self.twins.get(entities[0], [])[:1]
        document = style.shown([self.listed[index] for index in entities])
        facts = [self.world.fact(index, name) for index in entities for name in self.world.facts[index]]
        for fact in rng.sample(facts, min(len(facts), rng.randint(2, 6))):
            question, answer, _ = self._question(fact)
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
        for number, hop in enumerate(rng.choice(self.questions).hops, start=1):
            document += style.asked(fill_references(hop.question, answers), GIVEN, number)
            place = 0
            if hop.passages:
                gold = [self.passages[each] for each in hop.passages]
                found, place = self._among_others(gold, self.index[hop.passages[0]], shown)
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
            walking = here is not None and bool(self.world.facts[here]) and rng.random() < 0.75
            subject = here if walking and here is not None else self._any_index()
            incoming = self.world.incoming(subject, _INVERTIBLE) if rng.random() < 0.2 else []
            fact = rng.choice(incoming) if incoming else self._own_fact(subject)
            question, answer, gold = self._question(fact, inverse=bool(incoming))
            found, place = self._among_others(gold, fact.subject, shown)
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
        for question in rng.sample(self.long, 1 if filled and between else rng.randint(1, 3)):
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
                document += style.shown([self._any() for _ in range(between)])
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
            question, answer = self._comparison() if rng.random() < 0.75 else self._sameness()
            document += style.asked(question, GIVEN) + style.replied(answer)
        return document

    def markup(self) -> Document:
        """Sentences of one article in arbitrary tags."""
        rng = self.rng
        tags = rng.sample(AGENT_TAGS + PLAIN_TAGS, rng.randint(1, 4))
        gap = rng.choice(("", "", "\n", " "))
        document: Document = []
        for _ in range(rng.randint(1, 3)):
            for sentence in self._any().text.split(". "):
                tag = rng.choice(tags)
                document += [(f"<{tag}>", FRAME), (sentence.rstrip("."), PASSAGE), (f"</{tag}>{gap}", FRAME)]
        return document

    # --- parts --------------------------------------------------------------------------------------------

    def _any_index(self) -> int:
        return self.rng.randrange(len(self.listed))

    def _any(self) -> Passage:
        return self.rng.choice(self.listed)

    def _own_fact(self, subject: int) -> Fact:
        return self.world.fact(subject, self.rng.choice(list(self.world.facts[subject])))

    def _question(self, fact: Fact, *, inverse: bool = False) -> tuple[str, str, list[Passage]]:
        """A question for one end of a fact, its answer, and the passages that state it."""
        outline = Outline(self.world, self.library, self.rng)
        link = Link(fact, inverse)
        known = fact.object if inverse else fact.subject
        assert isinstance(known, int)
        pointer = outline.start(known, subject=not inverse)
        gold = [self.passages[each] for each in self.library.stating(fact)]
        if pointer.name in self.world.entities[known].aliases:  # only its own article tells that name
            gold = [self.listed[known]]
        return outline.ask(pointer, link), self.world.spellings(link.asked)[0], gold

    def _among_others(self, gold: list[Passage], subject: int, count: int) -> tuple[list[Passage], int]:
        """One passage that states the fact among others, likely near-duplicates; and its place, from 1."""
        one = gold[0] if self.rng.random() < 0.8 else self.rng.choice(gold)
        shown = [one]
        others = [self.listed[twin] for twin in self.twins.get(subject, ())]
        others += [self._any() for _ in range(count)]
        shown += [each for each in others if each is not one][: count - 1]
        self.rng.shuffle(shown)
        return shown, shown.index(one) + 1

    def _comparison(self) -> tuple[str, str]:
        rng, world = self.rng, self.world
        (_, name), members = rng.choice(list(self.comparable.items()))
        first, second = rng.choice(members), rng.choice(members)
        a, b = world.facts[first][name], world.facts[second][name]
        compare = RELATIONS[name].compare
        assert isinstance(a, Value)
        assert isinstance(b, Value)
        assert compare is not None
        if a.order == b.order:
            return self._sameness()
        greater = rng.random() < 0.5
        word = compare.words[0 if greater else 1]
        first_wins = (a.order > b.order) == greater
        if rng.random() < 0.4:
            return f"Is {a.spellings[0]} {word} than {b.spellings[0]}?", "yes" if first_wins else "no"
        one, other = world.entities[first], world.entities[second]
        left, right = (each.plain if rng.random() < 0.5 else each.described for each in (one, other))
        question = f"Which is {word}: {a.spellings[0]} for {left}, or {b.spellings[0]} for {right}?"
        return question, (one if first_wins else other).name

    def _sameness(self) -> tuple[str, str]:
        one = self.world.entities[self._any_index()].name
        same = self.rng.random() < 0.5
        other = one if same else self.world.entities[self._any_index()].name
        return f"Are {one} and {other} the same?", "yes" if one == other else "no"


_INVERTIBLE = tuple(name for name, relation in RELATIONS.items() if relation.inverse_asks)


def tidy(document: Document) -> Document:
    """The same text with spaces at the end of a piece moved to the next: so pieces can be encoded one by one."""
    tidied: Document = []
    owed = ""
    for text, weight in document:
        text, owed = owed + text, ""
        if text.endswith(" "):
            text, owed = text[:-1], " "
        if text:
            tidied.append((text, weight))
    return tidied


def documents(world_seed: int, count: int, avoid: frozenset[str]) -> Iterator[Document]:
    """So many documents about the world of a seed, whose names have none of the words to avoid."""
    rng = random.Random(world_seed)
    writer = WorldWriter(generate_atlas("small", seed=world_seed, avoid=avoid), rng)
    for _ in range(count):
        yield tidy(writer.write())
