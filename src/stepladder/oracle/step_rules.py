"""The rules of the gold judge: what an episode knows so far, and whether its next step is good.

In: a question and steps, one after the other. Out: a `Verdict` for each, good or with a named fault; None for a step
that the annotation of the question does not decide.

A hop is *retrieved* once a passage that states it was found, *stated* once a sub-answer or evidence gave its answer,
and *known* if it is either. With a decomposition:

    query       good if it asks for a hop that is not answered yet and whose references are all known
    sub-answer  good if it answers its query and the hop is retrieved; "unknown" is good if the hop is not retrieved. A
                sub-answer to a query for no hop that states no hop has no verdict: its right answer is not annotated
    evidence    the same, but the answer may be part of a longer text
                Answers that are whole sentences count as given if most of their words are
    answer      good if it is right and all hops that need a search are retrieved

"unknown" is the best reply to a search without results, so it is not a fault. As final answer it is one: the episode
gives up while something can still be found. A right sub-answer to a redundant query is good; only the query is faulty.

Blame ends at the first error. What a wrong sub-answer names, or what replies to a query for no hop, is a *claim*
(`claims.py`). These steps follow from a claim and are derived, neither good nor faulty:

    query       asks for a hop, with a claim in place of a reference; or asks again for what a sub-answer overlooked
    sub-answer  replies to a derived query with words of the passages retrieved for it
    answer      not right, but the claim for the last hop; or a choice between values of which one is a claim

Without a decomposition a query is good if it finds a new gold passage, and an answer if it is right and all gold
passages were found. Without gold passages only answers and repeated queries are judged.
"""

import re
from collections.abc import Sequence

from stepladder.core.answer_metrics import covers, normalize, score_question, token_overlap
from stepladder.core.questions.gold_matching import gold_found
from stepladder.core.trace import ActionKind, Passage, Question, Step
from stepladder.oracle.claims import Claims
from stepladder.oracle.decomposition import answerable, is_conclusion, mentions, references, supports
from stepladder.oracle.hop_targets import NAME_WORDS
from stepladder.oracle.query_matching import MatchedHop, decomposition
from stepladder.oracle.step_verdicts import Fault, Verdict

_SAYS_UNKNOWN = re.compile(
    r"\b(unknown|unclear|nothing|none|no (answer|information|mention|evidence|passage)|cannot)\b"
    r"|(\bnot|n['’]t) (there|know|known|found|given|stated?|say|said|tell|mention|mentioned|specified|provided?)\b",
    re.IGNORECASE,
)


def _paraphrases(text: str, answer: str, *, exact: bool) -> bool:
    """Whether a text repeats an answer that is a sentence, in most of its words; `exact`: and nothing else."""
    if len(normalize(answer).split()) <= NAME_WORDS:
        return False
    f1, precision, recall = token_overlap(text, answer)
    if not exact:
        return recall >= 0.6
    return f1 >= 0.5 or (precision >= 0.8 and len(normalize(text).split()) >= 4)


class History:
    """What an episode has asked, retrieved and stated so far. Judges the next step and adds it.

    No attribute is changed in place, so `copy` makes an independent history.
    """

    def __init__(self, question: Question, given: Sequence[Passage]) -> None:
        self.question = question
        self.decomposition = decomposition(question)
        #: Numbers (from 1) of the hops that need no search.
        self.conclusions = [n for n, hop in enumerate(question.hops, start=1) if is_conclusion(hop, question)]
        self.passages: tuple[Passage, ...] = tuple(given)
        #: The results of the last query.
        self.found: tuple[Passage, ...] = ()
        self.queries: frozenset[str] = frozenset()
        #: Numbers of hops (from 1): asked for by a query, stated correctly, stated by a retrieved passage.
        self.asked: frozenset[int] = frozenset()
        self.stated: frozenset[int] = frozenset()
        self.retrieved: frozenset[int] = self._stated_by(self.passages)
        #: The hop that the last query asked for, and the one that it asked for because of a claim.
        self.target: int | None = None
        self.derived_target: int | None = None
        self.claims = Claims()
        #: Whether the agent writes sub-answers or evidence: retrieved hops must then also be stated.
        self.extracts = False

    def judge(self, step: Step) -> Verdict | None:
        """The verdict on a step, which is then part of the history."""
        action = step.action
        if action.kind is ActionKind.MALFORMED:
            return Verdict(Fault.MALFORMED, None, action.problem or "not in the agent's format")
        if action.kind is ActionKind.ANSWER:
            return self._answer(action.content)
        if action.kind is ActionKind.QUERY:
            return self._query(action.content, step.passages)
        self.extracts = True
        exact = action.kind is ActionKind.SUB_ANSWER
        return self._extraction(action.content, exact=exact) if self.question.hops else None

    def _stated_by(self, passages: Sequence[Passage]) -> frozenset[int]:
        """The hops that passages state."""
        hops = enumerate(self.question.hops, start=1)
        return frozenset(number for number, hop in hops if number not in self.conclusions and supports(hop, passages))

    @property
    def _known(self) -> frozenset[int]:
        """The hops whose answers later hops can use."""
        return self.stated | self._supported

    @property
    def _supported(self) -> frozenset[int]:
        """The retrieved hops, and the conclusions that follow from known hops."""
        supported = self.retrieved
        for number in self.conclusions:
            if (self.stated | supported).issuperset(references(self.question.hops[number - 1].question)):
                supported |= {number}
        return supported

    # --- queries

    def _query(self, query: str, found: tuple[Passage, ...]) -> Verdict | None:
        text = normalize(query)
        repeated = self._repeats(text)
        before = self.passages
        self.queries |= {text}
        self.passages += found
        self.found = found
        if not self.question.hops:
            return self._query_by_results(before, found, repeated)
        matches = self.decomposition.matches(query, found)
        judged = [(match, self._query_for_match(match, found, repeated)) for match in matches]
        match, verdict = next((each for each in judged if each[1].good), judged[0] if judged else (None, None))
        self.target = match.hop if match else None
        self.derived_target = None
        if verdict is None or verdict.fault is Fault.WRONG:
            self.derived_target = None if repeated else self.decomposition.follows(query, *self.claims.by_hop())
        overlooked = match is not None and match.hop in self.claims.overlooked and not repeated
        self.retrieved |= self._stated_by(found)
        if match is not None:
            self.asked |= {match.hop}
        if self.derived_target is not None:
            self.target = None
            return Verdict(Fault.DERIVED, self.derived_target, f"asks for #{self.derived_target} about a wrong answer")
        if verdict is None:
            return self._query_for_nothing(repeated)
        if verdict.fault is Fault.REDUNDANT and overlooked:
            return Verdict(Fault.DERIVED, self.target, f"asks again for #{self.target}, which was overlooked")
        return verdict

    def _repeats(self, query: str) -> bool:
        """Whether a query, normalized, was made before; an answer that it adds is nothing new."""
        answers = {normalize(self.question.hops[number - 1].answer) for number in self.stated}
        return query in self.queries or any(query.removesuffix(f" {each}") in self.queries for each in answers)

    def _query_for_nothing(self, repeated: bool) -> Verdict:
        if repeated:
            return Verdict(Fault.REDUNDANT, None, "the same query was made before")
        return Verdict(Fault.WRONG, None, "asks for nothing that the question needs")

    def _query_for_match(self, match: MatchedHop, found: Sequence[Passage], repeated: bool) -> Verdict:
        """The verdict on a query as asking for a hop."""
        verdict = self._query_for_hop(match.hop, repeated, unaided=match.unaided)
        if not verdict.good or match.named:
            return verdict
        if match.whole:
            return Verdict(Fault.WRONG, match.hop, "repeats the question instead of asking for what is missing")
        if not supports(self.question.hops[match.hop - 1], found):
            return Verdict(Fault.WRONG, match.hop, "does not name what it asks about, though that is known")
        return verdict

    def _query_for_hop(self, number: int, repeated: bool, *, unaided: bool) -> Verdict:
        """The verdict on a query that asks for a hop, given what was known before."""
        if repeated:
            return Verdict(Fault.REDUNDANT, number, "the same query was made before")
        hop = self.question.hops[number - 1]
        known = self._known
        missing = [each for each in references(hop.question) if each < number and each not in known]
        if missing and not unaided:
            return Verdict(Fault.PREMATURE, number, f"asks for #{number} before #{missing[0]} is known")
        if number in self.conclusions:
            return Verdict(Fault.REDUNDANT, number, "asks for what is only left to conclude")
        if number in self.retrieved and (number in self.stated | self.asked or not self.extracts):
            return Verdict(Fault.REDUNDANT, number, f"#{number} was found before")
        return Verdict(None, number, f"asks for #{number}")

    def _query_by_results(self, before: Sequence[Passage], found: Sequence[Passage], repeated: bool) -> Verdict | None:
        """The verdict on a query without a decomposition: did it find a missing gold passage?"""
        if repeated:
            return Verdict(Fault.REDUNDANT, None, "the same query was made before")
        if not self.question.gold_passages or not found:
            return None
        had, new = gold_found(self.question, before), gold_found(self.question, found)
        if all(had):
            return Verdict(Fault.REDUNDANT, None, "all gold passages were found before")
        if not any(now and not then for then, now in zip(had, new)):
            return Verdict(Fault.WRONG, None, "finds no gold passage that was missing")
        return Verdict(None, reason="finds a gold passage")

    # --- sub-answers and evidence

    def _extraction(self, text: str, *, exact: bool) -> Verdict | None:
        """The verdict on a sub-answer (`exact`: the text is the answer) or evidence (it contains the answer)."""
        stated = [number for number in range(1, len(self.question.hops) + 1) if self._states(text, number, exact)]
        # A sub-answer replies to its query. Evidence, and the reply to a query for no hop, may state any hop.
        right = [number for number in stated if number == self.target] if exact and self.target is not None else stated
        verdict = self._extraction_of(right) or self._extraction_without(text, stated)
        self.stated |= frozenset(right)
        if verdict is None or verdict.fault in (Fault.WRONG, Fault.DERIVED):
            unknown = self._says_unknown(text)
            self.claims = self.claims.add(text, self.derived_target or self.target, exact=exact, unknown=unknown)
        return verdict

    def _extraction_of(self, right: Sequence[int]) -> Verdict | None:
        """The verdict on a text that states hops which it may state; None if it states none that is needed."""
        supported = [number for number in right if number in self._supported]
        needed = [number for number in supported if number == self.target or number not in self.stated]
        if needed:
            return Verdict(None, needed[0], f"states #{needed[0]}")
        if right and not supported and self.derived_target is None:
            return Verdict(Fault.UNSUPPORTED, right[0], f"no passage found so far states #{right[0]}")
        return None

    def _extraction_without(self, text: str, stated: Sequence[int]) -> Verdict | None:
        """The verdict on a text that states no hop that is needed; `stated`: the hops that it states."""
        if self.derived_target is not None and mentions((text.strip(" ."),), self.found):
            return Verdict(Fault.DERIVED, self.derived_target, "states what was found about a wrong answer")
        repeated = [number for number in stated if number in self.stated]
        if repeated:
            return Verdict(Fault.REDUNDANT, repeated[0], f"#{repeated[0]} was stated before")
        if not stated and self._says_unknown(text):
            if self.target in self.retrieved:
                return Verdict(Fault.WRONG, self.target, f"overlooks what was found for #{self.target}")
            return Verdict(None, self.target, "says that the search did not find it")
        if self.target is None:
            return None  # the query was at fault; the annotation has no answer to it
        return Verdict(Fault.WRONG, self.target, "states nothing that was asked for")

    def _says_unknown(self, text: str) -> bool:
        """Whether a text says that nothing was found. A title such as "Much Ado About Nothing" was found."""
        is_title = len(text.split()) > 2 and mentions((text.strip(" ."),), self.found)
        return _SAYS_UNKNOWN.search(text) is not None and not is_title

    def _states(self, text: str, number: int, exact: bool) -> bool:
        """Whether a text gives the answer of a hop; `exact`: and adds nothing but words of the hop."""
        hop = self.question.hops[number - 1]
        if any(_paraphrases(text, answer, exact=exact) for answer in (hop.answer, *hop.aliases)):
            return exact or number not in self.conclusions
        given = [answer for answer in (hop.answer, *hop.aliases) if covers(text, answer)]
        if not exact:
            return bool(given) and number not in self.conclusions
        return any(self.decomposition.adds_nothing(text, answer, number) for answer in given)

    # --- answers

    def _answer(self, text: str) -> Verdict | None:
        if not self.question.answers:
            return None
        right = score_question(text, self.question).em == 1
        complete = None  # whether everything that the answer needs was retrieved, if that is annotated
        if self.question.hops:
            complete = len(self.retrieved) + len(self.conclusions) == len(self.question.hops)
        elif self.question.gold_passages:
            complete = answerable(self.question, self.passages)
        if right and complete is not False:
            return Verdict(None, reason="the right answer")
        if right:
            return Verdict(Fault.UNSUPPORTED, None, "right, but not everything it rests on was found")
        if self._follows_claims(text):
            return Verdict(Fault.DERIVED, None, "follows from a wrong answer to an earlier question")
        if complete is False:
            return Verdict(Fault.PREMATURE, None, "answers before everything it needs was found")
        return Verdict(Fault.WRONG, None, "not the answer, though everything it needs was found")

    def _follows_claims(self, text: str) -> bool:
        """Whether a wrong answer follows from a claim: it repeats that for the last hop, or chooses by it."""
        hops = self.question.hops
        if not hops:
            return False
        last = len(hops)
        if last not in self.conclusions:
            return self.claims.state(text, last)
        compared = self._with_references(last) - {last}
        chosen = normalize(text) in ("yes", "no") or covers(self.question.text, text)
        return bool(chosen and text.strip()) and any(self.claims.has(each) for each in compared - self.stated)

    def _with_references(self, number: int) -> frozenset[int]:
        """A hop and all hops that it rests on."""
        found = {number}
        for each in range(number, 1, -1):  # a hop refers to earlier ones
            if each in found:
                found.update(before for before in references(self.question.hops[each - 1].question) if before < each)
        return frozenset(found)
