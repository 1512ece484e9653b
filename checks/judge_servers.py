"""Does the budget of a judge hold, whatever its server does? Prints one row per hostile server.

    python checks/judge_servers.py                      # all modes, about two minutes
    python checks/judge_servers.py "bills, then 500"    # some of them

In: nothing; the servers run here. Out: a table, and exit status 1 if a limit was passed without being listed as an
exception. Every server bills the most that a call can cost and keeps its own count. A judge asks it in four sessions
with one ledger: the first asks little, the second is killed (kill -9), then two run at the same time, and one more.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment, Usage
from stepladder.driver import Driver
from stepladder.engines.spend.budget import SPEND, max_usage, open_paid_engine
from stepladder.engines.spend.ledger import Ledger
from stepladder.engines.spend.prices import Budget

#: Questions of a session, and of the first; their maximum reply, and the client's patience in seconds.
QUESTIONS, FIRST_QUESTIONS, MAX_TOKENS, TIMEOUT = 16, 2, 20, 0.5
#: The budget: this many calls at their maximum.
CALLS = 10
#: Tokens of a system prompt that the server adds.
HIDDEN = 1_000


def question(session: int, number: int) -> Generate:
    """A distinct question of always the same length, of several hundred bytes."""
    text = f"Session {session}, question {number:03}: " + "which of these steps is the better one, and why? " * 8
    return Generate((Segment(Author.PROMPT, text),), sampling=Sampling(max_tokens=MAX_TOKENS))


MOST = max_usage(question(0, 0))
LIMIT = CALLS * (MOST.read + MOST.written)


class Call(BaseHTTPRequestHandler):
    """One request, with what a hostile server may do with it. `number` counts from 0 over all sessions."""

    protocol_version = "HTTP/1.1"
    number: int

    def do_POST(self) -> None:
        shared: Any = self.server
        self.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with shared.requests.get_lock():
            self.number = shared.requests.value
            shared.requests.value += 1
        with suppress(OSError):  # the client has gone
            MODES[shared.mode].answer(self)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""

    def bill(self, read: int = MOST.read, written: int = MOST.written) -> dict[str, Any]:
        """Bill the call; returns the true count."""
        billed = self.server.billed  # type: ignore[attr-defined]
        with billed.get_lock():
            billed.value += read + written
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def send(self, status: int, body: object, **headers: str) -> None:
        """A whole response."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def reply(self, usage: object) -> None:
        """A completion with this count."""
        self.send(200, completion(usage))

    def drop(self) -> None:
        """Close the connection."""
        self.close_connection = True

    def hang(self) -> None:
        """Answer after the client's patience."""
        time.sleep(TIMEOUT * 1.5)
        self.reply(None)


def completion(usage: object) -> dict[str, Any]:
    """The body of a response with 200 bytes of text."""
    message = {"role": "assistant", "content": "because " * 25}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


@dataclass(frozen=True)
class Mode:
    """What a server does with each call."""

    answer: Callable[[Call], Any]
    #: Nothing is billed, so nothing may be charged.
    free: bool = False
    #: Why this server may pass the limit: what it does cannot be known to its clients.
    exception: str = ""


def claims(usage: object) -> Mode:
    """Bills, and says it was this much."""

    def answer(call: Call) -> None:
        call.bill()
        call.reply(usage)

    return Mode(answer)


def bills_then(end: Callable[[Call], Any], exception: str = "") -> Mode:
    """Bills, and ends the call in another way."""

    def answer(call: Call) -> None:
        call.bill()
        end(call)

    return Mode(answer, exception=exception)


def breaks_off(call: Call) -> None:
    data = json.dumps(completion(None)).encode()
    call.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n" + data)
    call.drop()


def trickles(call: Call) -> None:
    call.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n")
    for _ in range(100):
        call.wfile.write(b" ")
        time.sleep(TIMEOUT / 10)
    call.drop()


def early_hints(call: Call) -> None:
    for _ in range(20):
        call.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
    call.drop()


def redirects(call: Call) -> None:
    call.send(307, {}, Location=call.path)


def usage_twice(call: Call) -> None:
    text = json.dumps(completion(call.bill()))
    call.send(200, (text[:-1] + ', "usage": {"prompt_tokens": 1, "completion_tokens": 1}}').encode())


def other_limit_name(call: Call) -> None:
    """Rejects the name of a parameter, and bills the rejected call."""
    usage = call.bill()
    message = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    error = {"message": message, "param": "max_tokens", "code": "unsupported_parameter"}
    call.send(400, {"error": error, "usage": usage}) if "max_tokens" in call.asked else call.reply(usage)


def every_second(call: Call) -> None:
    usage = call.bill()
    call.send(500, {"error": {"message": "oops"}}) if call.number % 2 else call.reply(usage)


def honest_at_first(call: Call) -> None:
    usage = call.bill()
    call.reply(usage if call.number < 2 else {"prompt_tokens": True, "completion_tokens": -5})


def hidden_prompt(call: Call) -> None:
    call.reply(call.bill(MOST.read + HIDDEN * (call.number >= 3)))


def ignores_limit(call: Call) -> None:
    call.reply(call.bill(written=10 * MAX_TOKENS))


def thinks(call: Call) -> None:
    """Counts the tokens of its reasoning, which are within the limit, in the total only."""
    usage = call.bill()
    call.reply({**usage, "completion_tokens": 8})


def half(call: Call) -> None:
    call.bill()
    call.reply({"prompt_tokens": MOST.read // 2, "completion_tokens": MOST.written // 2})


def refuses(status: int, **headers: str) -> Mode:
    """Neither answers nor bills."""
    return Mode(lambda call: call.send(status, {"error": {"message": "no"}}, **headers), free=True)


def fails(status: int, body: object = None, **headers: str) -> Callable[[Call], None]:
    """Answers with an error."""
    return lambda call: call.send(status, body or {"error": {"message": "oops"}}, **headers)


_TRUE = {"prompt_tokens": MOST.read, "completion_tokens": MOST.written}
_FILTERED = {"error": {"message": "filtered", "code": "content_filter"}}
_REFUSED = "bills calls that it says it refused (4xx without a count)"
_MORE = "counts more than a call can cost: passed by calls sent before the first such count"

MODES: dict[str, Mode] = {
    "honest": Mode(lambda call: call.reply(call.bill())),
    "no count": claims(None),
    "an empty count": claims({}),
    "a list as count": claims([MOST.read, MOST.written]),
    "booleans": claims({"prompt_tokens": True, "completion_tokens": True}),
    "negative numbers": claims({"prompt_tokens": -10_000, "completion_tokens": -1}),
    "strings": claims({"prompt_tokens": "1", "completion_tokens": "1"}),
    "fractions": claims({"prompt_tokens": 0.001, "completion_tokens": 1e-9}),
    "absurd numbers": claims({"prompt_tokens": 10**30, "completion_tokens": 10**30}),
    "zeros": claims({"prompt_tokens": 0, "completion_tokens": 0}),
    "one token for a page": claims({"prompt_tokens": 1, "completion_tokens": 1}),
    "bills, then 500": bills_then(fails(500)),
    "bills, then 500 with its count": bills_then(fails(500, {"error": {"message": "oops"}, "usage": _TRUE})),
    "bills, then 502 in HTML": bills_then(fails(502, b"<html>Bad Gateway</html>", Content_Type="text/html")),
    "bills, then 503": bills_then(fails(503)),
    "bills, then 504": bills_then(fails(504)),
    "bills, then hangs": bills_then(Call.hang),
    "bills, then closes the connection": bills_then(Call.drop),
    "bills, then breaks off": bills_then(breaks_off),
    "bills, then blanks for ever": bills_then(trickles),
    "bills, then no JSON": bills_then(lambda call: call.send(200, b"\xff{{{")),
    "bills, then nothing": bills_then(lambda call: call.send(200, b"")),
    "429, not billed": refuses(429, Retry_After="0.01"),
    "401, not billed": refuses(401),
    "404, not billed": refuses(404),
    "503 with Retry-After, not billed": refuses(503, Retry_After="0.01"),
    "nobody listens": Mode(Call.drop, free=True),
    # Ten of the worst that came to mind.
    "redirects to itself, bills each hop": bills_then(redirects),
    "every second call 500": Mode(every_second),
    "honest at first": Mode(honest_at_first),
    "the count twice, the second tiny": Mode(usage_twice),
    "a count below 10,000 brackets": bills_then(lambda call: call.send(200, b'{"usage":' + b"[" * 10_000)),
    "hints for ever, then closes": bills_then(early_hints),
    "reasoning in the total only": Mode(thinks),
    "filters after reading (400)": bills_then(fails(400, _FILTERED)),
    "rejects a parameter name, bills it": Mode(other_limit_name),
    "429 with a count": bills_then(fails(429, {"error": {"message": "no"}, "usage": _TRUE}, Retry_After="0.01")),
    # What no client can know.
    "bills, then 429": bills_then(fails(429, Retry_After="0.01"), exception=_REFUSED),
    "counts half of what it bills": Mode(half, exception="counts less than it bills, plausibly"),
    "a hidden system prompt, later": Mode(hidden_prompt, exception=_MORE),
    "ignores the maximum length": Mode(ignores_limit, exception=_MORE),
}


def serve(mode: str, requests: Any, billed: Any, port: Any) -> None:
    """A server in a process of its own."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Call) as http:
        http.daemon_threads = True
        http.handle_error = lambda *_: None  # type: ignore[method-assign]
        vars(http).update(mode=mode, requests=requests, billed=billed)
        port.send(http.server_port)
        http.serve_forever(0.01)


def asking(request: Generate) -> Algorithm[str]:
    """One call of a judge."""
    reply: Generation = yield request
    return reply.text


def judge(url: str, folder: Path, session: int) -> None:
    """One session of a judge: as many questions as the budget allows."""
    budget, count = Budget(Decimal(LIMIT), "tok"), QUESTIONS if session else FIRST_QUESTIONS
    options: dict[str, Any] = {"url": url, "timeout": TIMEOUT, "max_retries": 2, "backoff": 0.01, "concurrency": 4}
    with (
        suppress(StepladderError),
        closing(open_paid_engine("m", folder, budget=budget, **options)) as engine,
    ):
        Driver(engine).run([partial(asking, question(session, number)) for number in range(count)])
    os._exit(0)


def attack(name: str, folder: Path) -> tuple[int, int, int]:
    """Four sessions with one server: its requests, what it billed, and what the ledger says."""
    processes = multiprocessing.get_context("fork")
    requests, billed, (receive, send) = processes.Value("q", 0), processes.Value("q", 0), processes.Pipe()
    server = processes.Process(target=serve, args=(name, requests, billed, send), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{9 if name == 'nobody listens' else receive.recv()}/v1"
    try:
        for session, copies in enumerate((1, 1, 2, 1)):
            before = requests.value
            judges = [processes.Process(target=judge, args=(url, folder, session)) for _ in range(copies)]
            for each in judges:
                each.start()
            if session == 1:
                deadline = time.monotonic() + 1
                while requests.value < before + 2 and time.monotonic() < deadline and judges[0].is_alive():
                    time.sleep(0.002)
                with suppress(ProcessLookupError):
                    os.kill(judges[0].pid or 0, signal.SIGKILL)
            for each in judges:
                each.join()
                assert session == 1 or each.exitcode == 0, "the judge itself has failed"
        with closing(Ledger(folder / SPEND)) as ledger:
            charged = sum(ledger.totals.values(), Usage())
        return requests.value, billed.value, charged.read + charged.written
    finally:
        server.kill()
        server.join()


def verdict(mode: Mode, billed: int, charged: int) -> tuple[bool, str]:
    """Whether the outcome is as promised, and the outcome in words."""
    if mode.exception:
        return True, f"{'passes' if billed > LIMIT else 'holds here'}; exception: {mode.exception}"
    if mode.free and charged > MOST.read + MOST.written:  # the call in flight when the judge was killed
        return False, "WRONG: charged what was not billed"
    if not mode.free and not billed:
        return False, "WRONG: nothing was asked"
    if billed > min(LIMIT, charged):
        return False, "WRONG: billed more than the limit, or than was charged"
    if mode.free:
        return True, "only the killed call charged" if charged else "nothing charged"
    return True, "holds"


def main() -> int:
    """Attack with the named modes, or all; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modes", nargs="*", metavar="MODE", help="a row of the table")
    names = parser.parse_args().modes or list(MODES)
    os.environ["NO_PROXY"] = "127.0.0.1"
    print(f"limit {LIMIT:,} tokens: {CALLS} calls at their maximum of {MOST.read + MOST.written}\n")
    print(f"{'server':<36} {'requests':>8} {'billed':>7} {'charged':>7}  outcome")
    wrong = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            requests, billed, charged = attack(name, Path(folder))
        right, outcome = verdict(MODES[name], billed, charged)
        wrong += not right
        print(f"{name:<36} {requests:>8} {billed:>7,} {charged:>7,}  {outcome}", flush=True)
    exceptions = sum(bool(MODES[name].exception) for name in names)
    print(f"\n{len(names)} servers, 3 restarts each: {wrong} wrong, {exceptions} named exceptions")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
