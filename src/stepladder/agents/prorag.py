"""ProRAG: think, ask a sub-question, read the passages, state the sub-answer; repeat, then answer.

The context is one growing transcript. With S a thought, Q a sub-query, R the retrieved passages, A a sub-answer and F
the final answer, a valid transcript is (S Q R S A)* S F:

    <step>thought</step><subquery>q</subquery>
    <retrieval>
    [1] Title: text
    </retrieval>
    <step>thought</step><subanswer>a</subanswer><step>thought</step><answer>a</answer>
"""

from typing import ClassVar

from stepladder.agents.base import PROMPTS, brief, malformed
from stepladder.agents.tags import TranscriptAgent
from stepladder.core.trace import Action, ActionKind, Trajectory


class ProRAG(TranscriptAgent):
    """`<step>..</step>` followed by `<subquery>`, `<subanswer>` or `<answer>`."""

    name: ClassVar[str] = "prorag"
    summary: ClassVar[str] = "thinks, asks sub-questions, states sub-answers, then answers"
    prompt: ClassVar[str] = PROMPTS["prorag"]
    thought_tag: ClassVar[str] = "step"
    passages_tag: ClassVar[str] = "retrieval"
    tag_of: ClassVar[dict[ActionKind, str]] = {
        ActionKind.QUERY: "subquery",
        ActionKind.SUB_ANSWER: "subanswer",
        ActionKind.ANSWER: "answer",
    }

    def expected(self, trajectory: Trajectory) -> frozenset[ActionKind]:
        """A sub-answer after a query, else a query or the answer."""
        last = next((step for step in reversed(trajectory.steps) if step.action.kind is not ActionKind.MALFORMED), None)
        awaits_sub_answer = last is not None and last.action.kind is ActionKind.QUERY
        return frozenset({ActionKind.SUB_ANSWER} if awaits_sub_answer else {ActionKind.QUERY, ActionKind.ANSWER})

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        """A query, sub-answer or answer in the right order, or malformed."""
        action = super().parse(text, trajectory)
        if action.kind is ActionKind.MALFORMED:
            return action
        expected = self.expected(trajectory)
        if action.kind in expected:
            return action
        if action.kind is ActionKind.SUB_ANSWER:
            return malformed(text, "<subanswer> without a query before it")
        return malformed(text, f"<{self.tag_of[action.kind]}> where the <subanswer> to the last query is due")


ProRAGBrief = brief(ProRAG, prompt=PROMPTS["prorag-brief"])
