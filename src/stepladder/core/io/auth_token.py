"""The token of a server: where it comes from, and what it may be made of."""

import os
from pathlib import Path

from stepladder.core.errors import StepladderError

#: The environment variable with the token of servers, for those who serve and those who ask.
TOKEN_VARIABLE = "STEPLADDER_TOKEN"


def validate_token(token: str) -> str:
    """A token that fits into a header, without the blanks around it. The error does not show it."""
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise StepladderError("the token is empty, or holds a blank, a line break or a character beyond ASCII")
    return token


def read_token(file: Path | None) -> str | None:
    """The token in a file or else in the environment; None where neither has one."""
    try:
        if file is not None:
            return validate_token(file.read_text(encoding="utf-8"))
        text = os.environ.get(TOKEN_VARIABLE)
        return None if text is None else validate_token(text)
    except (UnicodeDecodeError, StepladderError) as error:
        source = f"--token-file {file}" if file is not None else TOKEN_VARIABLE
        raise StepladderError(f"{source} must hold a token and nothing else: one word, printable ASCII") from error
