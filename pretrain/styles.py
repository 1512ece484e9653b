"""How pre-training documents look: pieces of text with weights, and the marks of one document.

A document is a list of (text, weight) pieces; the weight says how much its tokens count in the loss: 1 for what a
reader can work out (answers, sub-questions, conclusions), less for the rest. Every document draws a `Style`: its own
marks for questions, answers, passages and plans.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.core.trace import Passage

Piece = tuple[str, float]
Document = list[Piece]

#: Weights in the loss.
ANSWER, FRAME, PASSAGE, GIVEN = 1.0, 0.3, 0.15, 0.0

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
