"""Which servers get the user's keys and tokens: those that the user named, never those that only a file names.

In: data with URLs, from the user (`name_servers`: a command line, an argument, a recipe of one's own) or from the files
of a run or an index, which may be downloaded (`servers_from_files`). Out: `server_key`, the value of an environment
variable if the server may have it. Servers that got a key are stored in `known_servers.json` of the user's
configuration folder: the user's own runs and indexes can be used without naming their servers again.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from stepladder.core.errors import StepladderError
from stepladder.core.io.masking import remember
from stepladder.core.io.user_lists import read_list, write_list

_FILE, _AGAIN = "known_servers.json", "type the URLs of your servers again"

#: By scheme, host and port.
_named: set[str] = set()
_from_files: set[str] = set()


def name_servers(data: Any, *, new: bool = False) -> None:
    """The user names servers: they may have the user's keys. `new`: except those that files have named before."""
    _named.update(set(_servers(data)) - (_from_files if new else set()))


def servers_from_files(data: Any) -> None:
    """Files name servers, which get no key unless the user names them too, or has before."""
    _from_files.update(_servers(data))


def server_key(variable: str, url: str) -> str:
    """The key or token in an environment variable; empty if there is none, or if a server must not have it."""
    key = os.environ.get(variable, "").strip()
    if not key or withheld(variable, url):
        return ""
    remember(key)  # the server may repeat it
    now = dict.fromkeys(_entries(variable, _servers(url)), True)
    with suppress(OSError, StepladderError):  # without a home folder the user names them again
        if not now.keys() <= (known := read_list(_FILE, _AGAIN)).keys():
            write_list(_FILE, known | now)
    return key


def withheld(variable: str, url: str) -> str:
    """Why a server gets no key although there is one, as the end of an error message; else empty."""
    if not os.environ.get(variable) or not is_stranger(variable, url):
        return ""
    how = "If it is yours, type its URL once, as in `--judge-url URL` or `stepladder index search URL QUERY`"
    return f" {variable} was not sent to it: only a file of a run or an index names it. {how}"


def is_stranger(variable: str, url: str) -> bool:
    """Whether a server must not have the secrets that belong to an environment variable."""
    servers = set(_servers(url))
    strangers = (servers & _from_files) - _named
    return not servers or bool(strangers and not _entries(variable, strangers) <= read_list(_FILE, _AGAIN).keys())


def _entries(variable: str, servers: Iterable[str]) -> set[str]:
    return {f"{variable} {server}" for server in servers}


def _servers(data: Any) -> Iterator[str]:
    """Scheme, host and port of all URLs in plain data. A string may have several, joined by commas or +."""
    for each in [*data, *data.values()] if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _servers(each)
    # With and without a + as separator: one in a password is none.
    urls = {*data.split(","), *re.split("[,+]", data)} if isinstance(data, str) and "://" in data else ()
    for url in (each for each in urls if "://" in each):
        scheme, _, rest = url.partition("://")
        scheme = scheme.rpartition("=")[2].strip().lower()  # as in data.index=http://node
        try:
            parts = urlsplit(f"{scheme}://{rest.strip()}")
            yield f"{scheme}://{parts.hostname}:{parts.port or {'http': 80, 'https': 443}.get(scheme)}"
        except ValueError:  # an invalid port
            yield f"{scheme}://{rest.strip()}"
