"""ReasonRAG: search or answer; after a search, extract the evidence from the passages; repeat.

Every step has its own prompt (`prompted.py` defines the states), which contains the history as text: the thoughts,
queries and evidence so far. A step is free thought and then exactly one block, `<query>`, `<evidence>` or `<answer>`.
"""

from typing import ClassVar

from stepladder.agents.base import PROMPTS, brief
from stepladder.agents.prompted import PromptedAgent, Prompts
from stepladder.core.trace import ActionKind


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


ReasonRAGBrief = brief(ReasonRAG, prompts=PROMPTS["reasonrag-brief"])
