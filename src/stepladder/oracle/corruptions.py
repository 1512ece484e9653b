"""Gold chains with one mistake each, of the kinds that policies make: examples of bad steps that cost no generation.

In: gold trajectories and an index. Out: trajectories that go wrong at one place, in the agent's own words:

    misread       a reading is replaced by something else in the passage, or by a name that is half copied; the next
                  search then asks about that
    astray        a search for something that was not to be asked, and on from there as if nothing had happened
    again         a search that was made before, with its reading
    early         the answer before everything was found
    ended wrong   a wrong answer at the end

A search that is changed is made anew. Nothing is labelled here: the gold judge says of every step what is wrong with
it, also when a mistake turns out to be none.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import normalize
from stepladder.oracle.decomposition import fill_references, references
from stepladder.core.trace import Action, ActionKind, Passage, Question, Trajectory
from stepladder.oracle.control_chains import Turn, rebuild_trajectory, turns_of
from stepladder.retrieval.base import Retriever

_READINGS = (ActionKind.SUB_ANSWER, ActionKind.EVIDENCE)
#: Names and numbers in a text, as far as capitals and digits show them.
_TELLING = re.compile(r"[A-Z][\w'-]*(?: [A-Z][\w'-]*)*|\d[\d,.]*\d|\d")


def garble(text: str, other: str, rng: random.Random) -> str:
    """A text that begins or ends rightly and goes astray: in digits, in letters, by a word too many or too few.

    >>> garble("Ada Orm", "Tollen Vask", random.Random(5))
    'Ada Oren'
    """
    digits = [place for place, character in enumerate(text) if character.isdigit()]
    if digits and rng.random() < 0.8:
        place = rng.choice(digits)
        return text[:place] + rng.choice([each for each in "123456789" if each != text[place]]) + text[place + 1 :]
    words, others = text.split(), other.split()
    chance = rng.random()
    if len(words) > 1 and chance < 0.15:
        del words[rng.randrange(len(words))]
    elif chance < 0.3:
        words[rng.randrange(len(words))] = rng.choice(others)
    elif chance < 0.4:
        words.append(rng.choice(others))
    else:
        cut = rng.randint(1, max(len(text) - 1, 1))
        tail = rng.choice(others) if rng.random() < 0.5 else other
        return text[:cut] + tail[rng.randint(1, max(len(tail) - 2, 1)) :]
    return " ".join(words)


class Corruptor:
    """Makes mistakes in gold chains of one agent."""

    def __init__(
        self, agent: Agent, retriever: Retriever | None, k: int, questions: Sequence[Question], rng: random.Random
    ) -> None:
        """`questions`: whose sub-questions and answers are taken for others."""
        self.agent, self.retriever, self.k, self.rng = agent, retriever, k, rng
        hops = [hop for question in questions for hop in question.hops]
        #: Sub-questions about one thing that is to be filled in, and names to fill in or to mistake for others.
        self.templates = [hop.question for hop in hops if len(references(hop.question)) == 1]
        self.names = [hop.answer for hop in hops if hop.answer.strip()]

    def corrupt(self, gold: Trajectory, count: int) -> list[Trajectory]:
        """Up to `count` chains, each with a mistake drawn at random; where there is none to make, fewer."""
        kinds: list[Callable[[Trajectory], list[Turn] | None]] = [
            *(self.misread, self.astray, self.again, self.early, self.ended_wrong)
        ]
        made = [self.rng.choice(kinds)(gold) for _ in range(count)]
        return [rebuild_trajectory(self.agent, gold, turns) for turns in made if turns]

    def misread(self, gold: Trajectory) -> list[Turn] | None:
        """Up to the search that follows from a wrong reading."""
        turns = turns_of(gold.steps)
        place = self._place(turns, _READINGS)
        if place is None:
            return None
        action, found = turns[place]
        searched = turns[place - 1][1]
        right = self._answer_in(action, gold.question)
        wrong = self._mistaken(right, searched)
        changed = replace(action, content=action.content.replace(right, wrong))
        then = turns[place + 1 : place + 2]
        if then and then[0][0].kind is ActionKind.QUERY:
            then = [self._searched(replace(then[0][0], content=then[0][0].content.replace(right, wrong)))]
        elif then:
            then = [(replace(then[0][0], content=wrong), ())]
        return [*turns[:place], (changed, found), *then]

    def astray(self, gold: Trajectory) -> list[Turn] | None:
        """A search of one's own before one that is due, or behind the last; then back to the way."""
        turns = turns_of(gold.steps)
        place = self._place(turns, (ActionKind.QUERY, ActionKind.ANSWER))
        if place is None or not self.templates:
            return None
        known = [self._answer_in(action, gold.question) for action, _ in turns[:place] if action.kind in _READINGS]
        query = self._query(gold.question, turns[place][0], known)
        asked = self._searched(Action(ActionKind.QUERY, query, turns[place][0].thought))
        reading = next((action for action, _ in turns if action.kind in _READINGS), None)
        detour = [asked]
        if reading is not None:
            told = self._telling(asked[1]) or self.rng.choice(self.names)
            detour.append((replace(reading, content=told), ()))
        return [*turns[:place], *detour, *turns[place:]]

    def again(self, gold: Trajectory) -> list[Turn] | None:
        """An earlier search with its reading, once more; then on."""
        turns = turns_of(gold.steps)
        place = self._place(turns, (ActionKind.QUERY,))
        if place is None:
            return None
        end = place + 1
        while end < len(turns) and turns[end][0].kind in _READINGS:
            end += 1
        return [*turns[:end], *turns[place:end], *turns[end:]]

    def early(self, gold: Trajectory) -> list[Turn] | None:
        """The right answer, or the last one read, where a search was due."""
        *turns, (answer, _) = turns_of(gold.steps)
        searches = [n for n, (action, _) in enumerate(turns) if action.kind is ActionKind.QUERY]
        if not searches:
            return None
        kept = turns[: self.rng.choice(searches)]
        read = [self._answer_in(action, gold.question) for action, _ in kept if action.kind in _READINGS]
        content = read[-1] if read and self.rng.random() < 0.6 else answer.content
        return [*kept, (replace(answer, content=content), ())]

    def ended_wrong(self, gold: Trajectory) -> list[Turn] | None:
        """Everything right but the answer."""
        *turns, (answer, _) = turns_of(gold.steps)
        swapped = {"yes": "no", "no": "yes"}.get(answer.content.lower())
        read = [self._answer_in(action, gold.question) for action, _ in turns if action.kind in _READINGS]
        others = [each for each in read if normalize(each) != normalize(answer.content)]
        found = [passage for _, passages in turns for passage in passages]
        if swapped is not None:
            wrong = swapped
        elif others and self.rng.random() < 0.5:
            wrong = self.rng.choice(others)
        else:
            wrong = self._mistaken(answer.content, found)
        return [*turns, (replace(answer, content=wrong), ())]

    # --- parts

    def _place(self, turns: Sequence[Turn], kinds: Sequence[ActionKind]) -> int | None:
        places = [n for n, (action, _) in enumerate(turns) if action.kind in kinds]
        return self.rng.choice(places) if places else None

    def _searched(self, action: Action) -> Turn:
        if self.retriever is None:
            return action, ()
        return action, self.retriever.search([action.content], self.k)[0]

    def _query(self, question: Question, due: Action, known: Sequence[str]) -> str:
        """In place of what is due: that about a name not copied well, or a sub-question of another kind."""
        chance = self.rng.random()
        if due.kind is ActionKind.QUERY and known and chance < 0.35:
            return due.content.replace(known[-1], self._mistaken(known[-1], ()))
        about = known[-1] if known and chance < 0.8 else self.rng.choice(self.names)
        own = [hop.question for hop in question.hops if len(references(hop.question)) == 1]
        template = self.rng.choice(own if own and chance < 0.55 else self.templates)
        return fill_references(template, dict.fromkeys(references(template), about))

    def _mistaken(self, right: str, passages: Sequence[Passage]) -> str:
        """Something else in a passage, or the right thing half copied."""
        for _ in range(10):
            told = self._telling(passages) if self.rng.random() < 0.5 else ""
            wrong = told or garble(right, self.rng.choice(self.names), self.rng)
            if normalize(wrong) and normalize(wrong) != normalize(right):
                return wrong
        return self.rng.choice(self.names)

    def _telling(self, passages: Sequence[Passage]) -> str:
        if not passages:
            return ""
        passage = self.rng.choice(passages)
        return self.rng.choice([passage.title, *(match[0] for match in _TELLING.finditer(passage.text))])

    def _answer_in(self, action: Action, question: Question) -> str:
        """What a reading says: all of a sub-answer, of evidence the answer that stands in it."""
        answers = [hop.answer for hop in question.hops if hop.answer and hop.answer in action.content]
        return max(answers, key=len, default=action.content)
