"""A study that is killed resumes with the same command, and lists what is not finished until then."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepladder.pipeline.run_folder import RunFolder, is_run
from stepladder.reporting.studies.study_registration import FILE
from stepladder.reporting.studies.study_results import read_results
from tests.support import ROOT
from tests.support.small_study import small_study, small_study_file

pytestmark = pytest.mark.slow


@pytest.mark.skipif("STEPLADDER_LONG_TESTS" not in os.environ, reason="takes minutes: set STEPLADDER_LONG_TESTS=1")
def test_a_killed_study_resumes(tmp_path: Path) -> None:
    file, folder = small_study_file(tmp_path), tmp_path / "out" / "small"
    command = [sys.executable, "-m", "stepladder", "study", str(file), "--out", str(folder.parent), "--json"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
    study = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first, second = folder / "seed-0" / "short", folder / "seed-0" / "long"
    end = time.monotonic() + 300
    while not (is_run(first) and RunFolder(first).done("after")) and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(study.pid, signal.SIGKILL)
    study.wait()
    registered = (folder / FILE).read_text()
    done = (first / "after" / "stage.json").read_bytes()
    left = [(each.seed, each.arm) for each in read_results(small_study(tmp_path), folder).unfinished]
    assert left == [(0, "long")]

    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(again.stdout)
    assert found["unfinished"] == []
    assert found["contrasts"]["long - short"]["differences"] == {"0": 0.0}
    assert found["contrasts"]["long - short"]["verdict"] == "no verdict: 1 of at least 5 seeds"
    assert RunFolder(second).done("after") is not None
    assert (first / "after" / "stage.json").read_bytes() == done, "not computed again"
    assert (folder / FILE).read_text() == registered
    assert found["registration"]["sha256"] == json.loads(registered)["sha256"]
