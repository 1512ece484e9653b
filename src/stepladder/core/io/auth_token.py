"""Bearer tokens of servers: reading and validation."""

import os
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.io.masking import remember

#: Environment variable with the token, for servers and clients.
TOKEN_VARIABLE = "STEPLADDER_TOKEN"


def validate_token(token: str) -> str:
    """The stripped token, if it is valid in an HTTP header. The error does not contain it."""
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise StepladderError("the token is empty or contains a space, a line break or a non-ASCII character")
    remember(token)
    return token


def read_token(file: Path | None) -> str | None:
    """The token from a file or else from the environment; None if neither has one."""
    try:
        if file is not None:
            return validate_token(file.read_text(encoding="utf-8"))
        text = os.environ.get(TOKEN_VARIABLE)
        return None if text is None else validate_token(text)
    except (UnicodeDecodeError, StepladderError) as error:
        source = f"--token-file {file}" if file is not None else TOKEN_VARIABLE
        raise StepladderError(f"{source} must contain only a token: one word, printable ASCII") from error
