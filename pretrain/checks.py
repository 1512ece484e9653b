"""What nano-critic reads: documents in which after every answer or sub-question stands whether it is right.

A reward model has to see that a step is wrong. A model that has only ever read right answers does not look: it knows
what it would write, and nothing in it compares this with what was written. The verdict stands directly behind what it
is about, where a reward model reads its score. Five kinds:

    reading       passages, then answers read from them, right and wrong
    looking up    a question, the passages found, an answer; some passages do not tell, and then no answer is right
    asking        a long question and the sub-questions asked for it, with answers that are given: which of them were
                  to be asked just then? and is the conclusion right, and not too early?
    conclusions   comparisons, right and wrong
    chains        a long question from its sub-questions to its conclusion, with the passages: what follows from a wrong
                  answer ends in a wrong conclusion, and one that comes before everything was found is wrong. Left out
                  unless a share is given: the included nano-critic was trained without

Many verdicts are left out: what follows a wrong step has then to be judged without being told of it. Only verdicts
count in the loss: nothing else here is to be imitated, not even that a conclusion follows where it comes too early.
"""

from collections.abc import Callable

from pretrain.mistakes import Mistakes
from pretrain.source import Source
from pretrain.styles import FRAME, GIVEN, Document, Style
from stepladder.core.trace import Question
from stepladder.oracle.decomposition import fill_references, references

#: The weight of a verdict in the loss. Nothing else has any.
VERDICT = 1.0
#: The word for right, and that for wrong.
RIGHT, WRONG = "yes", "no"
#: How often a thing that can be wrong is.
_WRONG = 0.45
#: And in chains, where one wrong answer spoils what follows.
_MISREAD = 0.2
#: Of this share of the documents half the verdicts are left out.
_SILENT = 0.6


class Checks:
    """Writes checked documents about one world."""

    def __init__(self, source: Source, avoid: frozenset[str] = frozenset(), chains: float = 0.0) -> None:
        """`chains`: the share of documents of that kind; the others keep their shares among each other."""
        self.source, self.rng, self.share = source, source.rng, chains
        self.mistakes = Mistakes(source, avoid)

    def write(self) -> Document:
        """One document of a kind drawn at random."""
        kinds: list[Callable[[], Document]] = [self.reading, self.looking_up, self.asking, self.conclusions]
        (kind,) = self.rng.choices(kinds, [16, 30, 46, 8])
        if self.share and self.rng.random() < self.share:
            kind = self.chains
        document = self._with_gaps(kind()) if self.rng.random() < _SILENT else kind()
        return [(text, weight if weight == VERDICT else GIVEN) for text, weight in document]

    @staticmethod
    def _checked(right: bool) -> Document:
        """Whether what stands before is right."""
        return [(RIGHT if right else WRONG, VERDICT), ("\n", GIVEN)]

    def _with_gaps(self, document: Document) -> Document:
        """The document without half of its verdicts; the last one stays."""
        verdicts = [place for place, (_, weight) in enumerate(document) if weight == VERDICT]
        left_out = {place for place in verdicts[:-1] if self.rng.random() < 0.5}
        around = {place + off for place in left_out for off in (0, 1)}
        return [piece for place, piece in enumerate(document) if place not in around]

    def reading(self) -> Document:
        """Passages first, then questions about them."""
        rng, source, style = self.rng, self.source, Style.draw(self.rng)
        entities = [source.any_index() for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.4:
            entities += source.twins.get(entities[0], [])[:1]
        passages = [source.listed[index] for index in entities]
        document = style.shown(passages)
        facts = [source.world.fact(index, name) for index in entities for name in source.world.facts[index]]
        for fact in rng.sample(facts, min(len(facts), rng.randint(3, 7))):
            question, answer, _ = source.question_about(fact)
            right = rng.random() > _WRONG
            said = answer if right else self.mistakes.answer(answer, passages, near=fact.subject)
            document += style.asked(question, GIVEN) + style.replied(said, GIVEN) + self._checked(right)
        return document

    def looking_up(self) -> Document:
        """A question, what was found, an answer; and on from there."""
        rng, source, style = self.rng, self.source, Style.draw(self.rng)
        shown = rng.choice((1, 1, 1, 2, 3))
        document: Document = []
        here: int | None = None
        for number in range(1, rng.randint(3, 6)):
            walking = here is not None and bool(source.world.facts[here]) and rng.random() < 0.6
            subject = here if walking and here is not None else source.any_index()
            fact = source.own_fact(subject)
            question, answer, gold = source.question_about(fact)
            found, place = source.among_others(gold, fact.subject, shown)
            told = rng.random() > 0.12
            if not told:
                stating = {passage.id for passage in gold}
                found = [each for each in (source.any_passage() for _ in range(shown)) if each.id not in stating]
            right = told and rng.random() > _WRONG
            said = answer
            if not right and (told or rng.random() < 0.7):
                near = subject if told or not found else source.index[found[0].id]
                said = self.mistakes.answer(answer, found, near=near)
            document += style.asked(question, GIVEN, number) + style.shown(found)
            document += style.replied(said, GIVEN, place=place) + self._checked(right)
            here = fact.object if isinstance(fact.object, int) else None
        return document

    def asking(self) -> Document:
        """A long question, then sub-questions, in an order that may be wrong. Answers are given."""
        rng, style = self.rng, Style.draw(self.rng)
        question = rng.choice(self.source.long if rng.random() < 0.75 else self.source.questions)
        hops, answers, asked = question.hops, dict[int, str](), list[str]()
        between = rng.choice((0, 0, 1, 1, 2))
        document = style.asked(question.text, GIVEN)
        plan = [hop.question for hop in hops]
        astray = rng.randint(1, len(hops)) if rng.random() < 0.15 else 0
        if astray:
            plan[astray - 1] = self.mistakes.query(astray, hops, {}, ())
        if rng.random() < 0.7:
            document += [(text, min(weight, GIVEN)) for text, weight in style.planned(plan)]
        number = 1

        def ask(text: str, right: bool, answer: str) -> None:
            nonlocal document
            document += style.asked(text, GIVEN, len(asked) + 1) + self._checked(right)
            asked.append(text)
            if right or rng.random() < 0.7:
                if between:
                    document += style.shown([self.source.any_passage() for _ in range(between)])
                document += style.replied(answer, GIVEN, place=between and 1)

        for number, hop in enumerate(hops, start=1):
            if number == astray:
                ask(fill_references(plan[number - 1], answers), False, self.mistakes.any_name())
            elif rng.random() < 0.3:
                ask(self.mistakes.query(number, hops, answers, asked), False, self.mistakes.any_name())
            if rng.random() < 0.12:
                document += self._conclusion(question, asked, right=False, early=True)
            if hop.passages:
                ask(fill_references(hop.question, answers), True, hop.answer)
            answers[number] = hop.answer
        if rng.random() < 0.25:
            ask(self.mistakes.query(len(hops), hops, answers, asked), False, self.mistakes.any_name())
        return document + self._conclusion(question, list(answers.values()), right=rng.random() > _WRONG)

    def _conclusion(self, question: Question, others: list[str], *, right: bool, early: bool = False) -> Document:
        """The answer of the whole, or something in its place. Too early, even the right one is wrong."""
        rng, answer = self.rng, question.answers[0]
        said = answer
        if not right and not (early and rng.random() < 0.4):
            wrong = [each for each in others if each not in question.answers]
            use = wrong and not early and rng.random() < 0.5
            said = rng.choice(wrong) if use else self.mistakes.answer(answer, ())
        if not right and answer in ("yes", "no") and not early:
            said = "no" if answer == "yes" else "yes"
        mark = rng.choice(("So ", "Then ", "Hence ", "Total: "))
        return [(mark, FRAME), (said, GIVEN), ("\n", GIVEN), *self._checked(right)]

    def chains(self) -> Document:
        """A long question to its conclusion. What is asked and read after a wrong answer has no verdict."""
        rng, style = self.rng, Style.draw(self.rng)
        question = rng.choice(self.source.long)
        hops, believed = question.hops, dict[int, str]()
        searches = [number for number, hop in enumerate(hops, start=1) if hop.passages]
        #: The sub-question that is never asked.
        end = rng.choice(searches) if rng.random() < 0.35 else 0
        shown = rng.choice((1, 1, 1, 2))
        document = style.asked(question.text, GIVEN)
        if rng.random() < 0.8:  # a plan, which may lack what is never asked
            plan = [hop.question for hop in hops][: end - 1 if end > 1 and rng.random() < 0.3 else None]
            document += [(text, min(weight, GIVEN)) for text, weight in style.planned(plan)]
        for number in searches:
            if number == end:
                break
            hop = hops[number - 1]
            lost = any(believed.get(each) != hops[each - 1].answer for each in references(hop.question))
            document += style.asked(fill_references(hop.question, believed), GIVEN, number)
            document += [] if lost else self._checked(right=True)
            gold = [self.source.passages[each] for each in hop.passages if each in self.source.passages]
            if lost or not gold:
                found, place = [self.source.any_passage() for _ in range(shown)], 1
            else:
                found, place = self.source.among_others(gold, self.source.index[gold[0].id], shown)
            right = not lost and rng.random() > _MISREAD
            near = self.source.index[found[place - 1].id]
            believed[number] = hop.answer if right else self.mistakes.answer(hop.answer, found, near=near)
            document += style.shown(found) + style.replied(believed[number], GIVEN, place=place)
            document += [] if lost else self._checked(right)
        return document + self._end(question, believed, early=end > 0)

    def _end(self, question: Question, believed: dict[int, str], *, early: bool) -> Document:
        """The conclusion from what is believed: the last answer, or a comparison of answers."""
        rng, hops, answer = self.rng, question.hops, question.answers[0]
        astray = any(believed[number] != hops[number - 1].answer for number in believed)
        last = believed.get(max(believed)) if believed else None
        flipped = {"yes": "no", "no": "yes"}.get(answer)
        if early:
            right, chance = False, rng.random()
            said = last if last and chance < 0.7 else answer if chance < 0.85 else self.mistakes.answer(answer, ())
        elif not astray:
            right = rng.random() > _MISREAD
            others = [each for each in believed.values() if each not in question.answers]
            wrong = flipped or (
                rng.choice(others) if others and rng.random() < 0.5 else self.mistakes.answer(answer, ())
            )
            said = answer if right else wrong
        else:  # the conclusion of what is believed; of two that are compared, nobody knows which
            said = last if hops[-1].passages and last else flipped or self.mistakes.answer(answer, ())
            right = said in question.answers
        mark = rng.choice(("So ", "Then ", "Hence ", "Total: "))
        return [(mark, FRAME), (said, GIVEN), ("\n", GIVEN), *self._checked(right)]

    def conclusions(self) -> Document:
        """Which is greater, and are they the same."""
        rng, style = self.rng, Style.draw(self.rng)
        document: Document = []
        for _ in range(rng.randint(4, 10)):
            question, answer = self.source.comparison() if rng.random() < 0.75 else self.source.sameness()
            right = rng.random() > _WRONG
            said = answer
            if not right:
                said = {"yes": "no", "no": "yes"}.get(answer) or self._other_side(question, answer)
            document += style.asked(question, GIVEN) + style.replied(said, GIVEN) + self._checked(right)
        return document

    def _other_side(self, question: str, answer: str) -> str:
        """The other of the two that are compared, or a name not copied well."""
        sides = [part.split(" for ", 1)[-1].rstrip("?") for part in question.split(", or ")]
        wrong = [side for side in sides if answer not in side]
        return wrong[0] if wrong and self.rng.random() < 0.8 else self.mistakes.answer(answer, ())
