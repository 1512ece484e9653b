"""The API of every server: FastAPI with a short way to the main endpoint, the endpoints that all servers have, and
errors in JSON.

In: a server's endpoints, its info and the format of its errors. Out: an ASGI application, which `gate.py` protects.
Clients never get a stack trace, HTML or plain text in place of an error.
"""

import json
import reprlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self

from fastapi import FastAPI, Request, Security
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Scope

from stepladder.core.unicode import replace_surrogates
from stepladder.core.version import __version__
from stepladder.serve.http.http_errors import HTTPError, crashed
from stepladder.serve.http.server_metrics import Metrics
from stepladder.serve.server_configs import HTTPConfig

#: Needs no token, for load balancers.
PUBLIC_PATH = "/health"
#: Headers that errors have, for the schema.
_REQUIRED = {"required": True, "schema": {"type": "string"}}
_ERROR_HEADERS = {401: {"WWW-Authenticate": _REQUIRED}, 429: {"Retry-After": _REQUIRED}}
#: Errors that every POST can have.
POST_ERRORS = (408, 413, 422, 429, 500)
#: For integers: in JSON, 3.0 and 3 are the same number.
WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)


class RequestBody(BaseModel):
    """The JSON body of a request, or an object in it. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Parse a body; raises `HTTPError` with the first problem."""
        try:
            try:
                return cls.model_validate_json(body)
            except ValidationError:
                if b"\\u" not in body:
                    raise
            # Lone surrogates, which JSON can express and UTF-8 cannot, become U+FFFD.
            return cls.model_validate_json(replace_surrogates(json.dumps(json.loads(body), ensure_ascii=False)))
        except ValidationError as error:
            raise HTTPError(422, explain(error)) from error
        except (ValueError, RecursionError) as error:
            raise HTTPError(422, f"the body is not JSON: {error}") from error


def explain(error: ValidationError) -> str:
    """The first problem, in one line."""
    problem = error.errors(include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    message = problem["msg"].removeprefix("Value error, ")
    found = f", found {reprlib.repr(problem['input'])}" if message.startswith("Input should be") else ""
    return f"{path or 'the body'}: {message}{found}"


class JSONBytes(Response):
    """JSON that is encoded already. Starlette's own response spends more time on its headers."""

    def __init__(self, body: bytes) -> None:
        self.status_code, self.body, self.background = 200, body, None
        self.raw_headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]


MainEndpoint = Callable[[Any], Awaitable[Response]]


class WebPages(Protocol):
    """Web pages that a server has besides its API. `browser_access.py` says how a browser sends the token."""

    #: Paths below it need no token: style sheets and scripts.
    public_prefix: str

    def owns(self, path: str) -> bool:
        """Whether a path belongs to the pages, and not to an API: browsers send its token as a cookie."""

    def wants_page(self, scope: Scope) -> bool:
        """Whether a browser asked for a page, and gets errors as a page."""

    def error_page(self, error: HTTPError) -> Response:
        """An error as a page."""


class ServerAPI(FastAPI):
    """Add the endpoints of a server with `add_main`, and with FastAPI's own decorators."""

    def __init__(
        self,
        title: str,
        config: HTTPConfig,
        metrics: Metrics,
        info: Mapping[str, object],
        *,
        lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
        error_model: type[BaseModel],
        error_fields: Callable[[HTTPError], dict[str, Any]],
        check_health: Callable[[], None] = lambda: None,
    ) -> None:
        """`info` is the reply of /info. `check_health` raises an `HTTPError` if something is wrong.

        Errors are sent as JSON with these fields, in the format that a server's clients expect: `error_model`.
        """
        super().__init__(
            title=title,
            version=__version__,
            lifespan=lifespan,
            redirect_slashes=False,
            docs_url=None,
            redoc_url=None,
            generate_unique_id_function=lambda route: route.name,
        )
        self._error_model, self._error_fields, self._has_token = error_model, error_fields, config.token is not None
        #: The path of the endpoint whose requests are timed; None until there is one.
        self.main_path: str | None = None
        #: Web pages in front of the API, if it has any.
        self.pages: WebPages | None = None
        self.add_exception_handler(HTTPException, self._handle_error)
        self.add_exception_handler(Exception, self._handle_crash)

        async def health() -> dict[str, str]:
            """Health check."""
            check_health()
            return {"status": "ok"}

        async def show_info() -> dict[str, object]:
            """The limits, the version, and what is served."""
            return {**info, "version": __version__}

        async def show_metrics() -> Response:
            """Prometheus metrics."""
            return Response(metrics.page(), media_type=metrics.content_type)

        self.get(PUBLIC_PATH, **self.declared(public=True))(health)
        self.get("/info", **self.declared())(show_info)
        self.get("/metrics", response_class=Response, **self.declared(text="text/plain"))(show_metrics)

    def declared(self, *errors: int, text: str | None = None, public: bool = False) -> dict[str, Any]:
        """What the schema says about an endpoint: its errors, and the token if there is one, which the gate checks.

        `text`: the media type of a reply that is text.
        """
        secured = self._has_token and not public
        responses: dict[int, dict[str, Any]] = {
            status: {"model": self._error_model, "headers": _ERROR_HEADERS.get(status, {})}
            for status in (*errors, 503, *([401] if secured else []))
        }
        if text is not None:
            responses[200] = {"content": {text: {}}}
        token = Security(HTTPBearer(scheme_name="token", auto_error=False))
        return {"responses": responses, "dependencies": [token] if secured else []}

    def add_main(
        self, path: str, endpoint: MainEndpoint, model: type[RequestBody], declared: Mapping[str, Any]
    ) -> None:
        """Add the main endpoint, a POST. Its parameter is `body`, of this model."""
        self.main_path, self._main_endpoint, self._main_model = path, endpoint, model
        endpoint.__annotations__["body"] = model  # FastAPI declares it in the schema
        self.post(path, **declared)(endpoint)

    async def call_main(self, body: bytes) -> Response:
        """Call the main endpoint. FastAPI's own way to it takes longer than everything else that a server does."""
        return await self._main_endpoint(self._main_model.read(body))

    def error_response(self, error: HTTPError, scope: Scope | None = None) -> Response:
        """An error as JSON, or as a page if a browser asked for one in this request."""
        if self.pages is not None and scope is not None and self.pages.wants_page(scope):
            return self.pages.error_page(error)
        return JSONResponse({**error.fields, **self._error_fields(error)}, error.status_code, error.headers)

    async def _handle_error(self, request: Request, error: Exception) -> Response:
        """A client's or server's error. The router's own, 404 and 405, list what there is."""
        if not isinstance(error, HTTPError):
            assert isinstance(error, HTTPException)
            problem = "does not exist" if error.status_code == 404 else "is not allowed"
            routes = [(route.methods or set(), route.path) for route in self.routes if isinstance(route, Route)]
            endpoints = [f"{'POST' if 'POST' in methods else 'GET'} {path}" for methods, path in routes]
            headers = {name: value.replace("GET", "GET, HEAD") for name, value in (error.headers or {}).items()}
            listing = ", ".join(sorted(endpoints, reverse=True))
            detail = f"{request.method} {request.scope['path']} {problem}: this server has {listing}"
            error = HTTPError(error.status_code, detail, headers)
        return self.error_response(error, request.scope)

    async def _handle_crash(self, request: Request, _: Exception) -> Response:
        """A bug. The gate reports it in the log."""
        return self.error_response(crashed(), request.scope)
