"""A user's own prompt and hint for an agent: read from files and checked before anything is generated.

    prompt   text with {question} (and {passages} where the agent retrieves first), or, for an agent with a prompt per
             state, a YAML file with one text per state
    hint     what the environment says after a slip; it must not be an action itself

Texts that a published checkpoint was trained on are used this way.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from stepladder.agents.base import Agent
from stepladder.agents.direct import Direct
from stepladder.agents.prompted import PromptedAgent, State
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Action, ActionKind, Author, Question, Segment, Step, Trajectory

_SLOTS = ("question", "history", "query", "passages")
#: The slots that a prompt cannot do without, by state.
_REQUIRED: dict[str, tuple[str, ...]] = {
    State.BEGIN_REASONING: ("question",),
    State.DOCUMENT_ANALYSIS: ("question", "passages"),
    State.REASONING: ("question", "history"),
    State.ANSWER_GENERATION: ("question", "history"),
}
#: Tags that are only named, as in "between <search> and </search>".
_NAMED_TAGS = re.compile(r"<(\w+)>\s*(?:and|\.\.\.|…)?\s*</\1>")
_MAX_CHARACTERS = 100_000


def with_texts(agent: Agent, prompt: Path | None, hint: Path | None) -> Agent:
    """The agent with a prompt and a hint from files; None keeps its own."""
    if hint is not None:
        agent = agent.playing(agent.play, hint=_checked_hint(agent, hint))
    if prompt is not None:
        own = _checked_prompts(prompt) if isinstance(agent, PromptedAgent) else _checked_prompt(agent, prompt)
        agent = agent.playing(agent.play)
        vars(agent)["prompts" if isinstance(agent, PromptedAgent) else "prompt"] = own
    return agent


def _checked_prompt(agent: Agent, path: Path) -> str:
    if not hasattr(agent, "prompt"):
        raise StepladderError(f"prompt: the agent '{agent.name}' has no prompt that a file could replace")
    retrieves_first = isinstance(agent, Direct) and agent.searches
    text = _read(path, "prompt")
    _check_slots(text, ("question", "passages") if retrieves_first else ("question",), f"prompt {path}")
    return text


def _checked_prompts(path: Path) -> Mapping[str, str]:
    states = ", ".join(State)
    try:
        texts: Any = yaml.safe_load(_read(path, "prompt"))
    except yaml.YAMLError as error:
        raise StepladderError(f"prompt {path}: expected YAML with {states}; {' '.join(str(error).split())}") from error
    if not isinstance(texts, dict) or set(texts) != set(State) or not all(isinstance(t, str) for t in texts.values()):
        found = ", ".join(map(str, texts)) if isinstance(texts, dict) else "plain text"
        raise StepladderError(f"prompt {path}: expected one text for each of {states}; found {found or 'nothing'}")
    for state, text in texts.items():
        _check_slots(text, _REQUIRED[state], f"prompt {path}: {state}")
    return texts


def _check_slots(text: str, required: tuple[str, ...], where: str) -> None:
    marks = {slot: f"\x00{slot}\x00" for slot in _SLOTS}
    try:
        shown = text.format(**marks)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        known = ", ".join(f"{{{slot}}}" for slot in _SLOTS)
        raise StepladderError(
            f"{where}: unknown placeholder or single brace ({error}); known: {known}. Double other braces: {{{{ }}}}"
        ) from error
    for slot in required:
        if marks[slot] not in shown:
            raise StepladderError(f"{where}: the placeholder {{{slot}}} is missing; write it where the {slot} goes")


def _checked_hint(agent: Agent, path: Path) -> str:
    text = _read(path, "hint").strip()
    if not text:
        raise StepladderError(f"hint {path}: the file is empty; write what the agent is told after a slip")
    plain = _NAMED_TAGS.sub("", text)
    for state in _states(agent):
        strict = agent.parse(plain, state)
        found = agent.find_action(plain, state) if strict.kind is ActionKind.MALFORMED else strict
        if found is not None:
            raise StepladderError(
                f"hint {path}: it would be read as an action itself ({found.kind}: {found.content[:40]!r}); name the "
                "tags without content, as in: between <answer> and </answer>"
            )
    return text


def _states(agent: Agent) -> tuple[Trajectory, ...]:
    """A state before the first step and, if the agent searches, one after a query."""
    start = Trajectory(Question("hint", "?", ()), agent.name)
    if ActionKind.QUERY not in agent.kinds:
        return (start,)
    step = Step((Segment(Author.PROMPT, "?"),), Segment(Author.POLICY, "?"), Action(ActionKind.QUERY, "?"))
    return start, start.extend(step)


def _read(path: Path, what: str) -> str:
    try:
        if path.exists() and not path.is_file():
            raise StepladderError(f"{what} {path}: not a regular file")
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise StepladderError(f"{what} {path}: expected UTF-8 text ({error.reason})") from error
    except OSError as error:
        raise StepladderError(f"{what} {path} cannot be read: {error.strerror or error}") from error
    if len(text) > _MAX_CHARACTERS:
        raise StepladderError(f"{what} {path}: expected at most {_MAX_CHARACTERS:,} characters")
    return text
