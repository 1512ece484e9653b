"""OpenAI's protocol as data: contexts become messages, replies become text with its end, headers become waits.

Pure functions, used by `openai.py`.
"""

import random
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from stepladder.engines.base import cut_at_stop
from stepladder.request import Finish
from stepladder.trace import Author, Segment, Usage

#: What the user says when the last word was the assistant's: chat models answer, they do not write on.
GO_ON = "Go on with the next step."
#: OpenAI accepts no more stop strings than these; the engine itself watches for the others.
MOST_STOPS = 4
#: The longest wait before a retry, in seconds. A server that asks for more is not waited for.
LONGEST_WAIT = 120.0

_ROLES = {Author.PROMPT: "user", Author.POLICY: "assistant", Author.ENVIRONMENT: "user"}
_CLOSING_TAG = re.compile(r"</([^<>/\s]+)>")


def chat_messages(context: Sequence[Segment]) -> list[Any]:
    """A context as a chat: the policy is the assistant, prompt and environment are the user."""
    messages: list[dict[str, str]] = []
    for segment in context:
        role, text = _ROLES[segment.author], well_formed(segment.text)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += text
        elif text:
            messages.append({"role": role, "content": text})
    if messages and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": GO_ON})
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
    told = [choice[field] for field in ("stop_reason", "matched_stop") if field in choice]
    if told:
        cut_off = {stop for stop in stops if stop in told}
    else:
        tags = {stop: match[1] for stop in stops[:MOST_STOPS] if (match := _CLOSING_TAG.fullmatch(stop))}
        cut_off = {stop for stop, tag in tags.items() if f"<{tag}>" in text}
    return (text + cut_off.pop(), Finish.STOP) if len(cut_off) == 1 else (text, Finish.END)


def retry_wait(tries: int, headers: Mapping[str, str], backoff: float) -> float | None:
    """Seconds to wait after so many tries: what the server asks for, else exponential with jitter.

    None when the server asks for more than `LONGEST_WAIT`.

    >>> retry_wait(3, {"retry-after": "1.5"}, backoff=1.0)
    1.5
    """
    asked = _seconds(headers.get("retry-after"))
    if asked is not None:
        return asked if asked <= LONGEST_WAIT else None
    # The jitter is deliberately not seeded: clients that failed together should not come back together.
    return min(backoff * 2.0 ** (tries - 1), LONGEST_WAIT) * random.uniform(0.5, 1.0)


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After header, which holds seconds or a date; None when absent or neither."""
    if retry_after is None:
        return None
    if re.fullmatch(r"\d+(\.\d+)?", retry_after.strip()):
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def usage_of(counts: object) -> Usage:
    """The tokens a server counted; 0 for what it does not tell."""
    told = counts if isinstance(counts, dict) else {}
    read, written = told.get("prompt_tokens"), told.get("completion_tokens")
    return Usage(read if isinstance(read, int) else 0, written if isinstance(written, int) else 0)


def well_formed(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
