"""The agent server held to its own schema, and to OpenAI's: schemathesis makes requests, and checks every answer.

Answers must have the shape of OpenAI's `ChatCompletion`, what the schema forbids must be refused with a declared
status, and nothing may be a 5xx. Not all that the schema allows has an answer: it cannot say that one message must be
of the user.
"""

from typing import Any

import pytest

from tests.support.agent_servers import Fragile, Oracle, running
from tests.support.fuzzing import fuzz

TOKEN = "open-sesame"
CHAT = "POST /v1/chat/completions"
CHECKS = {"positive_data_acceptance": {"enabled": False}}


@pytest.mark.parametrize("token", ["", TOKEN])
def test_the_server_does_what_its_schema_says(token: str) -> None:
    with running(Oracle(), **({"token": token} if token else {})) as server:
        found = fuzz(server, token, checks=CHECKS)
    assert found.problems == []
    for label in ("GET /v1/models", "GET /health", "GET /info", "GET /metrics"):
        assert found.statuses[label, 200] > 0
        assert (found.statuses[label, 401] > 0) == (bool(token) and label != "GET /health")
    assert found.statuses["GET /v1/models/{name}", 404] > 0
    assert found.statuses[CHAT, 200] > 20
    assert found.statuses[CHAT, 422] > 20
    assert {status for _, status in found.statuses} <= {200, 401, 404, 405, 422}


def test_an_agent_that_fails_is_found_out() -> None:
    class Broken(Fragile):
        def generate(self, requests: Any) -> Any:
            raise RuntimeError("a mistake in the engine")

    with running(Broken()) as server:
        found = fuzz(server, examples=1, checks=CHECKS)
    assert any(f"{CHAT}: Server error" in problem for problem in found.problems), found
