"""Corrupted gold trajectories with one mistake each, of the kinds that policies make: synthetic negatives.

In: gold trajectories and an index. Out: trajectories with one mistake, in the agent's own format. No generation needed:

    misread        an extraction is replaced by something else in the passage, or by a name copied with errors; the rest
                   follows from it: later queries ask about that, and the answer is wrong
    detour         a search that the question does not need; the episode then continues as before
    repeat         an earlier search with its extraction, once more
    early_answer   the answer before everything was found
    wrong_answer   a wrong answer at the end

Changed queries are searched again. The trajectories carry no labels: the gold judge labels every step, also where a
mistake turns out to be harmless.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, get_args

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import normalize
from stepladder.core.trace import Action, ActionKind, Passage, Question, Trajectory
from stepladder.oracle.control_chains import Turn, rebuild_trajectory, turns_of
from stepladder.oracle.decomposition import fill_references, references
from stepladder.oracle.step_judge import judge
from stepladder.oracle.step_verdicts import reward_target
from stepladder.retrieval.base import Retriever

#: The kinds of a `Corruptor`, each one of its methods.
Corruption = Literal["misread", "detour", "repeat", "early_answer", "wrong_answer"]
CORRUPTIONS: tuple[Corruption, ...] = get_args(Corruption)
#: All kinds of mistakes that are made on purpose: these, and those of control chains.
Mistake = Literal["shuffled", "truncated", "answer_first"] | Corruption

_EXTRACTIONS = (ActionKind.SUB_ANSWER, ActionKind.EVIDENCE)
#: Names and numbers in a text, recognized by capitals and digits.
_NAMES_AND_NUMBERS = re.compile(r"[A-Z][\w'-]*(?: [A-Z][\w'-]*)*|\d[\d,.]*\d|\d")


def garble(text: str, other: str, rng: random.Random) -> str:
    """A text copied with an error: another digit, other letters, a word too many or too few.

    >>> garble("Ada Orm", "Tollen Vask", random.Random(5))
    'Ada Oren'
    """
    digits = [index for index, character in enumerate(text) if character.isdigit()]
    if digits and rng.random() < 0.8:
        index = rng.choice(digits)
        return text[:index] + rng.choice([each for each in "123456789" if each != text[index]]) + text[index + 1 :]
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


def _replaced(text: str, believed: dict[str, str]) -> str:
    """A text with what is believed in place of what is right; each place is replaced once."""
    rights = sorted((each for each in believed if each), key=len, reverse=True)
    if not rights:
        return text
    return re.sub("|".join(map(re.escape, rights)), lambda match: believed[match[0]], text)


class Corruptor:
    """Makes mistakes in the gold trajectories of one agent."""

    def __init__(
        self, agent: Agent, retriever: Retriever | None, k: int, questions: Sequence[Question], rng: random.Random
    ) -> None:
        """`questions`: the source of wrong sub-questions and wrong answers."""
        self.agent, self.retriever, self.k, self.rng = agent, retriever, k, rng
        hops = [hop for question in questions for hop in question.hops]
        #: Sub-questions with one reference, and names to fill in or to confuse with others.
        self.templates = [hop.question for hop in hops if len(references(hop.question)) == 1]
        self.names = [hop.answer for hop in hops if hop.answer.strip()]

    def corrupt(self, gold: Trajectory, count: int, leave_out: Sequence[str] = ()) -> list[Trajectory]:
        """Up to `count` copies, each with a random mistake; fewer if a mistake is not applicable.

        `leave_out`: kinds of mistakes that are not made.
        """
        kinds = [kind for kind in CORRUPTIONS if kind not in leave_out]
        made = [self._mistake(self.rng.choice(kinds), gold) for _ in range(count)] if kinds else []
        return [rebuild_trajectory(self.agent, gold, turns) for turns in made if turns]

    def one_of_each(self, gold: Trajectory) -> dict[Corruption, Trajectory]:
        """A copy with one mistake of each kind, where the gold judge finds a fault in it."""
        found: dict[Corruption, Trajectory] = {}
        for kind in CORRUPTIONS:
            if turns := self._mistake(kind, gold):
                chain = rebuild_trajectory(self.agent, gold, turns)
                verdicts = zip(chain.steps, judge(chain), strict=True)
                if any(reward_target(verdict, step.action.kind) == 0 for step, verdict in verdicts):
                    found[kind] = chain
        return found

    def _mistake(self, kind: Corruption, gold: Trajectory) -> list[Turn] | None:
        make: Callable[[Trajectory], list[Turn] | None] = getattr(self, kind)
        return make(gold)

    def misread(self, gold: Trajectory) -> list[Turn] | None:
        """A wrong extraction, and what follows from it."""
        turns = turns_of(gold.steps)
        index = self._random_index(turns, _EXTRACTIONS)
        if index is None:
            return None
        action, found = turns[index]
        right = self._answer_in(action, gold.question)
        wrong = self._confused(right, turns[index - 1][1])
        changed = replace(action, content=action.content.replace(right, wrong))
        return [*turns[:index], (changed, found), *self._follow(gold.question, turns[index + 1 :], {right: wrong})]

    def _follow(self, question: Question, turns: Sequence[Turn], believed: dict[str, str]) -> list[Turn]:
        """The turns of a policy that believes something wrong, and makes no other mistake.

        `believed`: wrong answers to sub-questions by the right ones. A query about a wrong name is searched, and some
        name that it finds is taken for the answer. Where the final answer would depend on a comparison of things that
        nobody knows, the turns end before it.
        """
        found: list[Turn] = []
        passages: tuple[Passage, ...] = ()
        astray = False
        for action, results in turns:
            content = _replaced(action.content, believed)
            changed = replace(action, content=content, thought=_replaced(action.thought, believed))
            if action.kind is ActionKind.QUERY:
                astray = content != action.content
                found.append(self._search(changed) if astray else (changed, results))
                passages = found[-1][1]
            elif action.kind in _EXTRACTIONS:
                if astray:
                    right = self._answer_in(action, question)
                    believed = {**believed, right: self._confused(right, passages, read=True)}
                    changed = replace(changed, content=_replaced(action.content, believed))
                found.append((changed, ()))
            else:
                answer = self._follow_to_answer(action.content, believed)
                return found if answer is None else [*found, (replace(changed, content=answer), ())]
        return found

    def _follow_to_answer(self, right: str, believed: dict[str, str]) -> str | None:
        """The answer of a policy that believes something wrong; None if that cannot be known."""
        swapped = {"yes": "no", "no": "yes"}.get(right.lower())
        same = (wrong for each, wrong in believed.items() if normalize(each) == normalize(right))
        return next(same, swapped)

    def detour(self, gold: Trajectory) -> list[Turn] | None:
        """An unneeded search before a needed one or before the answer."""
        turns = turns_of(gold.steps)
        index = self._random_index(turns, (ActionKind.QUERY, ActionKind.ANSWER))
        if index is None or not self.templates:
            return None
        known = [self._answer_in(action, gold.question) for action, _ in turns[:index] if action.kind in _EXTRACTIONS]
        query = self._query(gold.question, turns[index][0], known)
        search = self._search(Action(ActionKind.QUERY, query, turns[index][0].thought))
        extraction = next((action for action, _ in turns if action.kind in _EXTRACTIONS), None)
        detour = [search]
        if extraction is not None:
            content = self._random_name(search[1]) or self.rng.choice(self.names)
            detour.append((replace(extraction, content=content), ()))
        return [*turns[:index], *detour, *turns[index:]]

    def repeat(self, gold: Trajectory) -> list[Turn] | None:
        """A search with its extraction, twice."""
        turns = turns_of(gold.steps)
        index = self._random_index(turns, (ActionKind.QUERY,))
        if index is None:
            return None
        end = index + 1
        while end < len(turns) and turns[end][0].kind in _EXTRACTIONS:
            end += 1
        return [*turns[:end], *turns[index:end], *turns[end:]]

    def early_answer(self, gold: Trajectory) -> list[Turn] | None:
        """The right answer, or the last sub-answer, in place of a needed search."""
        *turns, (answer, _) = turns_of(gold.steps)
        searches = [n for n, (action, _) in enumerate(turns) if action.kind is ActionKind.QUERY]
        if not searches:
            return None
        kept = turns[: self.rng.choice(searches)]
        known = [self._answer_in(action, gold.question) for action, _ in kept if action.kind in _EXTRACTIONS]
        content = known[-1] if known and self.rng.random() < 0.6 else answer.content
        return [*kept, (replace(answer, content=content), ())]

    def wrong_answer(self, gold: Trajectory) -> list[Turn] | None:
        """A wrong answer after correct steps."""
        *turns, (answer, _) = turns_of(gold.steps)
        swapped = {"yes": "no", "no": "yes"}.get(answer.content.lower())
        known = [self._answer_in(action, gold.question) for action, _ in turns if action.kind in _EXTRACTIONS]
        others = [each for each in known if normalize(each) != normalize(answer.content)]
        found = [passage for _, passages in turns for passage in passages]
        letters = [each for each in gold.question.letters if each != answer.content]
        if letters:
            wrong = self.rng.choice(letters)
        elif swapped is not None:
            wrong = swapped
        elif others and self.rng.random() < 0.5:
            wrong = self.rng.choice(others)
        else:
            wrong = self._confused(answer.content, found)
        return [*turns, (replace(answer, content=wrong), ())]

    # --- parts

    def _random_index(self, turns: Sequence[Turn], kinds: Sequence[ActionKind]) -> int | None:
        indices = [n for n, (action, _) in enumerate(turns) if action.kind in kinds]
        return self.rng.choice(indices) if indices else None

    def _search(self, action: Action) -> Turn:
        if self.retriever is None:
            return action, ()
        return action, self.retriever.search([action.content], self.k)[0]

    def _query(self, question: Question, gold: Action, known: Sequence[str]) -> str:
        """A wrong query: the gold query with a name copied wrongly, or another sub-question."""
        chance = self.rng.random()
        if gold.kind is ActionKind.QUERY and known and chance < 0.35:
            return gold.content.replace(known[-1], self._confused(known[-1], ()))
        about = known[-1] if known and chance < 0.8 else self.rng.choice(self.names)
        own = [hop.question for hop in question.hops if len(references(hop.question)) == 1]
        template = self.rng.choice(own if own and chance < 0.55 else self.templates)
        return fill_references(template, dict.fromkeys(references(template), about))

    def _confused(self, right: str, passages: Sequence[Passage], *, read: bool = False) -> str:
        """Something else in a passage, or the right name copied with an error. `read`: the former, if there is any."""
        for _ in range(10):
            other = self._random_name(passages) if read or self.rng.random() < 0.5 else ""
            wrong = other or garble(right, self.rng.choice(self.names), self.rng)
            if normalize(wrong) and normalize(wrong) != normalize(right):
                return wrong
        return self.rng.choice(self.names)

    def _random_name(self, passages: Sequence[Passage]) -> str:
        if not passages:
            return ""
        passage = self.rng.choice(passages)
        return self.rng.choice([passage.title, *(match[0] for match in _NAMES_AND_NUMBERS.finditer(passage.text))])

    def _answer_in(self, action: Action, question: Question) -> str:
        """The content of an extraction: the whole sub-answer, or the answer that evidence ends with."""
        text = action.content
        answers = [hop.answer for hop in question.hops if hop.answer and hop.answer in text]
        return max(answers, key=lambda each: (text.rfind(each) + len(each), len(each)), default=text)
