"""Writers that get secrets from elsewhere: logs of libraries, threads, trackers, servers, tools, cards."""

import asyncio
import io
import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn.logging
from mcp import Client
from transformers import TrainerCallback

from stepladder.core.errors import BackendError
from stepladder.core.io.masking import hide, mask, mask_process, reveal
from stepladder.core.requests import Generate, Generation
from stepladder.core.trace import Passage
from stepladder.driver import Driver
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.session_info import describe_session
from stepladder.preferences.export import export
from stepladder.serve.agent.mcp_server import make_mcp
from stepladder.serve.agent.scheduler import AgentMetrics, Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.server_configs import AgentServerConfig
from stepladder.train.loop.trackers import TRACKERS
from tests.support import sft_training
from tests.support.agent_servers import Oracle, gold_play, running
from tests.support.prm_training import pair
from tests.support.samples import WordRetriever

PASSWORD, KEY = "pa55-Zebra", "sk-0123456789abcdefghijkl"
URL = f"http://ann-quokka:{PASSWORD}@127.0.0.1:9"
SECRETS = ("ann-quokka", PASSWORD, KEY)


def secrets_in(text: str) -> list[str]:
    return [each for each in SECRETS if each in text]


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a command that was told a password and a key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(sys, "argv", ["stepladder", "eval", "--index", URL, "--api-key", KEY])
    hide(URL)
    mask_process()


# --- logs and tracebacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "values"),
    [
        ("GET /x?token=%s", (KEY,)),
        ("password=%s", (PASSWORD,)),
        ("HTTP Request: %s %s", ("GET", httpx2.URL(URL))),
        ("failed: %s", (ValueError(f"cannot open {URL}"),)),
        ("failed: %r", ([URL],)),
        ("failed: %(url)s", ({"url": URL},)),
        (f"100% of {URL}", ()),
    ],
)
def test_logs_of_libraries_are_masked_however_they_are_formatted(
    message: str, values: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("httpx2").warning(message, *values)
    assert "***" in caplog.messages[0]
    assert not secrets_in(caplog.text)


def test_warnings_and_errors_that_nobody_catches_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    class Dropped:
        def __del__(self) -> None:
            raise ValueError(f"cannot close {URL}")

    del (dropped := [Dropped()])[:]
    assert not dropped
    said = capsys.readouterr().err + warnings.formatwarning(f"deprecated: {URL}", UserWarning, "here.py", 1)
    assert "cannot close" in said
    assert "deprecated" in said
    assert not secrets_in(said)


@pytest.mark.parametrize("name", ["X-Amz-Signature", "jwt", "pass", "sig"])
def test_signed_urls_are_masked(name: str) -> None:
    assert "hidden99" not in mask(f"GET https://node/x?{name}=hidden99&n=1")


def test_the_access_log_of_a_server_is_masked() -> None:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(uvicorn.logging.AccessFormatter("%(client_addr)s %(request_line)s %(status_code)s"))
    values = ("1.2.3.4:5", "GET", f"/x?api_key={KEY}&q=1", "1.1", 200)
    handler.handle(logging.getLogger().makeRecord("", 20, "", 0, '%s - "%s %s HTTP/%s" %d', values, None))
    assert "1.2.3.4:5 GET /x?api_key=***&q=1 HTTP/1.1 200" in lines.getvalue()


def test_causes_notes_and_groups_in_tracebacks_are_masked(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        try:
            raise OSError(reveal(hide(URL)))
        except OSError as cause:
            error = ExceptionGroup("several", [ValueError(f"Bearer {KEY}")])
            error.add_note(f"while reading {URL}")
            raise error from cause

    output = io.StringIO()
    with redirect_stderr(output):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        try:
            fail()
        except ExceptionGroup as error:
            sys.excepthook(type(error), error, error.__traceback__)
            logging.getLogger("x").exception("failed")
    for text in (output.getvalue(), caplog.text):
        assert "while reading http://***@127.0.0.1:9" in text
        assert not secrets_in(text)
    assert output.getvalue().count("several") == 2


# --- servers ------------------------------------------------------------------------------------------------


class Leaky(Oracle):
    """Fails with all that it knows."""

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        raise RuntimeError(f"no reply from {URL}: Authorization: Bearer {KEY}")


class LeakyIndex(WordRetriever):
    """Fails with all that it knows."""

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        raise RuntimeError(f"no reply from {URL}: Authorization: Bearer {KEY}")


def test_tools_and_their_log_tell_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> list[str]:
        driver = Driver(Leaky(), LeakyIndex())
        scheduler = Scheduler(driver, max_waiting=9, metrics=AgentMetrics())
        scheduler.start()
        try:
            mcp = make_mcp(ServedAgent(driver, gold_play), scheduler, AgentServerConfig())
            async with Client(mcp) as client:
                calls = [("answer_question", {"question": "Who?"}), ("search", {"query": "x"})]
                return [str(await client.call_tool(*call)) for call in calls]
        finally:
            scheduler.close()

    told = asyncio.run(asyncio.wait_for(test(), 60))
    assert all("the agent failed" in each for each in told)
    assert "no reply from http://***@127.0.0.1:9" in caplog.text
    assert not secrets_in(f"{told} {caplog.text}")


def test_a_server_and_its_log_tell_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    with running(Leaky(), LeakyIndex()) as server:
        reply = server.post()
        pages = [server.client.get(each).text for each in ("/health", "/info", "/metrics")]
    assert reply.status_code == 500
    assert "no reply from http://***@127.0.0.1:9" in caplog.text
    assert not secrets_in(f"{reply.text} {pages} {caplog.text}")


# --- what others store --------------------------------------------------------------------------------------


def test_trackers_get_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights & Biases and MLflow store the arguments, the model's configuration and the command line."""
    got: list[str] = []

    class Spy(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            got.append(f"{args.to_dict()} {args} {more['model'].config} {vars(state)} {sys.argv}")

        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            got.append(f"{more['logs']} {vars(state)}")

    monkeypatch.setenv("HF_TOKEN", f"hf_{KEY[3:]}")
    TRACKERS.register("spy", Spy, "")
    try:
        sft_training.train(tmp_path, sft_training.SETTINGS.model_copy(update={"report_to": ("spy",)}))
    finally:
        del TRACKERS._targets["spy"]
    assert len(got) > 2
    assert not secrets_in(" ".join(got))
    assert KEY[3:] not in " ".join(got)


def test_the_description_of_a_session_has_no_environment() -> None:
    text = json.dumps(describe_session(Recipe.read({"stages": {"eval": {"policy": "oracle"}}})))
    assert "http://***@127.0.0.1:9" in text
    assert not secrets_in(text)
    assert not [name for name in os.environ if name.endswith(("_KEY", "_TOKEN")) and name in text]


def test_cards_of_exports_have_no_secret(tmp_path: Path) -> None:
    export("trl", {"train": [pair("Who?")]}, tmp_path / "out", source=URL)
    files = [each.read_text() for each in (tmp_path / "out").iterdir() if each.suffix in (".md", ".json")]
    assert len(files) == 2
    assert not secrets_in(" ".join(files))
