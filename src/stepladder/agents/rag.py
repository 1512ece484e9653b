"""RAG: one search with the question itself, then the answer: the standard baseline."""

from typing import ClassVar

from stepladder.agents.base import neutralize, prompt_segment, render_passages
from stepladder.agents.direct import Direct
from stepladder.core.trace import Question, Segment, Trajectory

PROMPT = """Answer the question from the passages with a short phrase, written as <answer>the answer</answer>.
<retrieval>
{passages}
</retrieval>
Question: {question}
"""


class RAG(Direct):
    """`<answer>a</answer>`, from passages retrieved with the question."""

    name: ClassVar[str] = "rag"
    summary: ClassVar[str] = "searches once with the question, then answers"

    def opening_query(self, question: Question) -> str | None:
        """The question, unchanged."""
        return question.text

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """Instructions, passages, question."""
        question = neutralize(trajectory.question.text)
        return (prompt_segment(PROMPT.format(passages=render_passages(trajectory.given), question=question)),)
