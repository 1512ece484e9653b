"""A paid judge that is killed pays for nothing twice."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepladder.engines.spend.budget import BudgetExhausted
from tests.support import ROOT, openai_server
from tests.support.openai_server import Answer, Server, says
from tests.support.paid_calls import Till, calls, content, opened, run

server = openai_server.server
_CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support import paid_calls
from tests.support.openai_server import Server
engine = paid_calls.opened(Server(url=sys.argv[2]), Path(sys.argv[3]), paid_calls.calls(8), concurrency=2)
paid_calls.run(engine, 8)
"""


def test_after_a_kill_nothing_on_record_is_asked_again(server: Server, tmp_path: Path) -> None:
    """Three calls are answered, two hang when the process is killed: those may have been billed, and count."""
    till = Till()

    def answer(body: dict[str, Any], n: int) -> Answer:
        usage = till.usage(body)
        return server.hang() if n >= 3 and not killed.is_set() else says(f"to {content(body)}", usage=usage)

    server.answer = answer
    killed = threading.Event()
    replies = tmp_path / "replies.jsonl"
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(ROOT), server.url, str(tmp_path)],
        env=os.environ | {"NO_PROXY": "127.0.0.1"},
    )
    try:
        with server.lock:  # a process takes its time to start
            assert server.lock.wait_for(lambda: len(server.requests) == 5, timeout=60)
        kept = [json.loads(line)["text"] for line in replies.read_text().splitlines()]
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(kept) == 3
    killed.set()

    with closing(opened(server, tmp_path, calls(8))) as engine:
        assert (engine.spend().calls, engine.spend().lost) == (3, 2)
        with pytest.raises(BudgetExhausted):
            run(engine, 8)
    assert till.tokens == calls(8).limit
    with closing(opened(server, tmp_path, calls(10))) as engine:
        assert run(engine, 8) == [f"to Question {n:02}?" for n in range(8)]
    assert till.tokens == calls(10).limit
    sent = Counter(map(content, server.requests))
    assert {sent[text.removeprefix("to ")] for text in kept} == {1}
    assert sorted(sent.values()) == [1] * 6 + [2] * 2
