"""What a server gets from the environment: the key, and the headers of an organization or a gateway."""

import os

from stepladder.core.io.known_servers import is_stranger

KEY_VARIABLE = "OPENAI_API_KEY"


def server_headers(url: str, key: str, *, known: bool) -> dict[str, str]:
    """The headers for a server. One that only a file names gets nothing from the environment, unless it is `known`."""
    headers = {"Authorization": f"Bearer {key or 'none'}", "User-Agent": "stepladder"}
    if known or not is_stranger(KEY_VARIABLE, url):
        for name, variable in (("OpenAI-Organization", "OPENAI_ORG_ID"), ("OpenAI-Project", "OPENAI_PROJECT_ID")):
            if value := os.environ.get(variable, "").strip():
                headers[name] = value
        custom = (line.partition(":") for line in os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines())
        headers |= {name.strip(): value.strip() for name, _, value in custom if name.strip()}
    return headers
