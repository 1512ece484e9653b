"""ProRAG: think, ask one sub-question, read what the search found, state the sub-answer; finally answer.

The transcript is one growing text. With S a thought, Q a sub-query, R the retrieved passages, A a sub-answer and F the
final answer, a valid one is (S Q R S A)* S F:

    <step>thought</step><subquery>q</subquery>
    <retrieval>
    [1] Title: text
    </retrieval>
    <step>thought</step><subanswer>a</subanswer><step>thought</step><answer>a</answer>
"""

from typing import ClassVar

from stepladder.agents.base import malformed
from stepladder.agents.transcript import Transcript
from stepladder.core.trace import Action, ActionKind, Trajectory

PROMPT = """Answer the question by searching, one small step at a time.
Begin each step with a thought: <step>thought</step>. Then either ask for one thing to find out,
<subquery>it</subquery>, and once passages follow in <retrieval>, say what they tell, <subanswer>it</subanswer>;
or, when nothing is left to find out, end with a short phrase, <answer>it</answer>.
Question: {question}
"""


class ProRAG(Transcript):
    """`<step>..</step>` followed by `<subquery>`, `<subanswer>` or `<answer>`."""

    name: ClassVar[str] = "prorag"
    summary: ClassVar[str] = "thinks, asks sub-questions, states sub-answers, then answers"
    prompt: ClassVar[str] = PROMPT
    thought_tag: ClassVar[str] = "step"
    found_tag: ClassVar[str] = "retrieval"
    tag_of: ClassVar[dict[ActionKind, str]] = {
        ActionKind.QUERY: "subquery",
        ActionKind.SUB_ANSWER: "subanswer",
        ActionKind.ANSWER: "answer",
    }
    kinds: ClassVar[frozenset[ActionKind]] = frozenset(tag_of)
    stops: ClassVar[tuple[str, ...]] = ("</subquery>", "</subanswer>", "</answer>")

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        """A query, sub-answer or answer in its turn, or malformed."""
        action = super().parse(text, trajectory)
        if action.kind is ActionKind.MALFORMED:
            return action
        awaits_sub_answer = bool(trajectory.steps) and trajectory.steps[-1].action.kind is ActionKind.QUERY
        if awaits_sub_answer and action.kind is not ActionKind.SUB_ANSWER:
            return malformed(text, f"<{self.tag_of[action.kind]}> where the <subanswer> to the last query is due")
        if not awaits_sub_answer and action.kind is ActionKind.SUB_ANSWER:
            return malformed(text, "<subanswer> without a query before it")
        return action


class ProRAGBrief(ProRAG):
    """The same without instructions, for a model that has learnt the format: shorter transcripts, faster training."""

    name: ClassVar[str] = "prorag-brief"
    summary: ClassVar[str] = "prorag without instructions, for a model trained on its format"
    prompt: ClassVar[str] = "Question: {question}\n"
