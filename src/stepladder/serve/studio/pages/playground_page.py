"""The playground's page: `/playground` in the studio, `/` in `serve-agent`.

In: where policies come from. Out: the page, what it offers, and answers as server-sent events:

    GET  PATH                    the page
    GET  /playground/choices     runs, models, agents and data to choose from
    POST /playground/ask         an answer, see playground_requests.py and answer_events.py
    POST /playground/continue    the same after the first steps of an answer
    POST /playground/example     {"question", "answers"}: a question of the policy's data, drawn at random
"""

import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import perf_counter
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from stepladder.core.errors import StepladderError
from stepladder.serve.http.api import RequestBody
from stepladder.serve.http.http_errors import HTTPError, shutting_down
from stepladder.serve.http.server_sent_events import HEARTBEAT, EventStream, sse_event
from stepladder.serve.studio.playground.answer_events import answer_events
from stepladder.serve.studio.playground.asked_policy import PolicySource
from stepladder.serve.studio.playground.kept_answers import KeptAnswers
from stepladder.serve.studio.playground.playground_requests import AskRequest, ContinueRequest, PolicyRequest
from stepladder.serve.studio.site import Site

#: Seconds without an event after which a heartbeat is sent.
_HEARTBEAT_SECONDS = 10.0

Body = TypeVar("Body", bound=RequestBody)


def add_playground_page(site: Site, source: PolicySource, path: str = "/playground") -> None:
    """Add the page to a site, at a path."""
    router, kept = APIRouter(), KeptAnswers()

    @router.get(path)
    def playground_page() -> HTMLResponse:
        return site.render("playground.html", here=path, names_policies=source.names_policies)

    @router.get("/playground/choices")
    def choices() -> dict[str, Any]:
        return source.choices()

    @router.post("/playground/ask")
    async def ask(request: Request) -> EventStream:
        return _stream(request, await _read(request, AskRequest))

    @router.post("/playground/continue")
    async def continue_answer(request: Request) -> EventStream:
        return _stream(request, await _read(request, ContinueRequest))

    @router.post("/playground/example")
    async def example(request: Request) -> dict[str, Any]:
        body = await _read(request, PolicyRequest)
        try:
            questions = await run_in_threadpool(source.examples, body)
        except StepladderError as error:
            raise HTTPError(422, str(error)) from error
        if not questions:
            raise HTTPError(404, "there are no example questions here: type one")
        question = random.choice(questions)
        return {"question": question.text, "answers": list(question.answers)}

    def _stream(request: Request, body: AskRequest | ContinueRequest) -> EventStream:
        async def events() -> AsyncGenerator[bytes, None]:
            sent = perf_counter()
            async with aclosing(answer_events(source, kept, body)) as found:
                async for event in found:
                    if site.is_draining():
                        yield sse_event({"message": shutting_down().detail}, "error")
                        return
                    if event is not None:
                        name, data = event
                        yield sse_event(data, name)
                        sent = perf_counter()
                    elif await request.is_disconnected():
                        return
                    elif perf_counter() - sent > _HEARTBEAT_SECONDS:
                        yield HEARTBEAT
                        sent = perf_counter()

        return EventStream(events())

    site.add_page(router, path, "Playground")


async def _read(request: Request, kind: type[Body]) -> Body:
    return kind.read(await request.body())
