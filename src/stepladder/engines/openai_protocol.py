"""OpenAI's protocol as pure functions: contexts become chat messages, completions become text and a finish reason."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stepladder.core.requests import Finish
from stepladder.core.trace import Author, Segment, Usage
from stepladder.core.unicode import replace_surrogates
from stepladder.engines.base import cut_at_stop

#: Sent as the user when the assistant had the last turn: chat models reply, they do not continue their own message.
CONTINUE_PROMPT = "Go on with the next step."
#: OpenAI accepts at most this many stop strings; the engine checks for the others itself.
MAX_STOPS = 4

#: More tokens than any model reads or writes in one call.
MAX_COUNT = 100_000_000

_ROLES = {Author.PROMPT: "user", Author.POLICY: "assistant", Author.ENVIRONMENT: "user"}
_CLOSING_TAG = re.compile(r"</([^<>/\s]+)>")


def chat_messages(context: Sequence[Segment]) -> list[Any]:
    """A context as chat messages: the policy is the assistant; prompt and environment are the user."""
    messages: list[dict[str, str]] = []
    for segment in context:
        role, text = _ROLES[segment.author], replace_surrogates(segment.text)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += text
        elif text:
            messages.append({"role": role, "content": text})
    if messages and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": CONTINUE_PROMPT})
    return messages


def finished_text(text: str, stops: Sequence[str], finish: str, choice: Mapping[str, object]) -> tuple[str, Finish]:
    """The text up to and including its first stop string, and the finish reason.

    Servers strip the stop string. vLLM (`stop_reason`) and SGLang (`matched_stop`) report it, or null if the model
    ended its turn. For other servers, a closing tag is restored if it is the only stop string whose opening tag occurs
    in the text.
    """
    text, stopped = cut_at_stop(text, stops)
    if stopped:
        return text, Finish.STOP
    if finish == "length":
        return text, Finish.LENGTH
    reported = [choice[field] for field in ("stop_reason", "matched_stop") if field in choice]
    if reported:
        removed = {stop for stop in stops if stop in reported}
    else:
        tags = {stop: match[1] for stop in stops[:MAX_STOPS] if (match := _CLOSING_TAG.fullmatch(stop))}
        removed = {stop for stop, tag in tags.items() if f"<{tag}>" in text}
    return (text + removed.pop(), Finish.STOP) if len(removed) == 1 else (text, Finish.END)


def usage_of(counts: object) -> Usage:
    """The token counts reported by a server; 0 for missing ones and for what is no count.

    Some servers report the tokens of reasoning in the total only.

    >>> usage_of({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 61}), usage_of({"prompt_tokens": True})
    (Usage(read=9, written=52), Usage(read=0, written=0))
    """
    reported = counts if isinstance(counts, dict) else {}
    prompt, completion, total = (_count(reported.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
    return Usage(prompt, max(completion, total - prompt) if prompt and completion else completion)


def _count(value: object) -> int:
    # Not `isinstance`: a bool is an int.
    return value if type(value) is int and 0 <= value <= MAX_COUNT else 0
