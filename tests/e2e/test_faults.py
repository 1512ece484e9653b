"""The standing check of faults, on request: a short seed of one job, ten minutes of all jobs.

What a kill leaves behind is tested job by job in `test_killed_*.py`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = [
    pytest.mark.slow,  # an undisturbed run, then disturbed ones
    pytest.mark.skipif("STEPLADDER_LONG_TESTS" not in os.environ, reason="takes minutes: set STEPLADDER_LONG_TESTS=1"),
]


def survives(out: Path, *options: str) -> None:
    """kill -9, interrupts, full and slow disks: every result is equal to an undisturbed one."""
    command = [sys.executable, "checks/faults.py", "--out", str(out), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    faults, *_ = (line for line in done.stdout.splitlines() if "faults; results" in line)
    assert int(faults.split()[0]) > 0
    assert "different" not in faults


def test_work_survives_random_faults(tmp_path: Path) -> None:
    survives(tmp_path / "out", "--short", "--only", "recipe", "--minutes", "0.1", "--seed", "7")


def test_all_jobs_survive_ten_minutes_of_faults(tmp_path: Path) -> None:
    survives(tmp_path / "out", "--minutes", "10", "--seed", "7")
