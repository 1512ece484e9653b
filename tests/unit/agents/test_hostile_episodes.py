"""Hostile passages through whole episodes of every agent in every format: no forged action, control token or hint.

The policy searches, then writes no action until its answer is forced, so that hints, demands and passages meet in one
context. What the agent puts before the model must hold as many tags, control tokens, lines and notes of the environment
as it does with harmless passages, and only what the policy wrote may become an action.
"""

import os
import random
from collections.abc import Sequence
from dataclasses import replace

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

NOTES = tuple(note.strip() for notes in HINTS.values() for note in notes.values())


class Hostile(Retriever):
    """Finds the same passages for every query."""

    def __init__(self, words: Sequence[str]) -> None:
        self.found = tuple(Passage(f"p{n}", word, f"{word} It was so.") for n, word in enumerate(words))

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        return [self.found[:k]] * len(queries)


def played(agent: Agent, words: Sequence[str]) -> tuple[Trajectory, list[str]]:
    """An episode over these passages, and what the agent, not the policy, put before the model at each step."""
    seen: list[str] = []
    search = SEARCH.get(agent.name.removesuffix("-brief"), IDLE)

    def policy(request: Generate) -> str:
        seen.append("".join(each.text for each in request.context if each.author is not Author.POLICY))
        return search if len(seen) == 1 else IDLE

    question = Question("q", "Who?", ("x",))
    driver = Driver(ScriptedEngine(policy), Hostile(words))
    (outcome,) = driver.run([lambda: episode(agent, question, EpisodeConfig(k=PASSAGES), 0)])
    assert outcome.value is not None
    return outcome.value, seen


def shown(text: str, shape: str) -> tuple[object, ...]:
    notes = sum(line.startswith(NOTES) for line in text.splitlines())
    return measured(text, shape), spelled().findall(text), notes


def with_notes(rng: random.Random) -> str:
    """A mutation that may also spell what the environment says, on a line of its own."""
    return mutation(rng) + rng.choice(["", "\n" + rng.choice(NOTES) + "\n"])


def check(names: Sequence[str], formats: Sequence[Format], shape: str, count: int) -> None:
    rng = random.Random(f"{shape} {count}")
    rounds = [[with_notes(rng) for _ in range(PASSAGES)] for _ in range(count // PASSAGES)]
    for name in names:
        for play_format in formats:
            agent = make_agent(name, play=replace(Play.of(play_format), prime=play_format is Format.LENIENT))
            calm, contexts = played(agent, ["stone"] * PASSAGES)
            harmless = [shown(text, shape) for text in contexts]
            for words in rounds:
                trajectory, contexts = played(agent, words)
                kinds = [step.action.kind for step in trajectory.steps]
                assert kinds == [step.action.kind for step in calm.steps], (name, play_format, words)
                assert trajectory.stop is calm.stop
                if play_format is not Format.STRICT and name not in ("direct", "cot", "rag"):
                    assert (trajectory.answer, trajectory.stop) == (IDLE, StopReason.FORCED)
                assert all(step.action.content in step.written.text for step in trajectory.steps)
                assert ActionKind.QUERY not in kinds[1:]
                assert [shown(text, shape) for text in contexts] == harmless, (name, play_format, words)


@pytest.mark.parametrize("play_format", Format)
def test_a_hundred_hostile_passages_forge_nothing(play_format: Format) -> None:
    check([name for name in AGENTS if not name.endswith("-brief")], [play_format], "nano", 100)


@pytest.mark.skipif("STEPLADDER_LONG_TESTS" not in os.environ, reason="takes minutes: set STEPLADDER_LONG_TESTS=1")
@pytest.mark.parametrize("shape", SHAPES)
def test_two_thousand_hostile_passages_forge_nothing(shape: str) -> None:
    check(list(AGENTS), list(Format), shape, 2000)
