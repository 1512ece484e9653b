"""What an episode knows so far, and what the gold decomposition says about its next step.

In: a question and steps, one after the other. Out: a `Verdict` for each, good or with a named fault; None for a
step that the question's annotation cannot judge.

A hop is *in view* once a passage that states it was found, *stated* once a sub-answer or evidence gave its answer, and
*known* when it is either. With a decomposition:

    query       good when it asks for a hop that is not answered yet and whose references are all known
    sub-answer  good when it answers the query before it and the hop is in view; "unknown" is good when it is not. What
                replies to a query for no hop, and states none, cannot be judged: nobody says what the reply should be
    evidence    the same, but the answer may stand inside a longer text
                An answer that is a whole sentence need not be repeated: most of its words do, or a good part of it
    answer      good when it is right and all hops that need a search are in view

An honest "unknown" concludes nothing, but it is the best reply to a search that found nothing, so it is no fault. The
final answer is: it gives up while something is still to be found. Whether a reply is good depends on its query only
in what was asked: a right reply to a needless query is good, the fault was the query's.

Without a decomposition, a query is good when it finds a gold passage that was not found before, and an answer when it
is right and all of them were found. Without gold passages, only answers can be judged, and queries that repeat.
"""

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from enum import StrEnum

from stepladder.core.answer_metrics import covers, normalize, score_answer, token_overlap
from stepladder.core.decomposition import answerable, is_conclusion, references, supports
from stepladder.core.trace import ActionKind, Passage, Question, Step
from stepladder.oracle.query_matching import Decomposition


class Fault(StrEnum):
    """What is wrong with a step."""

    REDUNDANT = "redundant"  # asks for or states what is already known, or repeats a query
    PREMATURE = "premature"  # asks for a hop, or answers, before what that needs is known
    UNSUPPORTED = "unsupported"  # right, but nothing found so far says so: a guess
    WRONG = "wrong"  # asks for or states what the question does not need
    MALFORMED = "malformed"  # not in the agent's format


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gold decomposition says about a step."""

    good: bool
    fault: Fault | None = None
    #: The hop the step is about, from 1; None when it is about none, or about the whole.
    hop: int | None = None
    reason: str = ""

    @property
    def value(self) -> float:
        """1 for a good step, 0 for a faulty one."""
        return float(self.good)


_NOTHING_SAID = re.compile(
    r"\b(unknown|unclear|nothing|none|no (answer|information|mention|evidence|passage)|cannot)\b"
    r"|(\bnot|n['’]t) (there|know|known|found|given|stated?|say|said|tell|mention|mentioned|specified|provided?)\b",
    re.IGNORECASE,
)


#: A sub-answer of more words than this tells what a passage says, rather than naming something.
_NAME_WORDS = 8


def _retells(text: str, answer: str, *, whole: bool) -> bool:
    """Whether a text says what a whole sentence says, in much of its words; `whole`: and says nothing else."""
    if len(normalize(answer).split()) <= _NAME_WORDS:
        return False
    f1, precision, recall = token_overlap(text, answer)
    if not whole:
        return recall >= 0.6
    return f1 >= 0.5 or (precision >= 0.8 and len(normalize(text).split()) >= 4)


def _good(hop: int | None, reason: str) -> Verdict:
    return Verdict(True, None, hop, reason)


def _bad(fault: Fault, hop: int | None, reason: str) -> Verdict:
    return Verdict(False, fault, hop, reason)


class History:
    """What an episode has asked, found and stated so far; judges the next step and takes it in."""

    def __init__(self, question: Question, given: Sequence[Passage]) -> None:
        self.question = question
        self.decomposition = Decomposition(question)
        #: Hops that need no search, from 1.
        self.conclusions = [n for n, hop in enumerate(question.hops, start=1) if is_conclusion(hop, question)]
        self.found: tuple[Passage, ...] = tuple(given)
        self.queries: frozenset[str] = frozenset()
        #: Numbers of hops, from 1: asked for by some query, stated rightly, stated by a passage found.
        self.asked: frozenset[int] = frozenset()
        self.stated: frozenset[int] = frozenset()
        self.in_view: frozenset[int] = self._held(self.found)
        #: The hop that the last query asked for.
        self.due: int | None = None
        #: Whether the agent writes sub-answers or evidence: what is in view has then still to be stated.
        self.reads = False

    def copy(self) -> "History":
        """One that can go on differently; nothing inside is changed in place."""
        return copy(self)

    def follow(self, steps: Sequence[Step]) -> tuple[Verdict | None, ...]:
        """Judge and take in one step after the other."""
        return tuple(self.take(step) for step in steps)

    def take(self, step: Step) -> Verdict | None:
        """The verdict on a step, which then belongs to the history."""
        action = step.action
        if action.kind is ActionKind.MALFORMED:
            return _bad(Fault.MALFORMED, None, action.problem or "not in the agent's format")
        if action.kind is ActionKind.ANSWER:
            return self._answer(action.content)
        if action.kind is ActionKind.QUERY:
            return self._query(action.content, step.passages)
        self.reads = True
        return self._reading(action.content, whole=action.kind is ActionKind.SUB_ANSWER) if self.question.hops else None

    def _held(self, passages: Sequence[Passage]) -> frozenset[int]:
        """The hops that passages state."""
        hops = enumerate(self.question.hops, start=1)
        return frozenset(number for number, hop in hops if number not in self.conclusions and supports(hop, passages))

    @property
    def _known(self) -> frozenset[int]:
        """The hops whose answers can be built upon."""
        return self.stated | self._backed

    @property
    def _backed(self) -> frozenset[int]:
        """The hops that are in view, and the conclusions that can be drawn from what is known."""
        backed = self.in_view
        for number in self.conclusions:
            if (self.stated | backed).issuperset(references(self.question.hops[number - 1].question)):
                backed |= {number}
        return backed

    # --- queries

    def _query(self, query: str, found: tuple[Passage, ...]) -> Verdict | None:
        text = normalize(query)
        repeated = text in self.queries
        before = self.found
        self.queries |= {text}
        self.found += found
        if not self.question.hops:
            return self._search(before, found, repeated)
        asked = self.decomposition.asked(query, found)
        verdict = self._asking(asked.hop if asked else None, repeated)
        self.in_view |= self._held(found)
        self.due = asked.hop if asked else None
        if asked is not None:
            self.asked |= {asked.hop}
            if verdict.good and not asked.named and not supports(self.question.hops[asked.hop - 1], found):
                return _bad(Fault.WRONG, asked.hop, "does not name what it asks about, though that is known")
        return verdict

    def _asking(self, number: int | None, repeated: bool) -> Verdict:
        """The verdict on a query that asks for a hop, with what was known before."""
        if repeated:
            return _bad(Fault.REDUNDANT, number, "the same query was made before")
        if number is None:
            return _bad(Fault.WRONG, None, "asks for nothing that the question needs")
        hop = self.question.hops[number - 1]
        known = self._known
        missing = [each for each in references(hop.question) if each < number and each not in known]
        if missing:
            return _bad(Fault.PREMATURE, number, f"asks for #{number} before #{missing[0]} is known")
        if number in self.conclusions:
            return _bad(Fault.REDUNDANT, number, "asks for what is only left to conclude")
        if number in self.in_view and (number in self.stated | self.asked or not self.reads):
            return _bad(Fault.REDUNDANT, number, f"#{number} was found before")
        return _good(number, f"asks for #{number}")

    def _search(self, before: Sequence[Passage], found: Sequence[Passage], repeated: bool) -> Verdict | None:
        """The verdict on a query where there is no decomposition: did it find what was missing?"""
        if repeated:
            return _bad(Fault.REDUNDANT, None, "the same query was made before")
        had, new = ({passage.id for passage in passages} for passages in (before, found))
        missing = [group for group in self.question.gold_passages if had.isdisjoint(group)]
        if not self.question.gold_passages or not found:
            return None
        if not missing:
            return _bad(Fault.REDUNDANT, None, "all gold passages were found before")
        if all(new.isdisjoint(group) for group in missing):
            return _bad(Fault.WRONG, None, "finds no gold passage that was missing")
        return _good(None, "finds a gold passage")

    # --- sub-answers and evidence

    def _reading(self, text: str, *, whole: bool) -> Verdict | None:
        """The verdict on a sub-answer (`whole`: it is the answer) or evidence (the answer is in it)."""
        says = [number for number in range(1, len(self.question.hops) + 1) if self._states(text, number, whole)]
        # A sub-answer replies to its query. Evidence, and what a query for no hop led to, may help with any.
        right = [number for number in says if number == self.due] if whole and self.due is not None else says
        backed = [number for number in right if number in self._backed]
        needed = [number for number in backed if number == self.due or number not in self.stated]
        again = [number for number in says if number in self.stated]
        self.stated |= frozenset(right)
        if needed:
            return _good(needed[0], f"states #{needed[0]}")
        if right and not backed:
            return _bad(Fault.UNSUPPORTED, right[0], f"no passage found so far states #{right[0]}")
        if again:
            return _bad(Fault.REDUNDANT, again[0], f"#{again[0]} was stated before")
        if not says and _NOTHING_SAID.search(text):
            if self.due in self.in_view:
                return _bad(Fault.WRONG, self.due, f"overlooks what was found for #{self.due}")
            return _good(self.due, "says that the search did not find it")
        if self.due is None:
            return None  # the fault was the query's; the annotation does not have what it asked for
        return _bad(Fault.WRONG, self.due, "states nothing that was asked for")

    def _states(self, text: str, number: int, whole: bool) -> bool:
        """Whether a text gives the answer of a hop, on its own or in a text that adds only the hop's own words."""
        hop = self.question.hops[number - 1]
        if any(_retells(text, answer, whole=whole) for answer in (hop.answer, *hop.aliases)):
            return whole or number not in self.conclusions
        given = [answer for answer in (hop.answer, *hop.aliases) if covers(text, answer)]
        if not whole:
            return bool(given) and number not in self.conclusions
        return any(self.decomposition.adds_nothing(text, answer, number) for answer in given)

    # --- answers

    def _answer(self, text: str) -> Verdict | None:
        if not self.question.answers:
            return None
        right = score_answer(text, self.question.answers).em == 1
        supported = self._supported()
        if right and supported is not False:
            return _good(None, "the right answer")
        if right:
            return _bad(Fault.UNSUPPORTED, None, "right, but not everything it rests on was found")
        if supported is False:
            return _bad(Fault.PREMATURE, None, "answers before everything it needs was found")
        return _bad(Fault.WRONG, None, "not the answer, though everything it needs was found")

    def _supported(self) -> bool | None:
        """Whether everything the answer rests on was found; None where nothing is known about that."""
        if self.question.hops:
            return len(self.in_view) + len(self.conclusions) == len(self.question.hops)
        return answerable(self.question, self.found) if self.question.gold_passages else None
