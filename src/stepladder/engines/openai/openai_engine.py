"""Any OpenAI-compatible server: OpenAI itself, vLLM, SGLang, llama.cpp, Ollama, a gateway. Or several of them.

In: `Generate` requests, sent as chat messages (`api="chat"`) or as one prompt (`api="completions"`). Out: in order, a
`Generation` or the `BackendError` of each request; `BackendDown` when no request can succeed. The server returns no
token ids, so the generated segments can be read and scored; training on them needs `reencode`.

Requests that differ only by their seed are one call with `n` samples, sent with the seed of the first. A server that
returns fewer is noticed: the missing ones are requested one by one, and later calls ask for no more than it returns.

Of several servers the one with the fewest calls in flight is called. When one fails, its calls go to the others.

One thread runs an event loop for all calls, so `generate` may be called from several threads and from inside another
event loop, and `submit` needs no thread of the caller. At most `concurrency` calls run at once, including those that
wait for a retry.

    with closing(OpenAIEngine("Qwen/Qwen3-8B", "http://localhost:8000/v1")) as engine:
        (reply,) = engine.generate([Generate((Segment(Author.PROMPT, "Who?"),))])

Servers may apply sampling defaults from a model's files (vLLM: top_k, repetition_penalty). Set `extra_body` to override
them.
"""

import asyncio
import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from logging import getLogger
from typing import Any, ClassVar, Literal, NoReturn

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.io.known_servers import name_servers, server_key, withheld
from stepladder.core.io.masking import MASK, hide, mask, reveal
from stepladder.core.io.reply_size import LongReply
from stepladder.core.requests import Finish, Generate, Generation, empty_generation
from stepladder.core.unicode import replace_surrogates
from stepladder.engines.base import Engine, EngineOptions
from stepladder.engines.openai.credentials import KEY_VARIABLE, server_headers
from stepladder.engines.openai.http_client import CallError, HTTPClient
from stepladder.engines.openai.openai_protocol import (
    MAX_STOPS,
    NO_GRAMMAR,
    SLOW_REMEDY,
    FailedCall,
    RefusedCall,
    chat_messages,
    host_of,
    read_choices,
    retry_delay,
    samples_of_one_context,
)
from stepladder.engines.openai.servers import Server, Servers
from stepladder.engines.structured_outputs import grammar_fields

log = getLogger(__name__)

OPENAI_URL = "https://api.openai.com/v1"
#: Attempts for a server that has never responded: it is more likely absent than busy.
FIRST_ATTEMPTS = 3
#: After this many consecutive requests that failed despite all retries, the server is considered down.
MAX_CONSECUTIVE_FAILURES = 10
#: Most samples of one context in one call.
MAX_SAMPLES = 16

#: The end of an attempt: the body of a completion, or why there is none.
Attempt = bytes | FailedCall
#: One reply per request.
Replies = list[Generation | BackendError]


class OpenAIEngine(Engine):
    """A model behind one OpenAI-compatible server, or behind several."""

    name: ClassVar[str] = "openai"
    max_batch = max_samples = MAX_SAMPLES

    def __init__(
        self,
        model: str,
        base_url: str | Sequence[str] | None = None,
        *,
        api: Literal["chat", "completions"] = "chat",
        api_key: str | None = None,
        concurrency: int = 32,
        timeout: float = 60.0,
        max_retries: int = 5,
        backoff: float = 1.0,
        context_limit: int | None = None,
        extra_body: Mapping[str, object] | None = None,
        grammar_kind: str = "auto",
    ) -> None:
        """`model`: the server's name of the model. `base_url`: the server, unless it is OpenAI's (usually ends in /v1);
        or several with the same model.

        `api_key` defaults to OPENAI_API_KEY; servers other than OpenAI's need none. `timeout` limits one call and
        `backoff` is the delay before the first retry, both in seconds. A context of more than `context_limit` tokens,
        as counted by the server, returns an empty generation: for servers that truncate prompts silently.
        `grammar_kind`: whose fields carry a grammar (engines/structured_outputs.py).
        """
        if api not in ("chat", "completions"):
            raise BackendDown(f"api is {api!r}; expected 'chat' or 'completions'")
        for name, value, least in (("concurrency", concurrency, 1), ("max_retries", max_retries, 0)):
            if value < least:
                raise BackendDown(f"{name} is {value}; expected {least} or more")
        named = [base_url] if isinstance(base_url, str) else list(base_url or ())
        urls = [hide(url).rstrip("/") for url in named or [os.environ.get("OPENAI_BASE_URL") or OPENAI_URL]]
        hosts = [host_of(url) for url in urls]
        name_servers([OPENAI_URL, os.environ.get("OPENAI_BASE_URL")])
        keys = {url: (api_key or server_key(KEY_VARIABLE, url)).strip() for url in urls}
        if any(host == "api.openai.com" and not keys[url] for host, url in zip(hosts, urls)):
            raise BackendDown(
                f"{OPENAI_URL} needs a key: set the environment variable OPENAI_API_KEY, or name another server "
                "(--base-url; of a judge --judge-url, of a teacher --teacher-url)"
            )
        key = max(keys.values())
        if not (key.isascii() and key.isprintable()):
            raise BackendDown("the API key contains a line break or a non-ASCII character; copy it again")
        if twice := next((url for number, url in enumerate(urls) if url in urls[:number]), None):
            raise BackendDown(f"the server {twice} is named twice")
        self.model = model
        self.api = api
        self.concurrency, self.jobs_together = concurrency, 2 * concurrency
        #: Number of retries so far, for progress displays.
        self.retries = 0
        self._timeout, self._max_retries, self._backoff = timeout, max_retries, backoff
        self._context_limit, self._extra_body = context_limit, dict(extra_body or {})
        self._grammar_kind, self._grammar_kept = grammar_kind, False
        self._key = key
        headers = {url: server_headers(url, keys[url], known=api_key is not None) for url in urls}
        connect = min(timeout / 2, 10.0)
        self._servers = Servers([Server(url, HTTPClient(reveal(url), headers[url], connect)) for url in urls], backoff)
        self._consecutive_failures = 0
        #: Samples that the servers return per call, as far as known; and whether any text has come yet.
        self._samples, self._has_written = MAX_SAMPLES, False
        self._semaphore = asyncio.Semaphore(concurrency)
        self._lock = threading.Lock()
        self._closed = False
        self._calls: set[Future[Replies]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"openai {model}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        urls = ", ".join(server.url for server in self._servers.all)
        return f"OpenAIEngine({self.model!r}, {urls!r}, api={self.api!r})"

    def generate(self, requests: Sequence[Generate]) -> Replies:
        """Generate a reply to every request, in order. Calls run concurrently, up to `concurrency`."""
        if not requests:
            return []
        call = self.submit(requests)
        try:
            return call.result()
        except CancelledError:
            return [BackendError("the call was cancelled") for _ in requests]
        finally:
            call.cancel()  # an interrupted caller leaves no call running

    def submit(self, requests: Sequence[Generate]) -> Future[Replies]:
        """Begin the calls of `generate` on the event loop."""
        with self._lock:
            if self._closed:
                raise BackendDown(f"{self!r} is closed; create a new engine")
            call = asyncio.run_coroutine_threadsafe(self._complete_all(requests), self._loop)
            self._calls.add(call)
        call.add_done_callback(self._forget)
        return call

    def _forget(self, call: Future[Replies]) -> None:
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

    async def _complete_all(self, requests: Sequence[Generate]) -> Replies:
        groups = samples_of_one_context(requests, self._samples)
        if len(groups) == 1:
            return await self._complete_samples(requests)
        calls = [self._complete_samples([requests[index] for index in group]) for group in groups]
        tasks = [asyncio.ensure_future(call) for call in calls]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # if one raised `BackendDown`, cancel the others
                task.cancel()
        replies = {index: reply for group, own in zip(groups, found) for index, reply in zip(group, own)}
        return [replies[index] for index in range(len(requests))]

    async def _complete_samples(self, requests: Sequence[Generate]) -> Replies:
        """Samples of one context: one call, and one more for each that the server left out."""
        replies = await self._complete(requests)
        missing = requests[len(replies) :]
        return [*replies, *await self._complete_all(missing)] if missing else replies

    async def _shutdown(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers.all:
            server.client.close()
        await self._loop.shutdown_default_executor()

    async def _complete(self, requests: Sequence[Generate]) -> Replies:
        """One call, with its retries. The replies may be fewer than the requests."""
        async with self._semaphore:
            attempts, moves, repeated = 0, 0, False
            while True:
                server = self._servers.next()
                limit, server.calls, server.total = server.max_tokens_name, server.calls + 1, server.total + 1
                try:
                    attempt = await self._call(requests, server)
                finally:
                    server.calls -= 1
                if isinstance(attempt, RefusedCall) and attempt.wants_other_limit and limit == "max_tokens":
                    server.max_tokens_name = "max_completion_tokens"
                    continue
                if isinstance(attempt, RefusedCall) and (left := attempt.samples_left(len(requests))):
                    self._limit_samples(left, f"refused {len(requests)}", server)
                    return []
                if isinstance(attempt, CallError) and attempt.stale and not repeated:
                    repeated = True  # not a failure of the server
                    continue
                attempts += 1
                if isinstance(attempt, bytes):
                    self._servers.succeeded(server)
                    replies = self._parse(requests, attempt, server)
                    if self._has_written:
                        self._consecutive_failures = 0
                    else:
                        self._count_failure(replies[0])
                    return replies
                server.reached |= isinstance(attempt, RefusedCall)
                passing, delay = retry_delay(attempt, attempts, self._backoff)
                if passing and len(self._servers.usable) > 1:
                    self._servers.failed(server, self._error_text(attempt), delay)
                    if self._servers.has_other(server):
                        delay, moves = 0.0, moves + 1
                        attempts -= moves < len(self._servers.all)  # one attempt at each before the first is repeated
                if delay is None or attempts > self._most_retries():
                    verdict = self._classify(requests[0], attempt, attempts, server)
                    if isinstance(verdict, BackendDown):
                        if not passing and self._servers.give_up(server, str(verdict)):
                            continue
                        self._fail(str(verdict))
                    if passing or not self._has_written:
                        self._count_failure(verdict)
                    return [verdict for _ in requests]
                self.retries += 1
                await asyncio.sleep(delay)

    async def _call(self, requests: Sequence[Generate], server: Server) -> Attempt:
        """The body of the server's response, or the error.

        Errors are returned, not raised, so that no error of ours is chained to one that contains the request's headers.
        """
        path = "/chat/completions" if self.api == "chat" else "/completions"
        body = json.dumps(self._payload(requests, server)).encode()
        try:
            async with asyncio.timeout(self._timeout):
                response = await server.client.post(path, body)
        except (CallError, TimeoutError, LongReply) as error:
            return error
        return response.body if response.status == 200 else RefusedCall.of(response)

    def _payload(self, requests: Sequence[Generate], server: Server) -> dict[str, Any]:
        first = requests[0]
        payload: dict[str, Any] = {
            "model": self.model,
            "temperature": first.sampling.temperature,
            "top_p": first.sampling.top_p,
            "seed": first.seed & 0x7FFFFFFF,  # many servers accept at most 31 bits
            server.max_tokens_name: first.sampling.max_tokens,
        }
        if len(requests) > 1:
            payload["n"] = len(requests)
        if first.grammar is not None:
            payload |= grammar_fields(self._grammar_kind, first.grammar, first.sampling.max_tokens)
        if first.stop:
            payload["stop"] = list(first.stop[:MAX_STOPS])
        if self.api == "chat":
            payload["messages"] = chat_messages(first.context)
        else:
            payload["prompt"] = replace_surrogates("".join(segment.text for segment in first.context))
        return {**payload, **self._extra_body}

    def _count_failure(self, reply: Generation | BackendError) -> None:
        """Raise `BackendDown` after many failures: of servers, or of any kind if no text has ever come."""
        self._consecutive_failures += 1
        if self._consecutive_failures >= MAX_CONSECUTIVE_FAILURES and isinstance(reply, BackendError):
            self._fail(f"{reply}. {self._consecutive_failures} consecutive requests failed.")

    def _most_retries(self) -> int:
        reached = any(server.reached for server in self._servers.all)
        return self._max_retries if reached else min(self._max_retries, FIRST_ATTEMPTS - 1)

    def _limit_samples(self, samples: int, done: str, server: Server) -> None:
        before, self._samples = self._samples, min(self._samples, samples)
        if self._samples < before:
            log.warning("%s %s samples (n): later calls ask for %d", server.url, done, self._samples)

    def _classify(
        self, request: Generate, error: FailedCall, attempts: int, server: Server
    ) -> Generation | BackendError | BackendDown:
        """What a failure means: an empty generation (context too long), a failed request, or that none can succeed."""
        url, detail = server.url, self._error_text(error)
        after = f"after {attempts} attempts" if attempts > 1 else "first attempt"
        if isinstance(error, LongReply):
            return BackendError(f"{url}: {error}")
        if not isinstance(error, RefusedCall):
            if isinstance(error, CallError) and not error.connected:
                places = " or ".join([url, *(each.url for each in self._servers.all if each is not server)])
                return BackendDown(f"no server responds at {places} ({after}: {detail}). Start it, or correct the URL.")
            if isinstance(error, TimeoutError):
                return BackendError(f"{url} did not respond within {self._timeout:g} s ({after}){SLOW_REMEDY}")
            return BackendError(f"the connection to {url} failed ({after}: {detail})")
        if error.status in (400, 413, 422) and error.is_too_long:
            return empty_generation(request.context)
        where = f"{self.api} API of model {self.model!r}"
        advice = withheld(KEY_VARIABLE, url) or f" Correct the environment variable {KEY_VARIABLE}."
        by_grammar = request.grammar is not None and not self._grammar_kept
        if hopeless := error.hopeless(url, detail, where, grammar=by_grammar, advice=advice):
            return BackendDown(hopeless)
        return BackendError(f"{url} returned status {error.status} ({after}): {detail.rstrip('.')}{error.remedy}")

    def _fail(self, message: str) -> NoReturn:
        raise BackendDown(self._redact(message))

    def _error_text(self, error: FailedCall) -> str:
        """The server's error message, or the name of the exception."""
        if isinstance(error, RefusedCall):
            return self._redact(error.message)[:500]
        return self._redact(str(error) or type(error).__name__)

    def _redact(self, text: str) -> str:
        return mask(text.replace(self._key, MASK) if self._key else text)

    def _parse(self, requests: Sequence[Generate], body: bytes, server: Server) -> Replies:
        """The replies in a response; fewer than the requests if it has fewer choices."""
        limit, chat = self._context_limit, self.api == "chat"
        replies = read_choices(requests, body, chat=chat, context_limit=limit, redact=self._redact, key=self._key)
        if isinstance(replies, BackendError):
            return [BackendError(self._redact(f"{server.url} {replies}")) for _ in requests]
        if len(replies) < len(requests):
            self._limit_samples(len(replies), f"returned {len(replies)} of {len(requests)}", server)
        self._has_written |= any(isinstance(reply, Generation) and reply.text != "" for reply in replies)
        self._check_grammar(requests[0], replies, server)
        return [self._checked(reply, server) for reply in replies]

    def _check_grammar(self, request: Generate, replies: Replies, server: Server) -> None:
        """Raise `BackendDown` if the server has never written what the grammar allows."""
        if request.grammar is None or self._grammar_kept:
            return
        texts = [reply.text for reply in replies if isinstance(reply, Generation) and reply.finish is not Finish.LENGTH]
        self._grammar_kept = any(re.fullmatch(request.grammar.regex(), text) for text in texts)
        if texts and not self._grammar_kept:
            self._fail(
                f"{server.url} ignores the grammar of format: constrained: it wrote {texts[0][:60]!r}. {NO_GRAMMAR}"
            )

    def _checked(self, reply: Generation | BackendError, server: Server) -> Generation | BackendError:
        if isinstance(reply, BackendError):
            return BackendError(self._redact(f"{server.url} {reply}"))
        if not reply.text and not self._has_written and reply.finish is not Finish.CONTEXT_FULL:
            # Later on an empty text is the model's own.
            return BackendError(
                f"{server.url} returned an empty text (finish reason {reply.finish.value}). Check the chat template of "
                f"model {self.model!r}; a reasoning model may need a larger --max-tokens (episode.max_tokens)"
            )
        return reply


def build(options: EngineOptions) -> OpenAIEngine:
    """The engine for the options."""
    if options.model is None:
        raise StepladderError("the openai engine needs the server's name of a model: --model NAME")
    extra_body = {"chat_template_kwargs": dict(options.chat_options)} if options.chat_options else None
    return OpenAIEngine(
        options.model, options.base_url, api=options.api, concurrency=options.concurrency, extra_body=extra_body
    )
