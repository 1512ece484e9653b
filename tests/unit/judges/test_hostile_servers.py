"""What a judge's server may have billed counts, whatever it says; what it surely has not billed is given back."""

import gzip
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.requests import Generation, Sampling
from stepladder.core.trace import Usage
from stepladder.engines.openai.http_client import MAX_REPLY
from stepladder.engines.openai.openai_protocol import usage_of
from stepladder.engines.spend.budget import BudgetEngine, BudgetExhausted
from stepladder.engines.spend.ledger import Ledger
from stepladder.engines.spend.prices import Budget
from tests.support import ROOT, openai_server
from tests.support.openai_server import Answer, Server, fails, says
from tests.support.paid_calls import MOST, Till, ask, calls, opened, question, run

server = openai_server.server

_FILTERED = fails(400, "filtered", code="content_filter")
_COUNTED = Answer(429, {"error": {"message": "no"}, "usage": {"prompt_tokens": 400, "completion_tokens": 20}})


@pytest.mark.parametrize(
    "last",
    [fails(500), fails(501), fails(502), fails(503), fails(408), Answer(500, b"<html>"), _FILTERED, _COUNTED],
    ids=["500", "501", "502", "503", "408", "HTML", "filtered", "429 with a count"],
)
def test_a_server_that_bills_and_then_fails_cannot_pass_the_budget(
    server: Server, tmp_path: Path, last: Answer
) -> None:
    till = Till()

    def answer(body: dict[str, Any], n: int) -> Answer:
        till.usage(body)
        return last

    server.answer = answer
    for _ in range(3):
        with (
            closing(opened(server, tmp_path, calls(5), concurrency=1)) as engine,
            pytest.raises(BudgetExhausted) as stopped,
        ):
            run(engine, 9)
    assert "calls that may have been billed count with their maximum" in str(stopped.value) or last is _COUNTED
    assert 0 < till.tokens <= calls(5).limit


@pytest.mark.parametrize("count", [True, -500, "1", 0.5, 10**30, 1, [1], {"tokens": 1}, None])
def test_a_count_that_cannot_be_true_is_the_maximum(server: Server, tmp_path: Path, count: object) -> None:
    server.answer = lambda body, n: says("because " * 20, usage={"prompt_tokens": count, "completion_tokens": count})
    with closing(opened(server, tmp_path, concurrency=1)) as engine:
        engine.generate([request := ask("Which of these is the better step? " * 10)])
    spend = engine.spend()
    assert spend.calls == 1
    assert spend.tokens_read > len(request.context[0].text)
    assert spend.tokens_written == 20


def test_samples_that_a_server_counts_once_are_all_paid_for(server: Server, tmp_path: Path) -> None:
    """As llama.cpp does: three samples of 20 tokens, and a count of 20."""
    hot = Sampling(temperature=1.0, max_tokens=20)
    usage = {"prompt_tokens": 30, "completion_tokens": 20}
    choices = [says("a b c", "length").body["choices"][0] for _ in range(3)]
    server.answer = lambda body, n: Answer(body={"choices": choices, "usage": usage})
    with closing(opened(server, tmp_path, calls(99))) as engine:
        requests = [replace(question(0), sampling=hot, seed=seed) for seed in range(3)]
        assert len(engine.generate(requests)) == 3
        assert engine.spend().tokens_written == 60
    assert [body["n"] for body in server.requests] == [3]


def test_reasoning_that_only_the_total_counts_is_paid_for() -> None:
    assert usage_of({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 61}) == Usage(9, 52)
    assert usage_of({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 3}) == Usage(9, 2)


@pytest.mark.parametrize(
    "refusal",
    [
        fails(401, "who?"),
        fails(403, "no"),
        fails(404, "where?"),
        fails(429, "slow down", headers={"Retry-After": "0.001"}),
        fails(503, "later", headers={"Retry-After": "0.001"}),
        Answer(400, {"error": {"message": "bad"}, "usage": {"prompt_tokens": 0, "completion_tokens": 0}}),
    ],
    ids=["401", "403", "404", "429", "503 and when to come back", "400, counted as 0"],
)
def test_refusals_do_not_use_the_budget_up(server: Server, tmp_path: Path, refusal: Answer) -> None:
    """Also not those that wait while the first is refused: they are not sent."""
    server.answer = lambda body, n: refusal
    for _ in range(3):
        with closing(opened(server, tmp_path, calls(1), concurrency=4)) as engine:
            try:
                run(engine, 4)
            except BudgetExhausted:
                raise
            except BackendDown:
                pass
        assert (engine.spend().lost, engine.spend().tokens_read) == (0, 0)
    server.answer = lambda body, n: says("fine")
    with closing(opened(server, tmp_path, calls(1))) as engine:
        assert isinstance(engine.generate([question(0)])[0], Generation)


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (Answer(body=b" " * 65_536, endless=True), "too long; expected at most 8.4 MB"),
        (Answer(body=b"{", headers={"Content-Length": "1000000000"}), "too long; expected at most 8.4 MB"),
        (Answer(body=gzip.compress(b" " * 10**6), headers={"Content-Encoding": "gzip"}), r"compressed \(gzip\)"),
    ],
    ids=["without end", "1 GB", "compressed"],
)
def test_a_reply_of_any_size_is_one_line_and_may_have_been_billed(
    server: Server, tmp_path: Path, reply: Answer, problem: str, status: int
) -> None:
    server.answer = lambda body, n: replace(reply, status=status)
    with closing(opened(server, tmp_path, calls(3), max_retries=3)) as engine:
        (found,) = engine.generate([question(0)])
    with pytest.raises(BackendError, match=problem):
        raise found if isinstance(found, BackendError) else AssertionError(found)
    assert len(server.requests) == 1  # another one might be billed too
    assert engine.spend().lost == 1
    assert server.sent < 3 * MAX_REPLY  # what is in the buffers of the network, and no more


def test_a_redirect_is_not_followed_and_not_paid_twice(server: Server, tmp_path: Path) -> None:
    server.answer = lambda body, n: Answer(307, {}, {"Location": "/v1/chat/completions"})
    with closing(opened(server, tmp_path, calls(3))) as engine, pytest.raises(BackendDown, match="redirects to /v1"):
        engine.generate([question(0)])
    assert len(server.requests) == 1
    assert engine.spend().lost == 1


def test_what_a_server_counts_beyond_the_maximum_is_known_after_a_restart(server: Server, tmp_path: Path) -> None:
    """Four at once: the first alone shows the hidden prompt, the next process reserves for it from the start."""
    till = Till()

    def answer(body: dict[str, Any], n: int) -> Answer:
        usage = till.usage(body)
        till.tokens += 1_000
        return says("fine", usage={**usage, "prompt_tokens": usage["prompt_tokens"] + 1_000})

    server.answer = answer
    each = MOST.read + MOST.written + 1_000
    budget = Budget(Decimal(int(3.5 * each)), "tok")
    with closing(opened(server, tmp_path, budget, concurrency=4)) as engine:
        run(engine, 2)
    for _ in range(2):
        with (
            closing(opened(server, tmp_path, budget, concurrency=4)) as engine,
            pytest.raises(BudgetExhausted, match=f"may cost {each:,} tokens"),
        ):
            run(engine, 9)
    assert till.tokens == 3 * each <= budget.limit


class Full:
    """A file on a disk with room for 7 more bytes."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: bytes) -> int:
        return int(self.file.write(data[:7]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_half_a_line_on_a_full_disk_leaves_a_ledger_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Ledger(tmp_path / "spend.jsonl")) as ledger:
        first = ledger.reserve("m", Usage(100, 10))
        real = ledger._file
        monkeypatch.setattr(ledger, "_file", Full(real))
        with pytest.raises(BackendDown, match=r"write the ledger .*spend.jsonl: No space left.* MB are free"):
            ledger.settle(first, Usage(1, 1))
        monkeypatch.setattr(ledger, "_file", real)
        ledger.reserve("m", Usage(5, 5))
    with closing(Ledger(tmp_path / "spend.jsonl")) as ledger:
        assert (ledger.totals, ledger.open) == ({"m": Usage(105, 15)}, 2)


def test_a_call_is_on_the_disk_before_it_is_sent(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure then cannot forget it."""
    on_disk, real = [0], os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "spend.jsonl":
            on_disk[0] = (tmp_path / "spend.jsonl").read_bytes().count(b"\n")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    recorded = []

    def answer(body: dict[str, Any], n: int) -> Answer:
        recorded.append(on_disk[0])
        return says("fine")

    server.answer = answer
    with closing(opened(server, tmp_path, calls(9), concurrency=1)) as engine:
        run(engine, 3)
    assert recorded == [1, 3, 5]  # each call, and the ends of those before it


@pytest.mark.parametrize("fails_at", ["write", "fsync"])
def test_nothing_is_sent_if_the_disk_of_the_ledger_is_full(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """Some file systems notice only when the data has to be on the disk."""
    with closing(opened(server, tmp_path, calls(9))) as engine, monkeypatch.context() as patch:
        assert isinstance(engine.engine, BudgetEngine)
        ledger = engine.engine.limiter.ledger
        if fails_at == "write":
            patch.setattr(ledger, "_file", Full(ledger._file))
        else:
            patch.setattr(os, "fsync", lambda _: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
        for _ in range(2):
            with pytest.raises(BackendDown, match=r"ledger .*spend.jsonl: No space left.*No call is sent"):
                engine.generate([question(0)])
    assert server.requests == []


def test_two_processes_cannot_each_spend_the_budget(server: Server, tmp_path: Path) -> None:
    with closing(opened(server, tmp_path, calls(3))), pytest.raises(StepladderError, match="in use by another"):
        opened(server, tmp_path, calls(3))


@pytest.mark.slow
def test_the_limit_holds_over_restarts_kills_and_two_processes() -> None:
    modes = ["booleans", "bills, then 500", "bills, then hangs", "401, not billed", "every second call 500"]
    done = subprocess.run(
        [sys.executable, ROOT / "checks/judge_servers.py", *modes],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 servers, 3 restarts each: 0 wrong" in done.stdout
