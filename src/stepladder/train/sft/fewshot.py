"""Few-shot prompts, for models that have not been trained on an agent's format yet.

In: any agent. Out: `FewShot`, the same agent with demonstrations before its prompt, to generate with; and `strip`,
which removes them from a trajectory, so that training sees the agent's own prompt. The demonstrations are episodes of
the oracle, rendered by the agent, over a corpus of a few invented passages.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

from stepladder.agents import Play
from stepladder.agents.base import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.io.yaml_tables import read_table
from stepladder.core.trace import Author, Hop, Passage, Question, Segment, Step, Trajectory
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.oracle.engine import OracleEngine
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.train.transcripts.tokenized import split_contexts

_TABLE = read_table(Path(__file__).with_suffix(".yaml"))


def _question(number: int, text: str, answer: str, hops: Sequence[Sequence[str]]) -> Question:
    found = tuple(Hop(query, answered, tuple(passages)) for query, answered, *passages in hops)
    gold = tuple(hop.passages for hop in found if hop.passages)
    return Question(f"demonstration {number}", text, (answer,), found, gold)


def demonstrations(agent: Agent) -> str:
    """Three answered questions in the agent's format, as one text."""
    passages = [Passage(**each) for each in _TABLE["passages"]]
    questions = [_question(number, **each) for number, each in enumerate(_TABLE["questions"], start=1)]
    settings = EpisodeConfig(max_steps=20, k=2)
    jobs = [partial(episode, agent, question, settings, seed=0) for question in questions]
    texts: list[str] = []
    for outcome in Driver(OracleEngine(agent), BM25Index.from_passages(passages)).run(jobs):
        if outcome.value is None or outcome.value.answer is None:
            why = outcome.failure.reason if outcome.failure is not None else "it did not reach an answer"
            raise StepladderError(f"the oracle cannot demonstrate agent '{agent.name}': {why}")
        texts += ["".join(segment.text for segment in context).strip() for context in split_contexts(outcome.value)]
    return "Here are worked examples.\n\n" + "\n\n".join(texts) + "\n\nNow it is your turn.\n\n"


class FewShot:
    """An agent with demonstrations before its prompt."""

    def __init__(self, agent: Agent) -> None:
        self.demonstrations = demonstrations(agent.playing(Play()))  # the oracle's text is always in the format
        #: A copy of the agent that shows them.
        self.agent = copy(agent)
        vars(self.agent)["render"] = partial(self._render, agent)

    def _render(self, agent: Agent, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The agent's context; a prompt that starts a new context gets the demonstrations."""
        context = agent.render(trajectory)
        known = trajectory.context()
        if known and context[: len(known)] == known:
            return context
        return tuple(
            replace(segment, text=self.demonstrations + segment.text) if segment.author is Author.PROMPT else segment
            for segment in context
        )

    def strip(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory without demonstrations.

        Policy and environment segments keep their token ids. Prompts lose theirs and are tokenized again; log-probs are
        dropped, because they belong to another context.
        """
        return replace(trajectory, steps=tuple(self._strip_step(step) for step in trajectory.steps))

    def _strip_step(self, step: Step) -> Step:
        read = tuple(
            Segment(Author.PROMPT, segment.text.removeprefix(self.demonstrations))
            if segment.author is Author.PROMPT
            else segment
            for segment in step.read
        )
        return replace(step, read=read, written=replace(step.written, logprobs=()))
