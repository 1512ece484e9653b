"""Search-o1: reason and search; the results of each search are condensed to a short answer.

Reasoning prompts contain no passages. A separate prompt shows the model the passages of one query; its short answer to
the query becomes part of the history. A step is free thought and then `<search>`, `<result>` or `<answer>`.
"""

from typing import ClassVar

from stepladder.agents.base import PROMPTS, brief
from stepladder.agents.formats.json_action import json_action
from stepladder.agents.prompted import PromptedAgent, Prompts
from stepladder.core.trace import Action, ActionKind, Trajectory


class SearchO1(PromptedAgent):
    """Free thought, then `<search>`, `<result>` or `<answer>`, depending on the state."""

    name: ClassVar[str] = "search-o1"
    summary: ClassVar[str] = "reasons and searches; the results of each search are condensed to a short answer"
    prompts: ClassVar[Prompts] = PROMPTS["search-o1"]
    tag_of: ClassVar[dict[ActionKind, str]] = {
        ActionKind.QUERY: "search",
        ActionKind.SUB_ANSWER: "result",
        ActionKind.ANSWER: "answer",
    }

    def find_action(self, text: str, trajectory: Trajectory) -> Action | None:
        """A block, or else RAG-Gym's JSON."""
        return super().find_action(text, trajectory) or self.fitting(json_action(text), trajectory)


SearchO1Brief = brief(SearchO1, prompts=PROMPTS["search-o1-brief"])
