"""Citations: the passages that contain an answer.

In: a finished trajectory. Out: citations as JSON data, best first. Of the retrieved passages, those are cited whose
title or text contains the final answer as whole words; then those that contain a sub-answer. The agent does not report
its sources, so a citation only means "this passage contains these words", possibly by chance; "yes" and "no" are never
cited. A passage is cited once.
"""

from typing import Any

from stepladder.core.answer_metrics import covers, normalize
from stepladder.core.trace import ActionKind, Trajectory

#: Answers that passages contain by chance.
_UNCITABLE = frozenset({"", "yes", "no", "unknown", "noanswer"})


def cite(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The passages that contain the answer or a sub-answer, in that order; none without an answer.

    `step` and `rank` tell where a passage was retrieved first: the step, from 1 (0: before the first), and the rank.
    """
    if trajectory.answer is None:
        return []
    sub_answers = [step.action.content for step in trajectory.steps if step.action.kind is ActionKind.SUB_ANSWER]
    retrieved = [
        (step, rank, passage)
        for step, passages in enumerate([trajectory.given, *(step.passages for step in trajectory.steps)])
        for rank, passage in enumerate(passages, start=1)
    ]
    cited: dict[str, dict[str, Any]] = {}
    for of, text in [("answer", trajectory.answer), *(("sub_answer", each) for each in sub_answers)]:
        if normalize(text) in _UNCITABLE:
            continue
        for step, rank, passage in retrieved:
            if passage.id not in cited and covers(f"{passage.title}. {passage.text}", text):
                data = {"passage_id": passage.id, "title": passage.title, "states": text, "of": of}
                cited[passage.id] = {**data, "step": step, "rank": rank}
    return list(cited.values())
