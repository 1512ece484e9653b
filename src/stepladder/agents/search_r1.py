"""Search-R1: think, search, think about what was found, search again; finally answer.

One growing text. With T a thought, S a search, I what was found and A the answer, a valid one is (T S I)* T A:

    <think>thought</think><search>query</search>
    <information>
    [1] Title: text
    </information>
    <think>thought</think><answer>a</answer>
"""

from typing import ClassVar

from stepladder.agents.transcript import Transcript
from stepladder.core.trace import ActionKind

PROMPT = """Answer the question. Think whenever there is something new to think about: <think>thought</think>.
After a thought, search for what is missing, as often as need be: <search>what to search for</search>. What is found
follows in <information>. When nothing is missing any more, answer with a short phrase: <answer>the answer</answer>.
Question: {question}
"""


class SearchR1(Transcript):
    """`<think>..</think>` followed by `<search>` or `<answer>`."""

    name: ClassVar[str] = "search-r1"
    summary: ClassVar[str] = "thinks and searches in turn, then answers"
    prompt: ClassVar[str] = PROMPT
    thought_tag: ClassVar[str] = "think"
    found_tag: ClassVar[str] = "information"
    tag_of: ClassVar[dict[ActionKind, str]] = {ActionKind.QUERY: "search", ActionKind.ANSWER: "answer"}
    kinds: ClassVar[frozenset[ActionKind]] = frozenset(tag_of)
    stops: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")


class SearchR1Brief(SearchR1):
    """The same without instructions, for a model that has learnt the format: shorter transcripts, faster training."""

    name: ClassVar[str] = "search-r1-brief"
    summary: ClassVar[str] = "search-r1 without instructions, for a model trained on its format"
    prompt: ClassVar[str] = "Question: {question}\n"
