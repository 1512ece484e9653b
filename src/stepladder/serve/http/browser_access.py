"""How a browser passes the gate of a server with web pages.

In: ASGI requests. Out: whether a request has the token, as a cookie; a redirect that sets this cookie.

A browser cannot send `Authorization: Bearer TOKEN` by itself. It opens `/?token=TOKEN` once, is redirected to the same
address without the token, and sends a cookie from then on. Scripts cannot read the cookie, other sites cannot make the
browser send it, and it contains a key that is derived from the token, not the token. Requests that a page of another
origin makes are refused, also those of another port of this machine.
"""

import hmac
from hashlib import sha256
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi.responses import RedirectResponse, Response
from starlette.requests import cookie_parser
from starlette.types import Scope

from stepladder.serve.http.http_errors import HTTPError

#: The query parameter with the token.
TOKEN_PARAMETER = "token"
#: Seconds until a browser forgets the cookie: 30 days.
_COOKIE_SECONDS = 30 * 24 * 3600


class BrowserAccess:
    """The cookie of a server with this token. Without a token every browser is let through."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()
        self._key = None if token is None else hmac.digest(token.encode(), b"stepladder cookie", sha256).hex()

    def is_known(self, scope: Scope) -> bool:
        """Whether a request has the cookie."""
        if self._key is None:
            return False
        text = "; ".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie")
        found = cookie_parser(text).get(_cookie_name(scope), "")
        return hmac.compare_digest(found.encode(), self._key.encode())

    def take_token(self, scope: Scope) -> Response | None:
        """The redirect for a GET with the right token in its address, which sets the cookie; None for other requests.

        Raises `HTTPError` for a wrong token.
        """
        if scope["method"] != "GET" or not scope["query_string"]:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == TOKEN_PARAMETER]
        if not given:
            return None
        if self._token is not None and not hmac.compare_digest(given[-1].strip().encode(), self._token):
            raise HTTPError(401, "invalid token in the address", {"www-authenticate": "Bearer"})
        rest = urlencode([(name, value) for name, value in query if name != TOKEN_PARAMETER])
        # Not relative to the host: //other.example/ would lead to another one.
        path = "/" + scope["raw_path"].decode("latin-1").lstrip("/")
        response = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        if self._key is not None:
            response.set_cookie(
                _cookie_name(scope), self._key, max_age=_COOKIE_SECONDS, path="/", httponly=True, samesite="strict"
            )
        return response


def check_same_origin(scope: Scope) -> None:
    """Raise `HTTPError` if a page of another origin made this request, unless it sends a token of its own."""
    headers = dict(scope["headers"])
    if b"authorization" in headers:
        return
    origin = headers.get(b"origin", b"").decode("latin-1")
    host = headers.get(b"host", b"").decode("latin-1")
    if origin and urlsplit(origin).netloc.lower() != host.lower():
        raise HTTPError(403, f"requests of other pages are refused, and the origin header is {origin[:100]!r}")


def _cookie_name(scope: Scope) -> str:
    """Browsers send the cookies of all ports of a host to each of them: the port is in the name."""
    server = scope.get("server")
    return f"stepladder-{server[1] if server else 0}"
