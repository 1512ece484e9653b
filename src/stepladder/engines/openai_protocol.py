"""OpenAI's protocol as data: contexts become messages, replies become text with its end.

Pure functions, used by `openai.py`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stepladder.core.requests import Finish
from stepladder.core.trace import Author, Segment, Usage
from stepladder.core.unicode import replace_surrogates
from stepladder.engines.base import cut_at_stop

#: What the user says when the last word was the assistant's: chat models answer, they do not write on.
CONTINUE_PROMPT = "Go on with the next step."
#: OpenAI accepts no more stop strings than these; the engine itself watches for the others.
MAX_STOPS = 4

_ROLES = {Author.PROMPT: "user", Author.POLICY: "assistant", Author.ENVIRONMENT: "user"}
_CLOSING_TAG = re.compile(r"</([^<>/\s]+)>")


def chat_messages(context: Sequence[Segment]) -> list[Any]:
    """A context as a chat: the policy is the assistant, prompt and environment are the user."""
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
    """The text up to and with its first stop string, and why it ended.

    Servers cut the stop string off. vLLM (`stop_reason`) and SGLang (`matched_stop`) say which it was, null when the
    model ended its turn. Of the others nothing is known but the text: a closing tag is put back when it is the only
    one among the stop strings whose opening tag was written.
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
    """The tokens a server counted; 0 for what it does not tell."""
    reported = counts if isinstance(counts, dict) else {}
    prompt, completion = reported.get("prompt_tokens"), reported.get("completion_tokens")
    return Usage(prompt if isinstance(prompt, int) else 0, completion if isinstance(completion, int) else 0)
