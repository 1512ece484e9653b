"""ReasonRAG: search or answer; after a search, extract the evidence from the passages; repeat.

Every step has its own prompt (`prompted.py` defines the states), which contains the history as text: the thoughts,
queries and evidence so far. A step is free thought and then exactly one block, `<query>`, `<evidence>` or `<answer>`.
"""

import re
from typing import ClassVar

from stepladder.agents.base import PROMPTS, brief
from stepladder.agents.formats.lenient import without_tags
from stepladder.agents.prompted import PromptedAgent, Prompts
from stepladder.core.trace import Action, ActionKind, Trajectory

_SENTENCE = re.compile(
    r"\b(?:so|thus|hence|therefore),? the (next (?:query )?is|answer is)[\s:]*(.*)$", re.IGNORECASE | re.MULTILINE
)


class ReasonRAG(PromptedAgent):
    """Free thought, then `<query>`, `<evidence>` or `<answer>`, depending on the state."""

    name: ClassVar[str] = "reasonrag"
    summary: ClassVar[str] = "searches, extracts evidence from the passages, then searches again or answers"
    prompts: ClassVar[Prompts] = PROMPTS["reasonrag"]
    tag_of: ClassVar[dict[ActionKind, str]] = {
        ActionKind.QUERY: "query",
        ActionKind.EVIDENCE: "evidence",
        ActionKind.ANSWER: "answer",
    }

    def find_action(self, text: str, trajectory: Trajectory) -> Action | None:
        """A block, or else the sentence that ReasonRAG's models end with: the rest of its line is the action."""
        found = super().find_action(text, trajectory)
        if found is not None:
            return found
        for sentence in _SENTENCE.finditer(text):
            if content := without_tags(sentence[2], self.markup).strip('"“” '):
                kind = ActionKind.QUERY if sentence[1].lower().startswith("next") else ActionKind.ANSWER
                return Action(kind, content, text[: sentence.start()].strip())
        return None


ReasonRAGBrief = brief(ReasonRAG, prompts=PROMPTS["reasonrag-brief"])
