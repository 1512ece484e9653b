"""ProRAG: think, ask one sub-question, read what the search found, state the sub-answer; finally answer.

The transcript is one growing text. With S a thought, Q a sub-query, R the retrieved passages, A a sub-answer and F the
final answer, a valid one is (S Q R S A)* S F:

    <step>thought</step><subquery>q</subquery>
    <retrieval>
    [1] Title: text
    </retrieval>
    <step>thought</step><subanswer>a</subanswer><step>thought</step><answer>a</answer>

The environment writes R, the policy everything else.
"""

from typing import ClassVar

from stepladder.agents.base import (
    Agent,
    environment_segment,
    malformed,
    neutralise,
    prompt_segment,
    render_passages,
)
from stepladder.agents.tags import read_blocks, write_block
from stepladder.trace import Action, ActionKind, Segment, Trajectory

PROMPT = """Answer the question by searching, one small step at a time.
Begin each step with a thought: <step>thought</step>. Then either ask for one thing to find out,
<subquery>it</subquery>, and once passages follow in <retrieval>, say what they tell, <subanswer>it</subanswer>;
or, when nothing is left to find out, end with a short phrase, <answer>it</answer>.
Question: {question}
"""

_TAG_OF = {
    ActionKind.QUERY: "subquery",
    ActionKind.SUB_ANSWER: "subanswer",
    ActionKind.ANSWER: "answer",
}
_KINDS = {tag: kind for kind, tag in _TAG_OF.items()}
_TAGS = ("step", "retrieval", *_KINDS)


class ProRAG(Agent):
    """`<step>..</step>` followed by `<subquery>`, `<subanswer>` or `<answer>`."""

    name: ClassVar[str] = "prorag"
    summary: ClassVar[str] = "thinks, asks sub-questions, states sub-answers, then answers"
    prompt: ClassVar[str] = PROMPT
    kinds: ClassVar[frozenset[ActionKind]] = frozenset(_TAG_OF)
    stops: ClassVar[tuple[str, ...]] = ("</subquery>", "</subanswer>", "</answer>")

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The transcript so far; passages of the last query are appended."""
        if not trajectory.steps:
            return (prompt_segment(self.prompt.format(question=neutralise(trajectory.question.text))),)
        context = trajectory.context()
        last = trajectory.steps[-1]
        if last.action.kind is ActionKind.QUERY:
            found = render_passages(last.passages)
            return (*context, environment_segment(f"\n<retrieval>\n{found}\n</retrieval>\n"))
        return context

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        """A query, sub-answer or answer in its turn, or malformed."""
        blocks = read_blocks(text, _TAGS)
        if isinstance(blocks, str):
            return malformed(text, blocks)
        if len(blocks) != 2 or blocks[0].tag != "step" or blocks[1].tag not in _KINDS:
            return malformed(text, "expected <step> and then one of <subquery>, <subanswer>, <answer>")
        thought, decision = blocks
        if not decision.content:
            return malformed(text, f"empty <{decision.tag}>")
        kind = _KINDS[decision.tag]
        awaits_sub_answer = bool(trajectory.steps) and trajectory.steps[-1].action.kind is ActionKind.QUERY
        if awaits_sub_answer and kind is not ActionKind.SUB_ANSWER:
            return malformed(text, f"<{decision.tag}> where the <subanswer> to the last query is due")
        if not awaits_sub_answer and kind is ActionKind.SUB_ANSWER:
            return malformed(text, "<subanswer> without a query before it")
        return Action(kind, decision.content, thought.content)

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """Thought and decision in their tags."""
        thought = write_block("step", action.thought, _TAGS)
        return thought + write_block(_TAG_OF[action.kind], action.content, _TAGS)


class ProRAGBrief(ProRAG):
    """The same without instructions, for a model that has learnt the format: shorter transcripts, faster training."""

    name: ClassVar[str] = "prorag-brief"
    summary: ClassVar[str] = "prorag without instructions, for a model trained on its format"
    prompt: ClassVar[str] = "Question: {question}\n"
