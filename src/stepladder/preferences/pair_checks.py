"""Checks that pairs fit an agent and a model before training on them.

In: pairs. Out: those whose prompt the agent still renders and the model still tokenizes as stored; the others are
refused, and counted by reason.

    other agent         made with another agent
    other vocabulary    its token ids are of another tokenizer (text without ids is tokenized here)
    other prompt        the agent now renders another prompt for the question
    other tokens        the model now tokenizes the prompt differently: its chat template has changed
    too long            the state and its longer step exceed the context window

If the question is not in the data, as with published pairs, the prompt is not checked.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.agents.base import Agent, one_line, question_line
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records
from stepladder.core.trace import UNKNOWN_TOKENS, Author, Pair, Question, Segment, Trajectory
from stepladder.preferences.export.rag_proguide import read_pair_file

if TYPE_CHECKING:
    from stepladder.engines.transformers.tokenization import Encoding


def read_pairs(
    pairs: Sequence[Pair] | str | PathLike[str], held_out: Sequence[Pair] = ()
) -> tuple[Iterable[Pair], Iterable[Pair]]:
    """Training and held-out pairs: as given, of a file, or of a folder with `train.jsonl` and `dev.jsonl`."""
    if not isinstance(pairs, str | PathLike):
        return pairs, held_out
    path = Path(pairs)
    if path.is_dir():
        return read_records(path / "train.jsonl", Pair), read_records(path / "dev.jsonl", Pair)
    return read_pair_file(path), held_out


def expect_known_tokens(segments: Iterable[Segment], *, reencode: bool) -> None:
    """Raise if text is from a server, so that its token ids are unknown, and may not be encoded here."""
    if not reencode and any(each.vocabulary == UNKNOWN_TOKENS for each in segments):
        raise StepladderError(
            "the steps were written by a model behind a server, which gives no token ids: set reencode to true to "
            "train on their text, encoded with the tokenizer of the model in training"
        )


@dataclass(frozen=True, slots=True)
class CheckedPairs:
    """Accepted pairs, and how many were refused."""

    pairs: tuple[Pair, ...]
    #: How many were refused, by reason.
    refused: Counter[str]


@dataclass(frozen=True)
class PairCheck:
    """Checks pairs for one agent and one model."""

    agent: Agent
    questions: Iterable[Question]
    encoding: "Encoding"
    #: Most tokens of a state with a step; None is unlimited.
    max_length: int | None
    #: Accept pairs of another vocabulary unchanged; their text is tokenized later.
    retokenize: bool = False
    #: Accept text of a model behind a server, whose token ids are unknown.
    reencode: bool = False

    @cached_property
    def _by_id(self) -> dict[str, Question]:
        return {question.id: question for question in self.questions}

    def check_splits(
        self, train: Iterable[Pair], held_out: Iterable[Pair]
    ) -> tuple[Sequence[Pair], Sequence[Pair], dict[str, object]]:
        """The accepted pairs of both splits, and counts. Raises if none is left to train on."""
        found, dev = self.check(train), self.check(held_out)
        if not found.pairs:
            why = ", ".join(f"{reason} {count:,}" for reason, count in found.refused.most_common()) or "it is empty"
            raise StepladderError(
                f"no pair of the pairs to train on can be used ({why}). Make pairs with this agent and this model: run "
                "the stages explore and pairs again"
            )
        refused = dict((found.refused + dev.refused).most_common())
        return found.pairs, dev.pairs, {"pairs": len(found.pairs), "held_out_pairs": len(dev.pairs), "refused": refused}

    def check(self, pairs: Iterable[Pair]) -> CheckedPairs:
        """The accepted pairs, with token ids, and the refused ones by reason."""
        kept: list[Pair] = []
        refused: Counter[str] = Counter()
        for pair in pairs:
            reason = self._refusal(pair)
            if reason is None:
                encoded = self._encoded(pair)
                if self.max_length is None or _longest(encoded) <= self.max_length:
                    kept.append(encoded)
                    continue
                reason = "too long"
            refused[reason] += 1
        return CheckedPairs(tuple(kept), refused)

    def _refusal(self, pair: Pair) -> str | None:
        if pair.agent != self.agent.name:
            return "other agent"
        segments = (*pair.context, pair.chosen.written, pair.rejected.written)
        expect_known_tokens(segments, reencode=self.reencode)
        known = {segment.vocabulary for segment in segments if segment.tokens}
        if known - {self.encoding.vocabulary} and not self.retokenize:
            return "other vocabulary"
        if not self._renders(pair):
            return "other prompt"
        prompt = pair.context[0]
        same_ids = prompt.vocabulary == self.encoding.vocabulary
        bare = replace(prompt, tokens=(), logprobs=(), vocabulary="")
        if prompt.tokens and same_ids and self.encoding.encode(bare).tokens != prompt.tokens:
            return "other tokens"
        return None

    def _renders(self, pair: Pair) -> bool:
        """Whether the agent still renders this prompt for the question."""
        if not pair.context or pair.context[0].author is not Author.PROMPT:
            return False
        question = self._by_id.get(pair.question_id)
        if question is None:
            return True
        prompt = pair.context[0].text
        # A pair stores neither the history of a prompt per step nor the passages found before the first step.
        continues = any(segment.author is Author.POLICY for segment in pair.context)
        if (pair.depth and not continues) or self.agent.opening_query(question) is not None:
            return any(shown(question.text) in prompt for shown in (question_line, one_line))
        return self.agent.render(Trajectory(question, self.agent.name))[0].text == prompt

    def _encoded(self, pair: Pair) -> Pair:
        def encoded(segment: Segment) -> Segment:
            return segment if segment.tokens else self.encoding.encode(segment)

        return replace(
            pair,
            context=tuple(encoded(segment) for segment in pair.context),
            chosen=replace(pair.chosen, written=encoded(pair.chosen.written)),
            rejected=replace(pair.rejected, written=encoded(pair.rejected.written)),
        )


def _longest(pair: Pair) -> int:
    """Tokens of the context and the longer step."""
    context = sum(len(segment.tokens) for segment in pair.context)
    return context + max(len(pair.chosen.written.tokens), len(pair.rejected.written.tokens))
