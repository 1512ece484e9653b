"""What a server gets from the environment: the key, and the headers of an organization or a gateway."""

import os
import re

from stepladder.core.errors import BackendDown
from stepladder.core.io.known_servers import is_stranger
from stepladder.core.io.masking import remember

KEY_VARIABLE, HEADERS_VARIABLE = "OPENAI_API_KEY", "OPENAI_CUSTOM_HEADERS"

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Headers that say where a message ends, or belong to the connection.
_OWN = ("host", "connection", "content-length", "content-type", "transfer-encoding", "accept-encoding")
_SECRET = re.compile(r"auth|cookie|credential|key|passw|secret|token", re.IGNORECASE)


def server_headers(url: str, key: str, *, known: bool) -> dict[str, str]:
    """The headers for a server. One that only a file names gets nothing from the environment, unless it is `known`.

    Raises `BackendDown` for a value that no header can carry: a line break in it would begin another header.
    """
    headers = {"Authorization": f"Bearer {key or 'none'}", "User-Agent": "stepladder"}
    if not known and is_stranger(KEY_VARIABLE, url):
        return headers
    for name, variable in (("OpenAI-Organization", "OPENAI_ORG_ID"), ("OpenAI-Project", "OPENAI_PROJECT_ID")):
        if value := os.environ.get(variable, "").strip():
            headers[name] = _checked(value, variable)
    names = {name.lower(): name for name in headers}
    for number, line in enumerate(re.split(r"\r?\n", os.environ.get(HEADERS_VARIABLE, "")), 1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not line.strip():
            continue
        if not colon or not _NAME.fullmatch(name) or name.lower() in _OWN:
            raise BackendDown(
                f"line {number} of the environment variable {HEADERS_VARIABLE} cannot be sent; expected 'Name: value', "
                f"and none of {', '.join(_OWN)}"
            )
        if _SECRET.search(name) and len(value) > 7:
            remember(value)  # the server may repeat it
        headers[names.setdefault(name.lower(), name)] = _checked(value, HEADERS_VARIABLE)
    return headers


def _checked(value: str, variable: str) -> str:
    if not (value.isascii() and value.replace("\t", " ").isprintable()):
        raise BackendDown(
            f"the environment variable {variable} contains a line break or a non-ASCII character, which no header can "
            "carry; correct it"
        )
    return value
