"""Secrets never reach a file, a page, a log or a message: user info in URLs, keys, tokens and passwords become ***.

In: text and settings. Out: the same without secrets. Settings and command lines hold masked URLs (`hide`). The user
info stays in the memory of this process, and only what opens a connection asks for it (`reveal`). A URL that was read
from the files of a run has lost it and must be typed again.
"""

import base64
import logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

MASK = "***"

#: Shorter values are not replaced by value: they occur in ordinary words.
_SHORTEST = 6

_NAMES = r"(?:api[_-]?key|access[_-]?key|secret|password|passwd|(?<![a-z])token)"
_SHORT_NAMES = "key|auth|pwd|pass|sig|jwt"
_URL_SECRETS = (
    # User info, up to the last @ before the path. Quotes end a URL inside of a longer text.
    (re.compile(r"""(?<=://)[^\s/?#"'<>\\]*@"""), f"{MASK}@"),
    # A password with a character that belongs into a path: what follows the colon is not a port.
    (re.compile(r"""(?<=://)[\w.%+~$!*=-]*:(?!\d{1,5}(?:[/?#\s"',)\]]|$))\S*@"""), f"{MASK}@"),
    (re.compile(rf"""(?i)([?&](?:[\w.-]*(?:{_NAMES}|signature)|{_SHORT_NAMES})=)[^\s&#"'<>]+"""), rf"\1{MASK}"),
)
_TEXT_SECRETS = (
    *_URL_SECRETS,
    (re.compile(rf"""(?i)(\b[\w.-]*{_NAMES}=["']?)[^\s&#"'<>,;]+"""), rf"\1{MASK}"),
    (re.compile(r"""(?i)(authorization["']?\s*[:=]\s*["']?(?:[a-z]+\s+)?)[^\s"',;`]{8,}"""), rf"\1{MASK}"),
    (re.compile(r"\b(Bearer|Basic)\s+(?=\S*[\d=])[\w.~+/=-]{8,}"), rf"\1 {MASK}"),
    (re.compile(r"\b(?:sk-[\w-]{16,}|hf_[A-Za-z0-9]{20,})"), MASK),
)
_SECRET_OPTION = re.compile(rf"--?[\w-]*{_NAMES}", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r".*(KEY|TOKEN|SECRET|PASSWORD|PASSWD)")
_URL_WITH_USER = re.compile(r"""://([^\s/?#"'<>\\]*)@([^\s/?#"'<>\\,+@]+)""")

_format_warning = warnings.formatwarning

#: User info by host and port, and other secrets that this process has seen.
_users: dict[str, str] = {}
_values: set[str] = set()


def mask(text: str) -> str:
    """The text with *** in place of secrets.

    >>> mask("no reply from http://ann:secret@node:8000/v1?api_key=abc")
    'no reply from http://***@node:8000/v1?api_key=***'
    """
    for pattern, masked_text in _TEXT_SECRETS:
        text = pattern.sub(masked_text, text)
    # Secrets in the environment are not plain words: `X_TOKEN=disabled` is none.
    variables = {each for name, each in os.environ.items() if _SECRET_VARIABLE.fullmatch(name) and not each.isalpha()}
    for value in sorted(_values | variables, key=len, reverse=True):
        if len(value) >= _SHORTEST and value in text:
            text = text.replace(value, MASK)
    return text


def masked(data: Any) -> Any:
    """Plain data with all strings masked."""
    return _with_strings(data, mask)


def mask_command(words: Sequence[str]) -> list[str]:
    """A command line with its secrets masked.

    >>> mask_command(["run.py", "--api-key", "abc", "--set", "data.index=http://ann:secret@node"])
    ['run.py', '--api-key', '***', '--set', 'data.index=http://***@node']
    """
    return [MASK if _SECRET_OPTION.fullmatch(before) else mask(word) for before, word in zip(["", *words], words)]


def remember(secret: str) -> None:
    """Mask this value wherever it occurs from now on, such as in an error that a server sends back."""
    _values.add(secret)


def hide(url: str) -> str:
    """A URL, or a setting that contains URLs, without user info and keys. `reveal` restores the user info.

    >>> reveal(hide("http://ann:secret@node:8000/v1"))
    'http://ann:secret@node:8000/v1'
    """
    if "://" not in url:
        return url
    for info, host in _URL_WITH_USER.findall(url):
        if info != MASK:
            _users[host.lower()] = info
            _values.update((info, base64.b64encode(unquote(info).encode()).decode()))
            _values.update((info.partition(":")[2], unquote(info.partition(":")[2])))
    for pattern, masked_text in _URL_SECRETS:
        url = pattern.sub(masked_text, url)
    return url


def reveal(url: str) -> str:
    """A masked URL with its user info, to open a connection. An error if this process has not seen it."""
    found = _revealed(url)
    if f"://{MASK}@" in found:
        from stepladder.core.errors import StepladderError  # which masks its messages by this module

        raise StepladderError(
            f"the user and password of {url} are never stored: type the URL again in full (--index, --base-url, "
            "--judge-url, --teacher-url, or --set NAME=URL), with %2F for / and %40 for @ in a password"
        )
    return found


def revealed(data: Any) -> Any:
    """Plain data with the user info of all URLs that this process has seen, for a process started by this one."""
    return _with_strings(data, _revealed)


def mask_process() -> None:
    """Mask what this process shows of itself: its command line, its logs and tracebacks. For command line programs."""
    sys.argv[:] = mask_command(sys.argv)
    logging.setLogRecordFactory(_MaskedRecord)
    sys.excepthook = _print_masked
    threading.excepthook = lambda error: _print_masked(*error[:3])
    sys.unraisablehook = lambda error: _print_masked(error.exc_type, error.exc_value, error.exc_traceback)
    warnings.formatwarning = _masked_warning


def _print_masked(*error: Any) -> None:
    print(mask("".join(traceback.format_exception(*error))), file=sys.stderr)


def _masked_warning(*values: Any, **named: Any) -> str:
    return mask(_format_warning(*values, **named))


class _MaskedRecord(logging.LogRecord):
    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.args = masked(self.args)  # some formatters read them
        if self.exc_info and self.exc_info[0] is not None:
            self.exc_text = mask("".join(traceback.format_exception(*self.exc_info)).rstrip())

    def getMessage(self) -> str:
        return mask(super().getMessage())  # also what objects such as URLs and errors become as text


def _revealed(url: str) -> str:
    return re.sub(
        rf"""://{re.escape(MASK)}@([^\s/?#"'<>\\,+@]+)""",
        lambda match: f"://{_users.get(match[1].lower(), MASK)}@{match[1]}",
        url,
    )


def _with_strings(data: Any, change: Callable[[str], str]) -> Any:
    if isinstance(data, str):
        return change(data)
    if type(data) in (list, tuple):
        return type(data)(_with_strings(each, change) for each in data)
    if isinstance(data, dict):
        return {_with_strings(key, change): _with_strings(each, change) for key, each in data.items()}
    return data
