"""Search trees of a scripted policy."""

import random
from dataclasses import replace

from stepladder.agents import make_agent
from stepladder.core.requests import Algorithm, Generate, Sampling
from stepladder.core.trace import ActionKind, Question, Tree
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.mcts import MCTSConfig, mcts_search
from tests.support.samples import QUESTION

AGENT = make_agent("prorag-brief")
QUERIES = ("Who designed Orm Tower?", "Where was Ada Tarn born?", "Where is Velm?", "Who is he?")
SETTINGS = MCTSConfig(
    EpisodeConfig(8, 1, Sampling(0.9, 0.95, 200)), Sampling(0.0, 1.0, 200), simulations=24, width=4, gamma=0.9
)


def stroll(request: Generate) -> str:
    """A policy that wanders: what it writes depends on what it has read and on the seed, and on nothing else."""
    assert request.trajectory is not None
    steps = request.trajectory.steps
    seen = "".join(step.written.text for step in steps) + request.trajectory.question.id
    draw = random.Random(f"{request.seed} {request.sampling.temperature} {seen}")
    if steps and steps[-1].action.kind is ActionKind.QUERY:
        found = steps[-1].passages[0].text
        return f"<step>Read.</step><subanswer>{draw.choice(['Ada Tarn', 'Velm', found[:20]])}</subanswer>"
    choice = draw.random()
    if choice < 0.1:
        return "I do not know how to write a step"
    if choice < 0.4:
        return f"<step>So.</step><answer>{draw.choice(['Velm', 'Orm', 'Velm on the Oss'])}</answer>"
    return f"<step>Look {draw.randint(0, 9)}.</step><subquery>{draw.choice(QUERIES)}</subquery>"


def many(count: int) -> list[Question]:
    return [replace(QUESTION, id=f"q{number}") for number in range(count)]


def tree_of(question: Question, seed: int) -> Algorithm[Tree]:
    return mcts_search(AGENT, question, SETTINGS, seed)
