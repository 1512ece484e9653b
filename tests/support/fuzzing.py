"""Schemathesis against a running server: requests made of its own schema, good and bad, every answer checked."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from schemathesis.engine import from_schema
from schemathesis.engine.events import FatalError, NonFatalError, ScenarioFinished

from tests.support.http_servers import RunningServer


@dataclass
class Fuzzed:
    #: How often each endpoint answered with each status.
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    #: What schemathesis found to be wrong.
    problems: list[str] = field(default_factory=list)


def fuzz(server: RunningServer, token: str = "", examples: int = 100, **others: Any) -> Fuzzed:
    """Boundary values of everything that is declared, then so many random requests an endpoint, the same every time."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    config = schemathesis.Config.from_dict(
        {
            "seed": 0,
            "headers": headers,
            "generation": {"max-examples": examples, "deterministic": True, "database": "none", "no-shrink": True},
            "phases": {"stateful": {"enabled": False}},
            **others,
        }
    )
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", headers=headers, config=config)
    found = Fuzzed()
    for event in from_schema(schema).execute():
        if isinstance(event, NonFatalError | FatalError):
            found.problems.append(repr(event))
        if not isinstance(event, ScenarioFinished):
            continue
        for interaction in event.recorder.interactions.values():
            if interaction.response is not None:
                found.statuses[event.recorder.label, interaction.response.status_code] += 1
        for checks in event.recorder.checks.values():
            failed = [check.failure_info.failure for check in checks if check.failure_info]
            found.problems += [f"{event.recorder.label}: {failure.title}: {failure.message}" for failure in failed]
    return found
