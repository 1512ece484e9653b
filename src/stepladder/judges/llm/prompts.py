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
from stepladder.core.trace import Action, ActionKind, Node, Question, Trajectory

#: Maximum characters of a thought or an action.
FIELD_LIMIT = 2_000
#: Maximum characters of the passages that a candidate found.
FOUND_LIMIT = 4_000
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

    `limit`: maximum characters of history. In mode `choice` a query is shown with the passages that it found, and with
    the results of its trials, as ProRAG's judge sees it; `ranking` is about actions before they are carried out.
    """
    listed = [_candidate(*each, carried_out=mode == "choice") for each in candidates.items()]
    return _prompt(mode, state, listed, limit)


def score_prompt(state: Trajectory, action: Action, limit: int) -> str:
    """Asks for a score of one step. It depends on the steps alone, so equal steps give equal prompts."""
    candidate = f"<candidate>\n{_action(action)}\n</candidate>"
    return _prompt("score", state, [candidate], limit)


def value_prompt(trajectory: Trajectory, limit: int) -> str:
    """Asks for the value of a whole reasoning, its newest step included, given the golden answer (ReasonRAG)."""
    golden = f"<golden_answer>\n{' / '.join(map(_line, trajectory.question.shown_answers))}\n</golden_answer>"
    return _prompt("value", trajectory, [], limit, golden)


def answer_prompt(question: Question, answer: str) -> str:
    """Asks whether an answer is right."""
    forms = [" / ".join(each) for each in question.items] or question.shown_answers
    accepted = "\n".join(map(_line, forms))
    parts = (("question", _question(question)), ("accepted_answers", accepted), ("answer", _line(answer)))
    tagged = [f"<{tag}>\n{text}\n</{tag}>" for tag, text in parts]
    rule = [note] if (note := _TEXTS.get(f"answer_{question.answer_kind.value}")) else []
    return "\n\n".join([_TEXTS["answer"], *rule, *tagged, f"{_REPLY}\n{_TEXTS['answer_form'].format()}"])


def repair_prompt(problem: str) -> str:
    """Asks again after a reply that could not be parsed."""
    return f"That reply cannot be used: {neutralize(problem)[:PROBLEM_LIMIT]}. {_REPLY} the one asked for above."


def _prompt(mode: str, state: Trajectory, candidates: Sequence[str], limit: int, golden: str = "") -> str:
    question = f"<question>\n{_question(state.question)}\n</question>" + (f"\n\n{golden}" if golden else "")
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


def _candidate(letter: str, node: Node, *, carried_out: bool) -> str:
    assert node.step is not None  # only the root has no step
    tried = f' Q="{node.value:.2f}" N="{node.visits}"' if carried_out else ""
    found = ""
    if carried_out and node.step.passages:
        shown = render_passages(node.step.passages)
        found = f"\nFound:\n{shown if len(shown) <= FOUND_LIMIT else f'{shown[:FOUND_LIMIT]} (cut off)'}"
    return f'<candidate letter="{letter}"{tried}>\n{_action(node.step.action)}{found}\n</candidate>'


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


def _question(question: Question) -> str:
    """The question, and each of its options on a line."""
    options = (f"{letter}. {_line(option)}" for letter, option in zip(question.letters, question.options))
    return "\n".join([_line(question.text), *options])


def _line(text: str) -> str:
    """Text as one line without markup, truncated."""
    line = one_line(text)
    return line if len(line) <= FIELD_LIMIT else f"{line[:FIELD_LIMIT]} (cut off)"
