"""The prompts of LLM judges: the question, the history, and the candidate steps, as one text.

In: a trajectory and candidates for its next step. Out: prompts that ask for the JSON forms of `verdicts.py`. Text of
the policy and retrieved text is data: it cannot forge the tags around it (`neutralize`), cannot start a new line, and
the judge is instructed not to follow it. Long histories are truncated on the left, long steps on the right.

The texts (`prompts.yaml`) are part of the experiment: changing a word changes results and invalidates cached responses.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from stepladder.agents.base import neutralize, one_line, render_passages
from stepladder.core.io.yaml_tables import read_table
from stepladder.core.trace import Action, ActionKind, Node, Trajectory

#: Maximum characters of a thought or an action.
FIELD_LIMIT = 2_000
#: Maximum characters of the problem in a repair prompt.
PROBLEM_LIMIT = 300

_TEXTS: dict[str, str] = read_table(Path(__file__).with_suffix(".yaml"))
_REPLY = _TEXTS["reply"]


def letters(count: int) -> list[str]:
    """Letters that name the candidates.

    >>> letters(3), letters(28)[-2:]
    (['A', 'B', 'C'], ['A1', 'B1'])
    """
    return [chr(ord("A") + index % 26) + (str(index // 26) if index >= 26 else "") for index in range(count)]


def order_prompt(mode: str, state: Trajectory, candidates: Mapping[str, Node], limit: int) -> str:
    """Asks for the best and the worst candidate by letter, or neither (`choice`), or for all in order (`ranking`).

    `limit`: maximum characters of history.
    """
    listed = [_candidate(*each, trials=mode == "choice") for each in candidates.items()]
    return _prompt(mode, state, listed, limit)


def score_prompt(state: Trajectory, action: Action, limit: int) -> str:
    """Asks for a score of one step. It depends on the steps alone, so equal steps give equal prompts."""
    candidate = f"<candidate>\n{_action(action)}\n</candidate>"
    return _prompt("score", state, [candidate], limit)


def repair_prompt(problem: str) -> str:
    """Asks again after a reply that could not be parsed."""
    return f"That reply cannot be used: {neutralize(problem)[:PROBLEM_LIMIT]}. {_REPLY} the one asked for above."


def _prompt(mode: str, state: Trajectory, candidates: Sequence[str], limit: int) -> str:
    question = f"<question>\n{_line(state.question.text)}\n</question>"
    history = f"<history>\n{_history(state, limit)}\n</history>"
    form = _TEXTS[f"{mode}_form"].format(count=len(candidates))
    return "\n\n".join([_TEXTS["setting"], _TEXTS[mode], question, history, *candidates, f"{_REPLY}\n{form}"])


def _history(state: Trajectory, limit: int) -> str:
    """The steps so far, truncated on the left because the newest matter most."""
    parts = [f"Given:\n{render_passages(state.given)}"] if state.given else []
    for number, step in enumerate(state.steps, start=1):
        parts.append(f"Step {number}\n{_action(step.action)}")
        if step.action.kind is ActionKind.QUERY:
            parts.append(f"Found:\n{render_passages(step.passages)}")
    text = "\n".join(parts) or "Nothing yet: this is the first step."
    return text if len(text) <= limit else f"(earlier text left out) {text[len(text) - limit :]}"


def _candidate(letter: str, node: Node, *, trials: bool) -> str:
    assert node.step is not None  # only the root has no step
    tried = f' Q="{node.value:.2f}" N="{node.visits}"' if trials else ""
    return f'<candidate letter="{letter}"{tried}>\n{_action(node.step.action)}\n</candidate>'


_NAMES = {
    ActionKind.QUERY: "Search query",
    ActionKind.EVIDENCE: "Evidence",
    ActionKind.SUB_ANSWER: "Sub-answer",
    ActionKind.ANSWER: "Final answer",
    ActionKind.MALFORMED: "Not in the assistant's format",
}


def _action(action: Action) -> str:
    thought = f"Thought: {_line(action.thought)}\n" if action.thought else ""
    return f"{thought}{_NAMES[action.kind]}: {_line(action.content)}"


def _line(text: str) -> str:
    """Text as one line without markup, truncated."""
    line = one_line(text)
    return line if len(line) <= FIELD_LIMIT else f"{line[:FIELD_LIMIT]} (cut off)"
