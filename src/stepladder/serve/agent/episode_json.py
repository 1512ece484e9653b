"""An episode as JSON data, with citations, for HTTP and MCP clients. Pure functions.

In: steps, trajectories. Out: plain data. Passages and generated text are only ever put into strings.
"""

import math
from collections.abc import Iterable
from typing import Any

from stepladder.agents.base import neutralize
from stepladder.core.answer_metrics import covers, normalize
from stepladder.core.trace import ActionKind, Passage, Step, StopReason, Trajectory

#: Answers that passages contain by chance.
_UNCITABLE = frozenset({"", "yes", "no", "unknown", "noanswer"})
#: Reasons given in place of an answer.
_NO_ANSWER = {
    StopReason.MALFORMED: "the model's output did not match the agent's format",
    StopReason.STEP_LIMIT: "the step limit was reached",
    StopReason.TOKEN_LIMIT: "a step reached its token limit",
    StopReason.CONTEXT_LIMIT: "the model's context is full",
}
_PREFIXES = {
    ActionKind.QUERY: "Search: ",
    ActionKind.EVIDENCE: "Evidence: ",
    ActionKind.SUB_ANSWER: "Found: ",
}


def answer_text(trajectory: Trajectory) -> str:
    """The answer; or a message that there is none, with the reason."""
    if trajectory.answer is not None:
        return trajectory.answer
    reason = _NO_ANSWER.get(trajectory.stop or StopReason.FAILED, "the agent ended without one")
    return f"No answer: {reason}."


def episode_data(trajectory: Trajectory) -> dict[str, Any]:
    """An episode: stop reason, given passages, steps, citations."""
    return {
        "agent": trajectory.agent,
        "stop": trajectory.stop.value if trajectory.stop else None,
        "seed": trajectory.seed,
        "given": passages_data(trajectory.given),
        "steps": [step_data(step, number) for number, step in enumerate(trajectory.steps, start=1)],
        "citations": cite(trajectory),
    }


def step_data(step: Step, number: int) -> dict[str, Any]:
    """One step; `number` counts from 1."""
    action = step.action
    problem = {"problem": action.problem} if action.problem else {}
    return {
        "number": number,
        "thought": action.thought,
        "action": action.kind.value,
        "content": action.content,
        **problem,
        "passages": passages_data(step.passages),
        "usage": {"read": step.usage.read, "written": step.usage.written},
    }


def passages_data(passages: Iterable[Passage]) -> list[dict[str, Any]]:
    """Passages with their scores, best first. Scores that are not finite become null."""
    return [{"id": each.id, "title": each.title, "text": each.text, "score": _finite(each.score)} for each in passages]


def _finite(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None


def step_text(step: Step) -> str:
    """A step for humans, one line each: the thought, the action, the titles of retrieved passages.

    Without the final answer, which is sent separately. Tags are neutralized, for clients that render them.
    """
    action = step.action
    lines = [action.thought] if action.thought else []
    if action.kind in _PREFIXES:
        lines.append(_PREFIXES[action.kind] + action.content)
    elif action.kind is ActionKind.MALFORMED:
        lines.append(f"Malformed: {action.problem}")
    if action.kind is ActionKind.QUERY:
        lines += [f"- {passage.title or passage.id}" for passage in step.passages] or ["- nothing was found"]
    return "".join(neutralize(" ".join(line.split())) + "\n" for line in lines)


def cite(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The retrieved passages whose title or text contains the answer as whole words, then those with a sub-answer.

    The agent does not report its sources, so a citation only means "this passage contains these words", possibly by
    chance; "yes" and "no" are never cited. `step` and `rank` tell where a passage was retrieved first: the step, from 1
    (0: before the first), and the rank. A passage is cited once, and none without an answer.
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
