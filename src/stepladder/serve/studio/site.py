"""The web pages of a server: their layout and navigation, their templates, style sheet and scripts, errors as pages.

In: a `ServerAPI`. Out: the same with pages. A page is a router with templates and scripts, see pages/. Templates are
escaped, and the Content-Security-Policy lets a page run only the scripts of this server and load nothing from
elsewhere: text from a run can never act.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from starlette.types import Scope

from stepladder.core.version import __version__
from stepladder.evaluation.svg_figure import STYLE
from stepladder.reporting.charts.tree_diagram import KIND_LABELS
from stepladder.reporting.html_page import make_environment
from stepladder.reporting.report.cost import duration
from stepladder.serve.http.api import ServerAPI
from stepladder.serve.http.http_errors import HTTPError

_PACKAGE = "stepladder.serve.studio"
_STATIC = "/static/"
#: Style sheets in this order make /static/studio.css.
_STYLES = (("stepladder.reporting", "templates/page.css"), (_PACKAGE, "static/studio.css"))
#: Files of the reports that pages use as well, by name.
_SHARED = {
    "tree_view.js": ("stepladder.reporting", "templates/tree_view.js"),
    "compare.css": ("stepladder.reporting.compare", "templates/compare.css"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: Headers of every page.
_HEADERS = {
    "content-security-policy": _POLICY,
    "cache-control": "no-store",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}


class Site:
    """The pages of a server. `router` of a page is included with `add_page`; its routes answer with `render`."""

    public_prefix = _STATIC

    def __init__(self, api: ServerAPI, name: str) -> None:
        """`name` is shown at the left of the navigation."""
        self.name = name
        self.api = api
        #: Title by path, of the pages in the navigation.
        self.navigation: dict[str, str] = {}
        #: Whether the server is shutting down: live updates end.
        self.is_draining: Callable[[], bool] = lambda: False
        #: Beginnings of the paths of the pages, where the server has an API too; by default all are.
        self.own_paths: tuple[str, ...] = ("/",)
        self._environment = make_environment(
            f"{_PACKAGE}", "stepladder.reporting.report", "stepladder.reporting.compare"
        )
        self.add_filters({"duration": duration, "kind": KIND_LABELS.__getitem__, "utc": _utc})
        api.pages = self
        api.get(_STATIC + "{name}", include_in_schema=False)(self._static)

    def add_page(self, router: APIRouter, path: str = "", title: str = "") -> None:
        """Add the routes of a page. With a path and a title it is in the navigation."""
        self.api.include_router(router, include_in_schema=False)
        if path:
            self.navigation[path] = title

    def add_filters(self, filters: Mapping[str, Callable[..., str]]) -> None:
        """Filters for the templates of a page."""
        self._environment.filters |= filters

    def render(self, template: str, status: int = 200, *, here: str = "", **content: Any) -> HTMLResponse:
        """A page. `template` extends `site.html`; `here` is the path of the entry in the navigation to mark."""
        layout = {"site": self.name, "navigation": self.navigation, "version": __version__, "here": here}
        return HTMLResponse(self.fragment(template, **layout, **content), status, _HEADERS)

    def fragment(self, template: str, **content: Any) -> str:
        """A part of a page, for a script that replaces it."""
        return self._environment.get_template(template).render(**content)

    def part(self, template: str, macro: str, *content: Any) -> str:
        """What a macro of a template makes, for scripts that replace a part of a page."""
        return str(getattr(self._environment.get_template(template).module, macro)(*content))

    def owns(self, path: str) -> bool:
        """Whether a path belongs to the pages."""
        return path == "/" or path.startswith(self.own_paths)

    def wants_page(self, scope: Scope) -> bool:
        """Whether a browser asked for a page: it navigates, and accepts HTML."""
        if not self.owns(scope["path"]):
            return False
        accepts = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        return scope["method"] in ("GET", "HEAD") and b"text/html" in accepts

    def error_page(self, error: HTTPError) -> Response:
        """An error as a page. Without the token, the page asks for it."""
        phrases = {each.value: each.phrase for each in HTTPStatus}
        title = _TITLES.get(error.status_code) or phrases.get(error.status_code, "Error")
        response = self.render(
            "error.html", error.status_code, title=title, detail=error.detail, asks_token=error.status_code == 401
        )
        response.headers.update(error.headers or {})
        return response

    def _static(self, request: Request, name: str) -> Response:
        content, kind = _static_file(name)
        tag = f'"{sha256(content).hexdigest()[:20]}"'
        headers = {"etag": tag, "cache-control": "no-cache", "x-content-type-options": "nosniff"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)


def _utc(seconds: float) -> str:
    """A Unix time, for readers without scripts."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


_TITLES = {401: "A token is needed", 404: "Not found", 421: "Not this address", 500: "Something went wrong"}
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@cache
def _static_file(name: str) -> tuple[bytes, str]:
    """A file below /static/, and its media type."""
    if name == "studio.css":
        return "".join(
            [*(_resource(*each).read_text(encoding="utf-8") for each in _STYLES), STYLE]
        ).encode(), "text/css"
    file = _resource(*_SHARED.get(name, (_PACKAGE, f"static/{name}")))
    kind = _KINDS.get(f".{name.rpartition('.')[2]}")
    if kind is None or "/" in name or "\\" in name or name.startswith(".") or not file.is_file():
        raise HTTPError(404, f"there is no file {name!r}")
    return file.read_bytes(), kind


def _resource(package: str, name: str) -> Traversable:
    return files(package) / name
