"""The commands of docs/studio.md, as processes of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.made_runs import made_run

COMMANDS = re.findall(r"^stepladder (studio\b[^#\n]*)", (ROOT / "docs" / "studio.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_open_a_studio(command: str, tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "nano", trees=1)
    (tmp_path / "token.txt").write_text("open-sesame\n")
    arguments = [sys.executable, "-m", "stepladder", *command.split(), "--port", "0"]
    with subprocess.Popen(arguments, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert re.match(r"http://[\d.]+:\d+ serves .*runs.*, 1 run \(press Ctrl-C to stop\)$", line), line
        process.terminate()
        assert process.wait(20) == 0


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 4
