"""What every request to the search server passes: a gate that counts it, and lets it in or sends it away.

Pure ASGI, because every request pays for it. Behind it stands an answer in JSON, whatever happens inside: neither a
stack trace nor a page of HTML reaches a client.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepladder.retrieval.serving import Metrics

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Traffic:
    """What the server needs to know to end well."""

    draining: bool = False
    under_way: int = 0


class Gate:
    """Every request passes it: it is counted, let in or sent away, and answered in JSON whatever happens inside."""

    def __init__(self, app: ASGIApp, traffic: Traffic, metrics: Metrics, token: str | None) -> None:
        self._app, self._traffic, self._metrics = app, traffic, metrics
        self._expected = f"bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._traffic.under_way += 1
        try:
            await (self._refusal(scope) or self._app)(scope, receive, watched)
        except asyncio.CancelledError:  # the time to drain is over, and with it this task
            if not status:
                await ending()(scope, receive, watched)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                await problem(500, "the server failed; its log says why")(scope, receive, watched)
        finally:
            self._traffic.under_way -= 1
            self._metrics.requests.labels(status).inc()
            if scope["path"] == "/retrieve":
                self._metrics.seconds.observe(perf_counter() - began)

    def _refusal(self, scope: Scope) -> Response | None:
        if self._traffic.draining:
            return ending()
        if self._expected is None or scope["path"] == "/health":
            return None
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._expected):
            return None
        found = "the token is wrong" if given else "a token is needed"
        return problem(401, f"{found}: send the header `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"})


def answer(status: int, content: object, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(json.dumps(content), status, headers, media_type="application/json")


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """What is wrong, in the shape FastAPI gave all clients to expect."""
    return answer(status, {"detail": detail}, headers)


def ending() -> Response:
    """For requests that come, or are still there, when the server ends."""
    said = {"status": "draining", "detail": "the server is ending: ask another, or try again"}
    return answer(503, said, {"retry-after": "1", "connection": "close"})
