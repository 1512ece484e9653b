"""OpenAI's protocol as pure functions: contexts become chat messages, responses become generations or errors."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from stepladder.core.errors import BackendDown, BackendError
from stepladder.core.io.masking import MASK
from stepladder.core.io.reply_size import LongReply
from stepladder.core.io.retries import retry_wait
from stepladder.core.requests import Finish, Generate, Generation, empty_generation
from stepladder.core.trace import UNKNOWN_TOKENS, Author, Segment, Usage
from stepladder.core.unicode import replace_surrogates
from stepladder.engines.base import cut_at_stop
from stepladder.engines.openai.http_client import CallError, HTTPResponse

#: Sent as the user when the assistant had the last turn: chat models reply, they do not continue their own message.
CONTINUE_PROMPT = "Go on with the next step."
#: OpenAI accepts at most this many stop strings; the engine checks for the others itself.
MAX_STOPS = 4

#: What to do about a server without grammars.
NO_GRAMMAR = (
    "Set --grammar (in a recipe server.grammar) to the kind of server (vllm, vllm<0.12, sglang, llama.cpp), or use "
    "format: lenient"
)

#: What to do about a model without a chat template, and about a slow server. Ends of error messages.
TEMPLATE_REMEDY = (
    ". The model's chat template is missing or rejects the messages: use --api completions (in a recipe server.api), "
    "or start the server with another template"
)
SLOW_REMEDY = (
    ". A slow server needs fewer calls at once (--concurrency 1) or a longer timeout (--timeout; in a recipe "
    "server.timeout)"
)

#: More tokens than any model reads or writes in one call.
MAX_COUNT = 100_000_000

_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum (model|input) length|max_model_len|max_total_tokens"
    r"|(prompt|input) is too long|inputs.? tokens"
)
_UNSUPPORTED = re.compile(r"unsupported|not supported|does not support|must be 1\b|only .{0,20}\b1\b", re.IGNORECASE)

_TEMPLATE = re.compile(r"chat.?template|jinja|system role|conversation roles", re.IGNORECASE)

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


def samples_of_one_context(requests: Sequence[Generate], most: int) -> list[list[int]]:
    """Positions of the requests, grouped into calls: those of a call differ by their seed only, at most `most`."""
    groups: dict[Any, list[int]] = {}
    contexts = {id(request.context): request.context for request in requests}
    if len(contexts) > 1:  # else they are samples of one state: a context is slow to hash
        equal: dict[Any, int] = {}
        names = {name: equal.setdefault(context, name) for name, context in contexts.items()}
    else:
        names = {name: name for name in contexts}
    for index, request in enumerate(requests):
        alone = most < 2 or len(requests) < 2 or request.sampling.temperature == 0  # greedy samples are all equal
        same = names[id(request.context)], request.stop, request.sampling, request.grammar
        groups.setdefault(index if alone else same, []).append(index)
    return [group[start : start + most] for group in groups.values() for start in range(0, len(group), most)]


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A response with another status than 200."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    #: The body as text, and the fields of its error object.
    text: str
    message: str
    code: str
    kind: str
    parameter: str

    @classmethod
    def of(cls, response: HTTPResponse) -> "RefusedCall":
        """The refusal in a response."""
        text = response.body.decode("utf-8", "replace")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = text
        error = found.get("error", found) if isinstance(found, dict) else found
        fields = error if isinstance(error, dict) else {}
        message = replace_surrogates(str(fields.get("message") or error or "no message"))
        code, kind, parameter = (str(fields.get(name) or "") for name in ("code", "type", "param"))
        return cls(response.status, response.headers, response.body, text, message, code, kind, parameter)

    def rejects(self, parameter: str) -> bool:
        """Whether the server does not support this parameter."""
        return self.names(parameter) and bool(_UNSUPPORTED.search(f"{self.code} {self.text}"))

    def names(self, parameter: str) -> bool:
        """Whether the error is about this parameter."""
        return self.parameter == parameter or bool(re.search(rf"\\?['\"`]{parameter}\\?['\"`]", self.text))

    @property
    def wants_other_limit(self) -> bool:
        """Whether the server rejected `max_tokens`: newer OpenAI models have another name for it."""
        return self.status == 400 and self.rejects("max_tokens") and "max_completion_tokens" in self.text

    def samples_left(self, requested: int) -> int | None:
        """How many samples to ask for if the server refuses so many in one call (`n`); None if that is not the reason.

        llama.cpp takes as many as it has slots.
        """
        if self.status not in (400, 422) or requested < 2:
            return None
        if self.rejects("n") or "one completion choice" in self.message.lower():
            return 1
        return requested // 2 if self.names("n") else None

    def hopeless(self, url: str, detail: str, api: str, *, grammar: bool, advice: str) -> str:
        """Why no request can succeed at this server, and what to do; empty if others may. `advice`: about keys."""
        status = self.status
        if status in (401, 403):
            return f"{url} rejected the key ({status}: {detail}).{advice}"
        if status == 404:
            return (
                f"{url} has no {api} (404: {detail}). Compare the model name with {url}/models; its URL usually ends "
                "in /v1."
            )
        if 300 <= status < 400:
            target = self.headers.get("location", "an unknown place")
            return f"{url} redirects to {target} ({status}), which is not followed. Correct the URL."
        if self.code == "insufficient_quota":
            return f"the account at {url} has no credit left ({status}: {detail})."
        if status in (400, 422) and grammar and self.code != "content_filter":
            return f"{url} refuses the grammar of format: constrained ({status}: {detail}). {NO_GRAMMAR}"
        refused = [name for name in ("temperature", "top_p", "seed", "stop") if self.rejects(name)]
        if status in (400, 413, 422) and refused:
            return f"the {api} at {url} does not accept {refused[0]!r} ({status}: {detail}). Choose another model."
        return ""

    @property
    def rejects_template(self) -> bool:
        """Whether the model has no chat template, or one that does not take the messages."""
        return self.status in (400, 422, 500) and bool(_TEMPLATE.search(self.message))

    @property
    def remedy(self) -> str:
        """What to do about it, as the end of an error message; empty if that is unknown."""
        return TEMPLATE_REMEDY if self.rejects_template else ""

    @property
    def is_too_long(self) -> bool:
        """Whether the context does not fit into the model's window."""
        return bool(_TOO_LONG.search(f"{self.message} {self.code} {self.kind}".lower()))


#: Why a call has no completion.
FailedCall = RefusedCall | CallError | TimeoutError | LongReply


def retry_delay(error: FailedCall, attempts: int, backoff: float) -> tuple[bool, float | None]:
    """Whether the problem may pass, and the seconds to wait before the next attempt; None if that is useless."""
    if isinstance(error, LongReply):  # the next one would be as long, and may be billed as well
        return False, None
    if not isinstance(error, RefusedCall):
        return True, retry_wait(attempts, {}, backoff)
    lasting = error.code == "insufficient_quota" or error.rejects_template
    if lasting or (error.status not in (408, 429) and error.status < 500):
        return False, None
    return True, retry_wait(attempts, error.headers, backoff)


def read_choices(
    requests: Sequence[Generate],
    body: bytes,
    *,
    chat: bool,
    context_limit: int | None,
    redact: Callable[[str], str],
    key: str = "",
) -> list[Generation | BackendError] | BackendError:
    """The choices of a completion, one per request; fewer if the server returned fewer. Or why it cannot be used.

    Errors are the end of a sentence that begins with the server. The prompt of several samples was read once: the first
    one has the tokens read, and the tokens written are divided by the length of the texts. `key`: removed from the
    texts; a server may repeat it, and replies are stored.
    """
    try:
        reply = json.loads(body.decode("utf-8", "replace"))
        choices = [_Choice.of(choice, key, chat=chat) for choice in reply["choices"][: len(requests)]]
        usage = usage_of(reply.get("usage"))
        if not choices:
            raise IndexError("list index out of range")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        start = redact(body.decode("utf-8", "replace"))[:200]
        return BackendError(
            f"returned an invalid completion ({type(error).__name__}: {redact(str(error))}): {start!r}. The URL of an "
            "OpenAI-compatible server usually ends in /v1"
        )
    if context_limit is not None and usage.read > context_limit:
        return [replace(empty_generation(requests[0].context), usage=usage)] * len(choices)
    written = divided(usage.written, [len(choice.content or "") for choice in choices])
    read = [usage.read] + [0] * (len(choices) - 1)
    return [choice.reply(request, Usage(*counts)) for request, choice, *counts in zip(requests, choices, read, written)]


@dataclass(frozen=True, slots=True)
class _Choice:
    content: Any
    finish: Any
    refusal: Any
    fields: Mapping[str, object]

    @classmethod
    def of(cls, choice: Any, key: str, *, chat: bool) -> "_Choice":
        content = choice["message"]["content"] if chat else choice["text"]
        content = content.replace(key, MASK) if key and isinstance(content, str) else content
        refusal = choice["message"].get("refusal") if chat else None
        return cls(content, choice["finish_reason"], refusal, choice)

    def reply(self, request: Generate, usage: Usage) -> Generation | BackendError:
        if self.finish == "content_filter":
            return BackendError("withheld the reply (content filter)")
        if not isinstance(self.content, str):
            return BackendError(
                f"returned no text (content is {self.content!r}, finish_reason {self.finish!r}"
                + (f", refusal {self.refusal!r})" if self.refusal else "). A reasoning model may need more max_tokens.")
            )
        if self.finish not in ("stop", "length"):
            return BackendError(f"returned finish_reason {self.finish!r}; expected stop or length")
        text, finish = finished_text(replace_surrogates(self.content), request.stop, self.finish, self.fields)
        if finish is Finish.END and request.grammar is not None:
            text, finish = _within_grammar(text, request.stop, request.grammar.regex())
        written = Segment(Author.POLICY, text, vocabulary=UNKNOWN_TOKENS)
        return Generation(request.context, written, text, finish, usage)


def divided(total: int, weights: Sequence[int]) -> list[int]:
    """A whole number in parts proportional to the weights.

    >>> divided(10, [1, 1, 1]), divided(7, [0, 0])
    ([3, 3, 4], [3, 4])
    """
    shares = weights if any(weights) else [1] * len(weights)
    parts, before, passed = [], 0, 0
    for share in shares:
        passed += share
        now = total * passed // sum(shares)
        parts.append(now - before)
        before = now
    return parts


def host_of(url: str) -> str:
    """The host of a URL; raises `BackendDown` for an invalid one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query
        str(parts.hostname).encode("idna")
    except ValueError:  # an invalid port, or no name of a host
        usable = False
    if not usable:
        raise BackendDown(
            f"the server's URL is {url!r}; expected one such as http://localhost:8000/v1, without a query. The key is "
            "read from the environment variable OPENAI_API_KEY"
        )
    return str(parts.hostname)


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


def _within_grammar(text: str, stops: Sequence[str], regex: str) -> tuple[str, Finish]:
    """A text that has ended, with the stop string that a server removed without saying so, if the grammar shows it."""
    if re.fullmatch(regex, text):
        return text, Finish.END
    whole = [text + stop for stop in stops if re.fullmatch(regex, text + stop)]
    return (whole[0], Finish.STOP) if len(whole) == 1 else (text, Finish.END)


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
