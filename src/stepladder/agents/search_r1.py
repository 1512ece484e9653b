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

from stepladder.agents.base import PROMPTS, brief
from stepladder.agents.tags import TranscriptAgent
from stepladder.core.trace import ActionKind


class SearchR1(TranscriptAgent):
    """`<think>..</think>` followed by `<search>` or `<answer>`."""

    name: ClassVar[str] = "search-r1"
    summary: ClassVar[str] = "alternates thoughts and searches, then answers"
    prompt: ClassVar[str] = PROMPTS["search-r1"]
    thought_tag: ClassVar[str] = "think"
    passages_tag: ClassVar[str] = "information"
    tag_of: ClassVar[dict[ActionKind, str]] = {ActionKind.QUERY: "search", ActionKind.ANSWER: "answer"}


SearchR1Brief = brief(SearchR1, prompt=PROMPTS["search-r1-brief"])
