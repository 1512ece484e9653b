"""Chain of thought: one thought, then the answer, without searching."""

from typing import ClassVar

from stepladder.agents.direct import Direct

PROMPT = """Think the question through: <step>thought</step>. Then answer with a short phrase: <answer>it</answer>.
Question: {question}
"""


class CoT(Direct):
    """`<step>thought</step><answer>a</answer>`"""

    name: ClassVar[str] = "cot"
    summary: ClassVar[str] = "thinks once, then answers, without searching"
    prompt: ClassVar[str] = PROMPT
    tags: ClassVar[tuple[str, ...]] = ("step", "answer")
