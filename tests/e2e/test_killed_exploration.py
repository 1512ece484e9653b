"""Exploring that is killed again and again leaves the trees of an undisturbed run."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.tree_store import TreeFile, explore, read_trees
from tests.support import ROOT
from tests.support.samples import WordRetriever
from tests.support.trees import many, stroll, tree_of

KILLED = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.tree_store import explore
from tests.support.samples import WordRetriever
from tests.support.trees import many, stroll, tree_of

def slowly(request):
    time.sleep(0.0005)
    return stroll(request)

driver = Driver(ScriptedEngine(slowly, max_batch=16), WordRetriever(), in_flight=6)
print("ready", flush=True)
explore(driver, many(40), tree_of, Path(sys.argv[1]), seed=5)
print("done", flush=True)
"""


def test_killed_ten_times_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """kill -9 at random moments, then a run to the end: the same trees as of a run that nobody disturbed."""
    path, script = tmp_path / "trees.jsonl.gz", tmp_path / "run.py"
    script.write_text(KILLED.format(tests=str(ROOT)))
    moments = random.Random(0)
    known: set[str] = set()
    kills = 0

    def start() -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, str(script), str(path)], stdout=subprocess.PIPE, text=True, env=environment
        )

    while kills < 10:
        process = start()
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        finished = process.wait() == 0
        process.stdout.close()
        assert not finished, "the run was over before it could be killed: give it more to do"
        kills += 1
        with TreeFile(path) as file:
            now = set(file.ids)
        assert known <= now, "a tree that was written is gone"
        known = now
    last = start()
    assert last.wait() == 0
    assert last.stdout is not None
    last.stdout.close()
    trees = list(read_trees(path))
    assert sorted(tree.question.id for tree in trees) == sorted(question.id for question in many(40))
    undisturbed = tmp_path / "undisturbed.jsonl.gz"
    explore(Driver(ScriptedEngine(stroll), WordRetriever()), many(40), tree_of, undisturbed, seed=5)
    assert {tree.question.id: tree for tree in trees} == {t.question.id: t for t in read_trees(undisturbed)}
