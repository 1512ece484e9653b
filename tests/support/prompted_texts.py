"""What prompted models write: a search in each agent's format, text without any action, and episodes of such texts."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from stepladder.agents import Agent, Play, make_agent
from stepladder.core.requests import Generate
from stepladder.core.trace import Trajectory
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig, episode
from tests.support.samples import QUESTION, WordRetriever

LENIENT = Play.of("lenient")

SEARCH = {
    "react": "Thought: Hm.\nAction: Search[Orm Tower]\n",
    "search-r1": "<think>Hm.</think><search>Orm Tower</search>",
    "prorag": "<step>Hm.</step><subquery>Orm Tower</subquery>",
    "reasonrag": "Hm.\n<query>Orm Tower</query>",
    "search-o1": "Hm.\n<search>Orm Tower</search>",
    "research": '{"reasoning": "Hm.", "answer": "unknown", "claim": "c", "query": "Orm Tower"}\n',
}
IDLE = "Let me think about this for a while."


def lenient(name: str, **changes: object) -> Agent:
    return make_agent(name, play=replace(LENIENT, **changes))  # type: ignore[arg-type]


def play(agent: Agent, texts: Sequence[str] | Callable[[Generate], str], **limits: int) -> Trajectory:
    """An episode of a policy that writes these texts, the last one again and again."""
    queue = list(texts) if not callable(texts) else []

    def written(request: Generate) -> str:
        return texts(request) if callable(texts) else queue.pop(0) if len(queue) > 1 else queue[0]

    driver = Driver(ScriptedEngine(written), WordRetriever())
    (outcome,) = driver.run([lambda: episode(agent, QUESTION, EpisodeConfig(k=1, **limits), 0)])
    assert outcome.value is not None, outcome.failure
    return outcome.value
