"""RAG: one search with the question itself, then the answer: the standard baseline."""

from typing import ClassVar

from stepladder.agents.base import PROMPTS
from stepladder.agents.direct import Direct
from stepladder.core.trace import Question


class RAG(Direct):
    """`<answer>a</answer>`, from passages retrieved with the question."""

    name: ClassVar[str] = "rag"
    summary: ClassVar[str] = "searches once with the question, then answers"
    prompt: ClassVar[str] = PROMPTS["rag"]

    def opening_query(self, question: Question) -> str | None:
        """The question, unchanged."""
        return question.text
