"""Any OpenAI-compatible server: OpenAI itself, vLLM, SGLang, llama.cpp, Ollama, a gateway.

In: `Generate` requests, sent as chat messages (`api="chat"`) or as one prompt (`api="completions"`). Out: in order, a
`Generation` or the `BackendError` of each request; `BackendDown` when no request can succeed. The server returns no
token ids, so the generated segments can be read and scored, but not trained on.

One thread runs an event loop for all calls, so `generate` may be called from several threads and from inside another
event loop. At most `concurrency` calls run at once, including those that wait for a retry.

    with closing(OpenAIEngine("Qwen/Qwen3-8B", "http://localhost:8000/v1")) as engine:
        (reply,) = engine.generate([Generate((Segment(Author.PROMPT, "Who?"),))])

Servers may apply sampling defaults from a model's files (vLLM: top_k, repetition_penalty). Set `extra_body` to override
them.
"""

import asyncio
import json
import math
import os
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ClassVar, Literal, NoReturn
from urllib.parse import urlsplit

import openai

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.io.known_servers import is_stranger, name_servers, server_key, withheld
from stepladder.core.io.masking import MASK, hide, mask, reveal
from stepladder.core.io.reply_size import PLAIN, LongReply, limit_reply
from stepladder.core.io.retries import retry_wait
from stepladder.core.requests import Generate, Generation, empty_generation
from stepladder.core.trace import Author, Segment
from stepladder.core.unicode import replace_surrogates
from stepladder.engines.base import Engine, EngineOptions
from stepladder.engines.openai_protocol import MAX_STOPS, chat_messages, finished_text, usage_of

OPENAI_URL = "https://api.openai.com/v1"
_KEY_VARIABLE = "OPENAI_API_KEY"
#: Attempts for a server that has never responded: it is more likely absent than busy.
FIRST_ATTEMPTS = 3
#: Maximum bytes of a reply.
MAX_REPLY = 8 * 2**20
#: After this many consecutive requests that failed despite all retries, the server is considered down.
MAX_CONSECUTIVE_FAILURES = 10

_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum (model|input) length|max_model_len|max_total_tokens"
    r"|(prompt|input) is too long|inputs.? tokens"
)
_UNSUPPORTED = re.compile(r"unsupported|not supported|does not support", re.IGNORECASE)


#: Whether the newest request of this task has left for the server. One that has not is certainly not billed.
SENT: ContextVar[bool] = ContextVar("sent", default=False)


#: The body of a server's response, or the error.
Response = bytes | openai.APIError | TimeoutError | LongReply


class OpenAIEngine(Engine):
    """A model behind an OpenAI-compatible server."""

    name: ClassVar[str] = "openai"
    max_batch = 1

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api: Literal["chat", "completions"] = "chat",
        api_key: str | None = None,
        concurrency: int = 32,
        timeout: float = 60.0,
        max_retries: int = 5,
        backoff: float = 1.0,
        context_limit: int | None = None,
        extra_body: Mapping[str, object] | None = None,
    ) -> None:
        """`model`: the server's name of the model. `base_url`: the server, unless it is OpenAI's (usually ends in /v1).

        `api_key` defaults to OPENAI_API_KEY; servers other than OpenAI's need none. `timeout` limits one call and
        `backoff` is the delay before the first retry, both in seconds. A context of more than `context_limit` tokens,
        as counted by the server, returns an empty generation: for servers that truncate prompts silently.
        """
        if api not in ("chat", "completions"):
            raise BackendDown(f"api is {api!r}; expected 'chat' or 'completions'")
        if concurrency < 1:
            raise BackendDown(f"concurrency is {concurrency}; expected at least 1")
        if max_retries < 0:
            raise BackendDown(f"max_retries is {max_retries}; expected 0 or more")
        name_servers([OPENAI_URL, os.environ.get("OPENAI_BASE_URL")])
        url = hide(base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL)
        host = _host(url)
        key = (api_key or server_key(_KEY_VARIABLE, url)).strip()
        if not key and host == "api.openai.com":
            raise BackendDown(
                f"{url} needs a key: set the environment variable OPENAI_API_KEY, or name another server (--base-url; "
                "of a judge --judge-url, of a teacher --teacher-url)"
            )
        if not (key.isascii() and key.isprintable()):
            raise BackendDown("the API key contains a line break or a non-ASCII character; copy it again")
        self.model = model
        self.api = api
        self.concurrency = concurrency
        #: Number of retries so far, for progress displays.
        self.retries = 0
        self._timeout, self._max_retries, self._backoff = timeout, max_retries, backoff
        self._context_limit, self._extra_body = context_limit, extra_body
        self._key = key
        self._url = url
        self._max_tokens_name = "max_tokens"
        self._reached = False
        self._consecutive_failures = 0
        hooks = [_trace, *([] if api_key or not is_stranger(_KEY_VARIABLE, url) else [_drop_secrets])]
        self._client = openai.AsyncOpenAI(
            base_url=reveal(url),
            api_key=key or "none",
            max_retries=0,  # retries are done here: counted, cancellable, with delays above the client's 8 seconds
            timeout=openai.Timeout(timeout, connect=min(timeout / 2, 10.0)),
            # A redirect is a second call that nobody has agreed to pay for, maybe at another server.
            http_client=openai.DefaultAsyncHttpxClient(
                follow_redirects=False, headers=PLAIN, event_hooks={"request": hooks, "response": [_limit_size]}
            ),
        )
        endpoint = self._client.chat.completions if api == "chat" else self._client.completions
        self._create: Callable[..., Awaitable[Any]] = endpoint.with_raw_response.create
        self._semaphore = asyncio.Semaphore(concurrency)
        self._lock = threading.Lock()
        self._closed = False
        self._calls: set[Future[list[Generation | BackendError]]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"openai {model}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"OpenAIEngine({self.model!r}, {self._url!r}, api={self.api!r})"

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        """Generate a reply to every request, in order. Calls run concurrently, up to `concurrency`."""
        if not requests:
            return []
        with self._lock:
            if self._closed:
                raise BackendDown(f"{self!r} is closed; create a new engine")
            call = asyncio.run_coroutine_threadsafe(self._complete_all(requests), self._loop)
            self._calls.add(call)
        try:
            return call.result()
        except CancelledError:
            return [BackendError("the call was cancelled") for _ in requests]
        finally:
            call.cancel()  # an interrupted caller leaves no call running
            with self._lock:
                self._calls.discard(call)

    def cancel(self) -> None:
        """Cancel running calls: their requests return a `BackendError`. Later calls work as usual."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def close(self) -> None:
        """Cancel running calls, close the connections and stop the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._shutdown(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- On the event loop ------------------------------------------------------------------------------

    async def _complete_all(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        tasks = [asyncio.ensure_future(self._complete(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # if one raised `BackendDown`, cancel the others
                task.cancel()

    async def _shutdown(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()
        await self._loop.shutdown_default_executor()

    async def _complete(self, request: Generate) -> Generation | BackendError:
        async with self._semaphore:
            attempts, renamed = 0, False
            while True:
                reply = await self._call(request)
                if not renamed and _wants_other_limit(reply):
                    self._max_tokens_name, renamed = "max_completion_tokens", True
                    continue
                attempts += 1
                self._reached |= isinstance(reply, bytes | openai.APIStatusError)
                if isinstance(reply, bytes):
                    self._consecutive_failures = 0
                    return self._parse(request, reply)
                delay = self._retry_delay(reply, attempts)
                max_retries = self._max_retries if self._reached else min(self._max_retries, FIRST_ATTEMPTS - 1)
                if delay is None or attempts > max_retries:
                    verdict = self._classify(request, reply, attempts)
                    self._consecutive_failures += delay is not None
                    if self._consecutive_failures >= MAX_CONSECUTIVE_FAILURES:
                        self._fail(f"{verdict}. {self._consecutive_failures} consecutive requests failed.")
                    return verdict
                self.retries += 1
                await asyncio.sleep(delay)

    async def _call(self, request: Generate) -> Response:
        """The body of the server's response, or the error.

        Errors are returned, not raised, so that no error of ours is chained to one that contains the request's headers.
        """
        payload: dict[str, Any] = {
            "model": self.model,
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "seed": request.seed & 0x7FFFFFFF,  # many servers accept at most 31 bits
            self._max_tokens_name: request.sampling.max_tokens,
            "extra_body": self._extra_body,
        }
        if request.stop:
            payload["stop"] = list(request.stop[:MAX_STOPS])
        if self.api == "chat":
            payload["messages"] = chat_messages(request.context)
        else:
            payload["prompt"] = replace_surrogates("".join(segment.text for segment in request.context))
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._create(**payload)
                return bytes(response.http_response.content)
        except (openai.APIError, TimeoutError, LongReply) as error:
            return error.__cause__ if isinstance(error.__cause__, LongReply) else error

    def _retry_delay(self, error: Exception, attempts: int) -> float | None:
        """Seconds to wait before the next attempt; None if a retry is useless."""
        if isinstance(error, LongReply):  # the next one would be as long, and may be billed as well
            return None
        if not isinstance(error, openai.APIStatusError):
            return retry_wait(attempts, {}, self._backoff)
        if error.code == "insufficient_quota" or (error.status_code not in (408, 429) and error.status_code < 500):
            return None
        return retry_wait(attempts, error.response.headers, self._backoff)

    def _classify(self, request: Generate, error: Exception, attempts: int) -> Generation | BackendError:
        """Map a failure to an empty generation (context too long), a `BackendError`, or raise `BackendDown`."""
        detail, after = self._error_text(error), f"after {attempts} attempts" if attempts > 1 else "first attempt"
        if isinstance(error, LongReply):
            return BackendError(f"{self._url}: {error}")
        if not isinstance(error, openai.APIStatusError):
            # Compared by name: the client's HTTP library depends on its version.
            if type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout"):
                self._fail(f"no server responds at {self._url} ({after}: {detail}). Start it, or correct the URL.")
            if isinstance(error, TimeoutError | openai.APITimeoutError):
                return BackendError(f"{self._url} did not respond within {self._timeout:g} s ({after})")
            return BackendError(f"the connection to {self._url} failed ({after}: {detail})")
        status = error.status_code
        if status in (401, 403):
            advice = withheld(_KEY_VARIABLE, self._url) or f" Correct the environment variable {_KEY_VARIABLE}."
            self._fail(f"{self._url} rejected the key ({status}: {detail}).{advice}")
        if status == 404:
            self._fail(
                f"{self._url} has no model {self.model!r} or no {self.api} API (404: {detail}). Compare the model name "
                f"with {self._url}/models; its URL usually ends in /v1."
            )
        if 300 <= status < 400:
            target = error.response.headers.get("location", "an unknown place")
            self._fail(f"{self._url} redirects to {target} ({status}), which is not followed. Correct the URL.")
        if error.code == "insufficient_quota":
            self._fail(f"the account at {self._url} has no credit left ({status}: {detail}).")
        if status in (400, 413, 422):
            if _TOO_LONG.search(f"{detail} {error.code} {error.type}".lower()):
                return empty_generation(request.context)
            for parameter in ("temperature", "top_p", "seed", "stop"):
                if _rejects(error, parameter):
                    self._fail(
                        f"model {self.model!r} at {self._url} does not accept {parameter!r} ({status}: {detail}). "
                        "Choose a model that accepts it."
                    )
        return BackendError(f"{self._url} returned status {status} ({after}): {detail}")

    def _fail(self, message: str) -> NoReturn:
        raise BackendDown(self._redact(message))

    def _error_text(self, error: Exception) -> str:
        """The server's error message, or the name of the exception."""
        if isinstance(error, openai.APIStatusError):
            body = error.body
            message = body.get("message") if isinstance(body, dict) else body
            return self._redact(str(message or body or "no message"))[:500]
        cause = error.__cause__ or error
        return self._redact(f"{type(cause).__name__}: {cause}".removesuffix(": "))

    def _redact(self, text: str) -> str:
        return mask(text.replace(self._key, MASK) if self._key else text)

    # --- Parsing a reply --------------------------------------------------------------------------------

    def _parse(self, request: Generate, body: bytes) -> Generation | BackendError:
        try:
            reply = json.loads(body.decode("utf-8", "replace"))
            choice = reply["choices"][0]
            content = choice["message"]["content"] if self.api == "chat" else choice["text"]
            finish = choice["finish_reason"]
            usage = usage_of(reply.get("usage"))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            problem = f"{type(error).__name__}: {error}"
            start = self._redact(body.decode("utf-8", "replace"))[:200]
            return BackendError(f"{self._url} returned an invalid completion ({problem}): {start!r}")
        if finish == "content_filter":
            return BackendError(f"{self._url} withheld the reply (content filter)")
        if self._key and isinstance(content, str):
            content = content.replace(self._key, MASK)  # a server may repeat it, and replies are stored
        if not isinstance(content, str):
            refusal = choice["message"].get("refusal") if self.api == "chat" else None
            return BackendError(
                f"{self._url} returned no text (content is {content!r}, finish_reason {finish!r}"
                + (f", refusal {refusal!r})" if refusal else "). A reasoning model may need a larger max_tokens.")
            )
        if finish not in ("stop", "length"):
            return BackendError(f"{self._url} returned finish_reason {finish!r}; expected stop or length")
        if self._context_limit is not None and usage.read > self._context_limit:
            return replace(empty_generation(request.context), usage=usage)
        text, finish_reason = finished_text(replace_surrogates(content), request.stop, finish, choice)
        return Generation(request.context, Segment(Author.POLICY, text), text, finish_reason, usage)


def build(options: EngineOptions) -> OpenAIEngine:
    """The engine for the options."""
    if options.model is None:
        raise StepladderError("the openai engine needs the server's name of a model: --model NAME")
    return OpenAIEngine(options.model, options.base_url, api=options.api, concurrency=options.concurrency)


async def _trace(request: Any) -> None:
    """Watch an HTTP request: `SENT` becomes true when its first byte is written."""

    async def note(event: str, _: object) -> None:
        if event.endswith("send_request_headers.started"):
            SENT.set(True)

    SENT.set(False)
    request.extensions["trace"] = note


async def _drop_secrets(request: Any) -> None:
    """Remove what the client adds from the environment: a server that only a file names must not have it."""
    custom = os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines()
    for name in ("OpenAI-Organization", "OpenAI-Project", *(line.partition(":")[0].strip() for line in custom)):
        if name in request.headers:
            del request.headers[name]


async def _limit_size(response: Any) -> None:
    limit_reply(response, MAX_REPLY, math.inf)  # `_call` limits the time


def _rejects(error: openai.APIStatusError, parameter: str) -> bool:
    named = error.param == parameter or re.search(rf"['\"`]{parameter}['\"`]", str(error.body))
    return bool(named) and bool(_UNSUPPORTED.search(f"{error.code} {error.body}"))


def _wants_other_limit(reply: object) -> bool:
    """Whether a server rejected `max_tokens`: newer OpenAI models have another name for it."""
    if not isinstance(reply, openai.BadRequestError):
        return False
    return _rejects(reply, "max_tokens") and "max_completion_tokens" in str(reply.body)


def _host(url: str) -> str:
    """The host of a URL; raises `BackendDown` for an invalid one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query
    except ValueError:  # an invalid port
        usable = False
    if not usable:
        raise BackendDown(
            f"the server's URL is {url!r}; expected one such as http://localhost:8000/v1, without a query. The key is "
            "read from the environment variable OPENAI_API_KEY"
        )
    return str(parts.hostname)
