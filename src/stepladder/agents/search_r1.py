"""Search-R1: think, search and read the results; repeat, then answer.

The context is one growing transcript. With T a thought, S a search, I the retrieved passages and A the answer, a valid
transcript is (T S I)* T A:

    <think>thought</think><search>query</search>
    <information>
    [1] Title: text
    </information>
    <think>thought</think><answer>a</answer>
"""

from typing import ClassVar

from stepladder.agents.base import brief
from stepladder.agents.tags import TranscriptAgent
from stepladder.core.trace import ActionKind

PROMPT = """Answer the question. Think whenever there is something new to think about: <think>thought</think>.
After a thought, search for what is missing, as often as need be: <search>what to search for</search>. What is found
follows in <information>. When nothing is missing any more, answer with a short phrase: <answer>the answer</answer>.
Question: {question}
"""


class SearchR1(TranscriptAgent):
    """`<think>..</think>` followed by `<search>` or `<answer>`."""

    name: ClassVar[str] = "search-r1"
    summary: ClassVar[str] = "alternates thoughts and searches, then answers"
    prompt: ClassVar[str] = PROMPT
    thought_tag: ClassVar[str] = "think"
    passages_tag: ClassVar[str] = "information"
    tag_of: ClassVar[dict[ActionKind, str]] = {ActionKind.QUERY: "search", ActionKind.ANSWER: "answer"}


SearchR1Brief = brief(SearchR1, prompt="Question: {question}\n")
