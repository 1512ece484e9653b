"""The command line in this process."""

import json
from typing import Any

import pytest

from stepladder import cli


class Shell:
    """Types commands and looks at what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def run(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """What a command prints as its result, and as notes."""
        found = cli.main([str(each) for each in arguments])
        printed = self.capsys.readouterr()
        assert found == code, printed
        return printed.out, printed.err

    def __call__(self, *arguments: object, code: int = 0) -> str:
        out, err = self.run(*arguments, code=code)
        return out if code == 0 else err

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)
