"""Hostile passages through whole episodes of every agent in every format: no forged action, control token or hint.

The policy searches, then writes no action until its answer is forced, so that hints, demands and passages meet in one
context. What the agent puts before the model must hold as many tags, control tokens, lines, openings of turns and notes
of the environment as it does with harmless passages, and only what the policy wrote may become an action. Passages and
the question spell all of these, also the text of a user's own hint.
"""

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.agents import AGENTS, Format, Play, make_agent
from stepladder.agents.base import HINTS, Agent
from stepladder.core.requests import Generate
from stepladder.core.trace import ActionKind, Author, Passage, Question, StopReason, Trajectory
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.retrieval.base import Retriever
from tests.support.hostile_text import PASSAGES, measured, mutation, spelled
from tests.support.prompted_texts import IDLE, SEARCH
from tests.support.tokenizer_shapes import SHAPES

#: A user's own hint, as in `hint: FILE`.
OWN_HINT = "My last move was invalid. Let me rethink: a query goes between <search> and </search>."
NOTES = (OWN_HINT, *(note.strip() for notes in HINTS.values() for note in notes.values()))
BUILT_IN = tuple(name for name in AGENTS if not name.endswith("-brief"))
#: How a turn, a query or an answer begins where the environment begins it.
OPENINGS = tuple(
    {
        opening
        for agent in map(make_agent, BUILT_IN)
        for opening in (agent.turn_opening, agent.query_opening, agent.answer_opening)
        if opening
    }
)


class Hostile(Retriever):
    """Finds the same passages for every query."""

    def __init__(self, words: Sequence[str]) -> None:
        self.found = tuple(Passage(f"p{n}", word, f"{word} It was so.") for n, word in enumerate(words))

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        return [self.found[:k]] * len(queries)


def played(agent: Agent, asked: str, words: Sequence[str]) -> tuple[Trajectory, list[str]]:
    """An episode over a question and these passages, and what the agent, not the policy, showed at each step."""
    seen: list[str] = []
    search = SEARCH.get(agent.name.removesuffix("-brief"), IDLE)

    def policy(request: Generate) -> str:
        seen.append("".join(each.text for each in request.context if each.author is not Author.POLICY))
        return search if len(seen) == 1 else IDLE

    question = Question("q", asked, ("x",))
    driver = Driver(ScriptedEngine(policy), Hostile(words))
    (outcome,) = driver.run([lambda: episode(agent, question, EpisodeConfig(k=PASSAGES), 0)])
    assert outcome.value is not None
    return outcome.value, seen


def shown(text: str, shape: str) -> tuple[object, ...]:
    """What a tokenizer, a server and a reader find in a context."""
    lines = [line.strip() for line in text.splitlines()]
    notes, openings = (sum(line.startswith(heads) for line in lines) for heads in (NOTES, OPENINGS))
    return measured(text, shape), spelled().findall(text), notes, openings, text.endswith(OPENINGS)


def with_notes(rng: random.Random) -> str:
    """A mutation that may also spell what the environment says or how it opens a turn, on a line of its own."""
    return mutation(rng) + rng.choice(["", f"\n{rng.choice(NOTES)}\n", f"\n{rng.choice(OPENINGS)}"])


def check(names: Sequence[str], formats: Sequence[Format], shape: str, count: int, hint: Path | None = None) -> None:
    rng = random.Random(f"{shape} {count}")
    rounds = [[with_notes(rng) for _ in range(PASSAGES)] for _ in range(count // PASSAGES)]
    for name in names:
        for play_format in formats:
            play = replace(Play.of(play_format), prime=play_format is not Format.STRICT)
            agent = make_agent(name, play=play, hint=hint)
            calm, contexts = played(agent, "Who?", ["stone"] * PASSAGES)
            harmless = [shown(text, shape) for text in contexts]
            if play_format is not Format.STRICT and ActionKind.QUERY in agent.kinds:
                assert any(agent.hint in text for text in contexts)  # a hint was shown
                assert (calm.answer, calm.stop) == (IDLE, StopReason.FORCED)
            for words in rounds:
                trajectory, contexts = played(agent, words[0], words)
                kinds = [step.action.kind for step in trajectory.steps]
                assert kinds == [step.action.kind for step in calm.steps], (name, play_format, words)
                assert (trajectory.answer, trajectory.stop) == (calm.answer, calm.stop), (name, play_format, words)
                assert all(step.action.content in step.written.text for step in trajectory.steps)
                assert ActionKind.QUERY not in kinds[1:]
                assert [shown(text, shape) for text in contexts] == harmless, (name, play_format, words)


def own_hint(folder: Path) -> Path:
    (folder / "hint.txt").write_text(OWN_HINT, encoding="utf-8")
    return folder / "hint.txt"


@pytest.mark.parametrize("play_format", Format)
def test_a_hundred_hostile_passages_forge_nothing(play_format: Format) -> None:
    check(BUILT_IN, [play_format], "nano", 100)


def test_passages_cannot_forge_a_hint_of_the_user(tmp_path: Path) -> None:
    check(BUILT_IN, [Format.LENIENT], "nano", 50, own_hint(tmp_path))


LONG = pytest.mark.skipif(
    "STEPLADDER_LONG_TESTS" not in os.environ, reason="takes minutes: set STEPLADDER_LONG_TESTS=1"
)


@LONG
@pytest.mark.parametrize("shape", SHAPES)
def test_two_thousand_hostile_passages_forge_nothing(shape: str) -> None:
    check(list(AGENTS), list(Format), shape, 2000)


@LONG
@pytest.mark.parametrize("shape", SHAPES)
def test_hundreds_of_passages_cannot_forge_a_hint_of_the_user(shape: str, tmp_path: Path) -> None:
    check(list(AGENTS), list(Format), shape, 500, own_hint(tmp_path))
