"""Budgets are never passed and replies never paid for twice, whatever the server does and however a run ends."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.requests import Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment, Usage
from stepladder.engines.scripted import ScriptedEngine
from stepladder.engines.spend.budget import (
    TEMPLATE_PER_CALL,
    TEMPLATE_PER_MESSAGE,
    BudgetExhausted,
    max_usage,
)
from stepladder.engines.spend.ledger import Ledger
from stepladder.engines.spend.prices import Budget, PriceTable
from stepladder.engines.spend.response_cache import CachedEngine, ResponseCache
from tests.support import openai_server
from tests.support.openai_server import Answer, Server, fails, says
from tests.support.paid_calls import MOST, Till, calls, content, opened, question, run

server = openai_server.server


# --- what a user writes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit", "unit"),
    [
        ("5usd", "5", "usd"),
        ("0.5usd", "0.5", "usd"),
        (" .25 USD ", "0.25", "usd"),
        ("2Mtok", "2000000", "tok"),
        ("300ktok", "300000", "tok"),
        ("1.5ktok", "1500", "tok"),
        ("1500tok", "1500", "tok"),
    ],
)
def test_budgets_are_dollars_or_tokens(text: str, limit: str, unit: str) -> None:
    assert Budget.parse(text) == Budget(Decimal(limit), unit)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "5", "usd", "$5", "-5usd", "5eur", "1e3tok", "nan usd", "5 usd or so", "٥usd"])
def test_other_budgets_are_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="such as 5usd"):
        Budget.parse(text)


def test_half_a_token_is_no_budget() -> None:
    with pytest.raises(ValueError, match="whole number of tokens"):
        Budget.parse("0.5tok")


def test_prices_can_be_added_and_corrected(tmp_path: Path) -> None:
    assert PriceTable().need("gpt-4o-mini").of(Usage(2_000_000, 1_000_000)) == Decimal("0.9")
    own = tmp_path / "prices.yaml"
    own.write_text("models:\n  gpt-4o-mini: {input: 1, output: 2}\n  mine: {input: 0, output: 0.1}\n")
    table = PriceTable(own)
    assert table.need("gpt-4o-mini").of(Usage(1_000_000, 1_000_000)) == 3
    assert table.need("mine").of(Usage(9, 10)) == Decimal("0.000001")
    assert table.get("gpt-4o") is not None
    with pytest.raises(StepladderError, match=rf"'other' has no price in {own}.*or a budget in tokens, such as 2Mtok"):
        table.need("other")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models:\n  a: {input: 1}\n", "models.a.output: is missing"),
        ("models:\n  a: {input: -1, output: 1}\n", "models.a.input: expected greater than or equal to 0"),
        ("models:\n  a: {input: .nan, output: 1}\n", "models.a.input"),
        ("models: {}\nmodel: {}\n", "Did you mean 'models'"),
        ("a: [", "not YAML"),
        ("", "expected settings"),
    ],
)
def test_a_bad_price_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(StepladderError, match=problem) as caught:
        PriceTable(path)
    assert str(path) in str(caught.value)


def test_a_price_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="cannot be read: No such file"):
        PriceTable(tmp_path / "none.yaml")


def test_dollars_need_a_price(server: Server, tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="model 'tiny' has no price"):
        opened(server, tmp_path, Budget.parse("5usd"))
    opened(server, tmp_path, Budget.parse("5Mtok")).close()  # and the ledger was let go of


def test_the_most_a_call_can_cost_counts_bytes() -> None:
    said = (Segment(Author.PROMPT, "é" * 10), Segment(Author.POLICY, "abc"), Segment(Author.ENVIRONMENT, "de\ud800"))
    most = max_usage(Generate(said, sampling=Sampling(max_tokens=7)))
    assert most == Usage(20 + 3 + 2 + len("\ufffd".encode()) + 3 * TEMPLATE_PER_MESSAGE + TEMPLATE_PER_CALL, 7)


# --- within the budget --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_run_stops_before_it_can_pass_its_budget_and_goes_on_with_a_larger_one(
    server: Server, tmp_path: Path, concurrency: int
) -> None:
    till = Till()
    server.answer = till.answer
    with (
        closing(opened(server, tmp_path, calls(3.9), concurrency=concurrency)) as engine,
        pytest.raises(BudgetExhausted, match=r"the next call may cost 304 tokens.*larger budget") as stopped,
    ):
        run(engine, 9)
    spend = engine.spend()
    assert (spend.calls, spend.lost) == (3, 0)
    assert till.tokens == spend.tokens_read + spend.tokens_written <= calls(3.9).limit
    assert sum(outcome.value is not None for outcome in stopped.value.outcomes) <= 3

    with (
        closing(opened(server, tmp_path, calls(3.9), concurrency=concurrency)) as engine,
        pytest.raises(BudgetExhausted),
    ):
        run(engine, 9)  # what was spent before counts
    assert len(server.requests) == 3

    with closing(opened(server, tmp_path, calls(9), concurrency=concurrency)) as engine:
        assert run(engine, 9) == [f"to {content(body)}" for body in sorted(server.requests, key=content)]
    assert engine.spend().cached == 3
    assert Counter(map(content, server.requests)) == {f"Question {n:02}?": 1 for n in range(9)}
    assert till.tokens <= calls(9).limit


def test_calls_that_turn_out_cheap_leave_their_rest_to_others(server: Server, tmp_path: Path) -> None:
    """Two fit at once at their most. None is refused: the others wait until it is known what those cost."""
    server.answer = Till(part=0.1).answer
    with closing(opened(server, tmp_path, calls(2.9), concurrency=8)) as engine:
        assert None not in run(engine, 12)
    assert server.peak <= 2
    assert engine.spend().calls == 12


def test_a_server_that_does_not_count_is_charged_the_most(server: Server, tmp_path: Path) -> None:
    with closing(opened(server, tmp_path, calls(2))) as engine:
        run(engine, 2)
        assert (engine.spend().tokens_read, engine.spend().tokens_written) == (2 * MOST.read, 2 * MOST.written)
        with pytest.raises(BudgetExhausted):
            engine.generate([question(2)])


def test_dollars_are_spent_to_the_last_but_not_further(server: Server, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("models:\n  tiny: {input: 1000, output: 5000}\n")
    server.answer = Till().answer
    cost = Decimal(MOST.read) / 1000 + Decimal(MOST.written) * 5 / 1000
    with closing(opened(server, tmp_path, Budget(2 * cost, "usd"), prices=prices)) as engine:
        run(engine, 2)
        assert engine.spend().usd == float(2 * cost)
        with pytest.raises(BudgetExhausted, match=rf"is spent: \${2 * cost:.4f} so far"):
            engine.generate([question(2)])


def test_a_server_that_reads_more_than_it_is_sent_is_seen_through(server: Server, tmp_path: Path) -> None:
    """Its own system prompt costs 1,000 tokens. The first call cannot know; from then on it is put aside."""
    server.answer = lambda body, n: says("fine", usage={"prompt_tokens": MOST.read + 1_000, "completion_tokens": 1})
    budget = Budget(Decimal(5 * (MOST.read + 1_001)), "tok")
    with closing(opened(server, tmp_path, budget, concurrency=1)) as engine, pytest.raises(BudgetExhausted):
        run(engine, 9)
    spend = engine.spend()
    assert spend.calls == 4
    assert spend.tokens_read + spend.tokens_written <= budget.limit


def test_a_budget_of_nothing_buys_nothing(server: Server, tmp_path: Path) -> None:
    with closing(opened(server, tmp_path, Budget.parse("0tok"))) as engine, pytest.raises(BudgetExhausted):
        engine.generate([question(0)])
    assert server.requests == []


# --- attempts that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "lost"),
    [
        (lambda server: fails(429, "slow down", headers={"Retry-After": "0.01"}), 0),
        (lambda server: fails(503, "overloaded", headers={"Retry-After": "0.01"}), 0),
        (lambda server: fails(503, "overloaded"), 1),
        (lambda server: fails(500, "oops"), 1),
        (lambda server: fails(504, "upstream is slow"), 1),
        (lambda server: Answer(200, {"choices": []}, breaks_off=True), 1),
        (lambda server: server.hang(), 1),
    ],
    ids=["429", "503 and when to come back", "503", "500", "504", "breaks off", "hangs"],
)
def test_an_attempt_without_a_reply_is_charged_if_it_may_have_been_billed(
    server: Server, tmp_path: Path, trouble: Callable[[Server], Answer], lost: int
) -> None:
    server.answer = lambda body, n: (
        trouble(server) if n == 0 else says("fine", usage={"prompt_tokens": 5, "completion_tokens": 2})
    )
    with closing(opened(server, tmp_path, timeout=0.5, max_retries=9)) as engine:
        (reply,) = engine.generate([question(0)])
    assert isinstance(reply, Generation)
    spend = engine.spend()
    lost *= len(server.requests) - 1  # a slow machine may time out more than once
    assert (spend.calls, spend.lost) == (1, lost)
    assert (spend.tokens_read, spend.tokens_written) == (5 + lost * MOST.read, 2 + lost * MOST.written)


def test_a_server_that_bills_and_never_answers_cannot_pass_the_budget(server: Server, tmp_path: Path) -> None:
    till = Till()

    def answer(body: dict[str, Any], n: int) -> Answer:
        till.usage(body)
        return server.hang()

    server.answer = answer
    with (
        closing(opened(server, tmp_path, calls(4), timeout=0.2, max_retries=9, concurrency=3)) as engine,
        pytest.raises(BudgetExhausted),
    ):
        run(engine, 3)
    assert (engine.spend().calls, engine.spend().lost) == (0, 4)
    assert till.tokens <= calls(4).limit


def test_no_server_costs_nothing(server: Server, tmp_path: Path) -> None:
    server.url = "http://127.0.0.1:9/v1"
    with closing(opened(server, tmp_path)) as engine, pytest.raises(BackendDown, match="no server responds"):
        engine.generate([question(0)])
    assert (engine.spend().calls, engine.spend().lost, engine.spend().tokens_read) == (0, 0, 0)


def test_a_reply_that_cannot_be_used_is_paid_all_the_same(server: Server, tmp_path: Path) -> None:
    server.answer = lambda body, n: says(None, usage={"prompt_tokens": 5, "completion_tokens": 2})
    with closing(opened(server, tmp_path)) as engine:
        (reply,) = engine.generate([question(0)])
    assert isinstance(reply, BackendError)
    assert (engine.spend().calls, engine.spend().tokens_read, engine.spend().tokens_written) == (1, 5, 2)


def test_a_model_that_wants_another_name_for_max_tokens_is_paid_once(server: Server, tmp_path: Path) -> None:
    def answer(body: dict[str, Any], n: int) -> Answer:
        if "max_tokens" in body:
            said = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
            return fails(400, said, param="max_tokens", code="unsupported_parameter")
        return says("fine", usage={"prompt_tokens": 5, "completion_tokens": 2})

    server.answer = answer
    with closing(opened(server, tmp_path, calls(1))) as engine:  # no room for a second
        engine.generate([question(0)])
    assert (engine.spend().calls, engine.spend().tokens_read) == (1, 5)


def test_a_call_that_is_cancelled_may_have_been_billed(server: Server, tmp_path: Path) -> None:
    server.answer = lambda body, n: server.hang()
    with closing(opened(server, tmp_path)) as engine:
        thread = threading.Thread(target=engine.generate, args=([question(0)],))
        thread.start()
        server.wait_for(lambda: server.in_flight == 1)
        engine.cancel()
        thread.join(10)
    assert (engine.spend().lost, engine.spend().tokens_read) == (1, MOST.read)


# --- nothing is paid for twice ------------------------------------------------------------------------------------


def test_equal_requests_at_once_are_sent_once(server: Server, tmp_path: Path) -> None:
    ready = threading.Event()

    def answer(body: dict[str, Any], n: int) -> Answer:
        ready.wait(10)
        return says("fine")

    server.answer = answer
    replies: list[Generation | BackendError] = []
    with closing(opened(server, tmp_path)) as engine:
        batches = [[question(0), question(0)], [question(0)], [question(0), question(1)]]
        threads = [threading.Thread(target=lambda b=b: replies.extend(engine.generate(b))) for b in batches]  # type: ignore[misc]
        for thread in threads:
            thread.start()
        server.wait_for(lambda: server.in_flight == 2)
        ready.set()
        for thread in threads:
            thread.join(10)
    assert Counter(map(content, server.requests)) == {"Question 00?": 1, "Question 01?": 1}
    assert [reply.text for reply in replies if isinstance(reply, Generation)] == ["fine"] * 5
    assert engine.cached == 3


def test_those_who_wait_for_an_equal_request_share_its_failure(tmp_path: Path) -> None:
    started, go_on = threading.Event(), threading.Event()

    class Down(ScriptedEngine):
        def generate(self, requests: Any) -> Any:
            started.set()
            go_on.wait(10)
            raise BackendDown("gone")

    engine = CachedEngine(Down({}), tmp_path / "replies.jsonl", "model")
    seen: list[str] = []

    def try_it() -> None:
        with pytest.raises(BackendDown, match="gone"):
            engine.generate([question(0)])
        seen.append("down")

    first = threading.Thread(target=try_it)
    first.start()
    started.wait(10)
    second = threading.Thread(target=try_it)
    second.start()
    while engine.cached == 0 and second.is_alive():
        go_on.wait(0.01)
    go_on.set()
    first.join(10)
    second.join(10)
    assert seen == ["down"] * 2
    engine.close()  # nothing is under way any more


def test_a_ledger_is_kept_by_one_process_at_a_time(server: Server, tmp_path: Path) -> None:
    with closing(opened(server, tmp_path)), pytest.raises(StepladderError, match=r"spend\.jsonl is in use"):
        opened(server, tmp_path)


def test_a_ledger_whose_last_line_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "spend.jsonl"
    with closing(Ledger(path)) as ledger:
        first, second = (ledger.reserve("m", Usage(100, 10)) for _ in range(2))
        ledger.settle(first, Usage(30, 3))
        ledger.settle(second, Usage(40, 4))
        assert ledger.totals == {"m": Usage(70, 7)}
    path.write_bytes(path.read_bytes()[:-3])
    with closing(Ledger(path)) as ledger:
        assert (ledger.totals, ledger.paid, ledger.open) == ({"m": Usage(130, 13)}, 1, 1)
        assert ledger.reserve("other", Usage(1, 1)) == 2
    with closing(Ledger(path)) as ledger:
        assert ledger.totals == {"m": Usage(130, 13), "other": Usage(1, 1)}


@pytest.mark.parametrize(
    "line", ["{}", "no", '{"call":7,"model":"m","read":1,"written":1,"final":true}', '{"call":-1,"model":"m"}']
)
def test_a_damaged_ledger_is_not_taken_for_an_empty_one(tmp_path: Path, line: str) -> None:
    path = tmp_path / "spend.jsonl"
    path.write_text(line + "\n")
    for _ in range(2):  # also the second time: the file was let go of
        with pytest.raises(StepladderError, match=r"spend\.jsonl:1: not a line of a ledger"):
            Ledger(path)


def test_looking_at_replies_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    CachedEngine(ScriptedEngine(lambda request: "fine"), path, "m").generate([question(0), question(1)])
    path.write_bytes(path.read_bytes()[:-9])
    before = path.read_bytes()
    known = ResponseCache(path, "m")
    assert [question(n) in known for n in range(3)] == [True, False, False]
    assert question(0) not in ResponseCache(path, "other")
    assert path.read_bytes() == before


def test_a_reply_that_cannot_be_kept_stops_the_run(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    engine = CachedEngine(ScriptedEngine(lambda request: "fine"), path, "m")
    path.mkdir()
    with pytest.raises(BackendDown, match=r"the paid response .*: Is a directory"):
        engine.generate([question(0)])
