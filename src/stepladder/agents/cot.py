"""Chain of thought: one thought, then the answer, without searching."""

from typing import ClassVar

from stepladder.agents.base import PROMPTS
from stepladder.agents.direct import Direct


class CoT(Direct):
    """`<step>thought</step><answer>a</answer>`"""

    name: ClassVar[str] = "cot"
    summary: ClassVar[str] = "thinks once, then answers, without searching"
    prompt: ClassVar[str] = PROMPTS["cot"]
    tags: ClassVar[tuple[str, ...]] = ("step", "answer")
    thinks: ClassVar[bool] = True
    turn_opening: ClassVar[str] = "<step>"
    thought_tag: ClassVar[str] = "step"
