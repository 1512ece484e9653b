"""Pairs that a model can still learn from: their state is what the policy saw, and would see today.

In: pairs from a file. Out: those whose context an agent still renders and a model still reads as it did; the others are
refused, and counted by reason.

    other agent         made with another agent than the one that is trained
    other vocabulary    its token ids are of another tokenizer (text alone is encoded by this one)
    other prompt        today the agent writes another prompt for that question
    other tokens        today the model reads the prompt as other tokens: its chat template has changed
    too long            the state leaves no room for the steps in the model's window

Where the question is not among the data, as with pairs of other people, the prompt is taken as it is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepladder.agents.base import Agent, neutralize
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Author, Pair, Question, Segment, Trajectory
from stepladder.engines.transformers.tokenization import Encoding


@dataclass(frozen=True, slots=True)
class CheckedPairs:
    """What is left of some pairs."""

    pairs: tuple[Pair, ...]
    #: How many were refused, by reason.
    refused: Counter[str] = field(default_factory=Counter)

    def expect_some(self, where: str) -> None:
        """Raise where nothing is left."""
        if not self.pairs:
            why = ", ".join(f"{reason} {count:,}" for reason, count in self.refused.most_common()) or "it is empty"
            raise StepladderError(
                f"no pair of {where} can be used ({why}). Make pairs with the agent and the model that are to be "
                "trained: run the stages explore and pairs again"
            )


class PairCheck:
    """Looks at pairs with the eyes of one agent and one model."""

    def __init__(
        self,
        agent: Agent,
        questions: Iterable[Question],
        encoding: Encoding,
        window: int | None,
        *,
        retokenize: bool = False,
    ) -> None:
        """`window`: most tokens of a state with a step; None where longer ones are cut. `retokenize`: take pairs of
        another vocabulary as they are; whoever reads them encodes their text anew.
        """
        self.agent = agent
        self.questions: Mapping[str, Question] = {question.id: question for question in questions}
        self.encoding = encoding
        self.window = window
        self.retokenize = retokenize

    def sift(self, pairs: Iterable[Pair]) -> CheckedPairs:
        """The pairs that can be used, with token ids, and why the others cannot."""
        kept: list[Pair] = []
        refused: Counter[str] = Counter()
        for pair in pairs:
            reason = self._refusal(pair)
            if reason is None:
                encoded = self._encoded(pair)
                if self.window is None or _longest(encoded) <= self.window:
                    kept.append(encoded)
                    continue
                reason = "too long"
            refused[reason] += 1
        return CheckedPairs(tuple(kept), refused)

    def _refusal(self, pair: Pair) -> str | None:
        if pair.agent != self.agent.name:
            return "other agent"
        segments = (*pair.context, pair.chosen.written, pair.rejected.written)
        known = {segment.vocabulary for segment in segments if segment.tokens}
        if known - {self.encoding.vocabulary} and not self.retokenize:
            return "other vocabulary"
        if not self._renders(pair):
            return "other prompt"
        prompt = pair.context[0]
        same_ids = prompt.vocabulary == self.encoding.vocabulary
        if prompt.tokens and same_ids and self.encoding.encode(_bare(prompt)).tokens != prompt.tokens:
            return "other tokens"
        return None

    def _renders(self, pair: Pair) -> bool:
        """Whether the agent still begins this question's context in these words."""
        if not pair.context or pair.context[0].author is not Author.PROMPT:
            return False
        question = self.questions.get(pair.question_id)
        if question is None:
            return True
        words = pair.context[0].text
        if pair.depth and len(pair.context) == 1:  # every step has a prompt of its own, with a history we do not know
            return neutralize(question.text) in words
        if self.agent.opening_query(question) is not None:  # what it found before the first step is not in a pair
            return neutralize(question.text) in words
        return self.agent.render(Trajectory(question, self.agent.name))[0].text == words

    def _encoded(self, pair: Pair) -> Pair:
        def encoded(segment: Segment) -> Segment:
            return segment if segment.tokens else self.encoding.encode(segment)

        return replace(
            pair,
            context=tuple(encoded(segment) for segment in pair.context),
            chosen=replace(pair.chosen, written=encoded(pair.chosen.written)),
            rejected=replace(pair.rejected, written=encoded(pair.rejected.written)),
        )


def _bare(segment: Segment) -> Segment:
    return replace(segment, tokens=(), logprobs=(), vocabulary="")


def token_count(segments: Sequence[Segment]) -> int:
    """How many tokens segments have."""
    return sum(len(segment.tokens) for segment in segments)


def _longest(pair: Pair) -> int:
    return token_count(pair.context) + max(len(pair.chosen.written.tokens), len(pair.rejected.written.tokens))
