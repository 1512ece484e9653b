"""Passwords in URLs, keys and tokens reach no file, page, log or message, and runs with them work and resume."""

import base64
import io
import json
import logging
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stepladder.cli import main
from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.io.masking import hide, mask, mask_command, masked, reveal
from stepladder.core.requests import Generate
from stepladder.core.trace import Author, Segment
from stepladder.engines.openai.openai_engine import OpenAIEngine
from stepladder.judges.llm.config import LLMJudgeConfig
from stepladder.pipeline.fingerprint import all_ingredients
from stepladder.pipeline.recipe import Recipe
from stepladder.reporting.studies.jobs.study_job import Job
from stepladder.retrieval.remote.client import RemoteRetriever

USER, PASSWORD, KEY = "ann-quokka", "pa55-Zebra", "sk-0123456789abcdefghijkl"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
SECRETS = (USER, PASSWORD, KEY, BASIC)

RECIPE = """
agent: prorag
stages:
  oracle: {kind: eval, policy: oracle, limit: 2}
  gold: {kind: explore, policy: oracle, questions: 1, simulations: 2}
  explore:
    policy: oracle
    questions: 1
    simulations: 2
    evaluate: llm
    llm: {model: big, url: "URL/v1", retries: 0, budget: 1Mtok}
"""


class Guarded(BaseHTTPRequestHandler):
    """Search server and language model behind a password; the model answers every call with all that it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sent = self.headers["Authorization"]
        if sent not in (f"Basic {BASIC}", f"Bearer {KEY}"):
            self.reply(401, {"detail": f"no: {sent}"})
        elif self.path.endswith("/retrieve"):
            document = {"document": {"id": "7", "contents": '"Orm Tower"\nBuilt in 1866.'}, "score": 1.0}
            self.reply(200, {"result": [[document] for _ in body["queries"]]})
        else:
            url = f"http://{USER}:{PASSWORD}@{self.headers['Host']}{self.path}?api_key={KEY}"
            self.reply(400, {"error": {"message": f"failed: Authorization: {sent} {url} {PASSWORD}"}})

    def do_GET(self) -> None:
        self.reply(404, {})

    def reply(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def run_main(*words: str) -> tuple[int, str]:
    """A command with its whole output, as if it had been typed."""
    before, sys.argv = sys.argv, ["stepladder", *words]
    output = io.StringIO()
    try:
        with redirect_stdout(output), redirect_stderr(output):
            return main(), output.getvalue()
    finally:
        sys.argv = before


@dataclass
class Written:
    """All that the commands of one run wrote and printed."""

    folder: Path
    texts: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def written(host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        patch.setenv("NO_PROXY", "127.0.0.1")
        folder = tmp_path_factory.mktemp("secrets")
        full = f"http://{USER}:{PASSWORD}@{host}"
        recipe, run = folder / "recipe.yaml", folder / "run"
        recipe.write_text(RECIPE.replace("URL", full))
        made = Written(run)
        code, made.texts["run, printed"] = run_main(
            "run", str(recipe), "--set", f"data.index={full}", "--out", str(run)
        )
        assert code != 0, made.texts  # the judge fails
        evaluated = folder / "evaluated"
        model = ("--base-url", f"{full}/v1", "--model", "big", "--index", full, "--data", "atlas", "--limit", "1")
        _, made.texts["eval, printed"] = run_main("eval", *model, "--out", str(evaluated))
        _, made.texts["eval --json"] = run_main("eval", *model, "--json")
        _, made.texts["ask, printed"] = run_main("ask", "Who?", *model[:-2])
        code, said = run_main("report", "--run", str(run))
        assert code == 0, said
        page = folder / "compare.html"
        _, made.texts["compare, printed"] = run_main(
            "compare", f"{run}:oracle", str(evaluated), "--html", str(page), "--json"
        )
        made.texts["compare, page"] = page.read_text()
        made.texts["usage error"] = run_main("eval", "--no-such-option", full)[1]
        made.texts["wrong setting"] = run_main("run", str(recipe), "--set", f"seed={full}", "--out", str(run))[1]
        made.texts["a token in a search URL"] = run_main("index", "search", f"{full}/nothing?token={KEY}", "x")[1]
        for path in (*run.rglob("*"), *evaluated.rglob("*")):
            if path.is_file():
                made.texts[f"file {path.relative_to(folder)}"] = path.read_bytes().decode("utf-8", "replace")
        yield made


WRITERS = {
    "run, printed": True,
    "eval, printed": False,
    "eval --json": True,
    "ask, printed": True,
    "compare, printed": False,
    "compare, page": False,
    "usage error": False,
    "wrong setting": True,
    "a token in a search URL": False,
    "file run/run.json": True,
    "file run/recipe.yaml": True,
    "file run/report.html": True,
    "file run/oracle/stage.json": True,
    "file run/gold/stage.json": True,
    "file run/explore/started.json": True,
    "file evaluated/summary.json": True,
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_writer_writes_a_secret(written: Written, host: str, name: str) -> None:
    text = written.texts[name]
    assert not [secret for secret in SECRETS if secret in text], text[:3000]
    if WRITERS[name]:
        assert "***" in text, text[:3000]


def test_no_other_file_has_a_secret_either(written: Written) -> None:
    assert len(written.texts) > len(WRITERS)
    assert [name for name, text in written.texts.items() if any(each in text for each in SECRETS)] == []


def test_a_run_resumes_with_the_password_and_says_what_to_type_without(written: Written, tmp_path: Path) -> None:
    """The stored recipe alone, in a process that never saw the password, is one line that says what to do."""
    stored = written.folder / "recipe.yaml"
    elsewhere = stored.read_text().replace("127.0.0.1", "127.0.0.2")
    (tmp_path / "recipe.yaml").write_text(elsewhere)
    code, said = run_main("run", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run"))
    assert code == 2
    assert "are never stored: type the URL again in full" in " ".join(said.split())
    code, said = run_main("run", str(stored), "--set", "stages.explore.llm.retries=1", "--out", str(written.folder))
    assert "oracle: done" in said, said
    assert "explore: resumes" in said


def test_the_fingerprint_does_not_depend_on_the_password(host: str) -> None:
    def ingredients(user: str) -> object:
        return all_ingredients(
            Recipe.read(
                {
                    "data": {"index": f"http://{user}@{host}"},
                    "stages": {"eval": {"policy": "oracle"}},
                }
            )
        )

    other = ingredients("somebody:else5678")
    assert ingredients(f"{USER}:{PASSWORD}") == other
    assert "else5678" not in json.dumps(other)


def test_a_study_hands_the_password_to_its_runs(host: str) -> None:
    recipe = Recipe.read(
        {"data": {"index": f"http://{USER}:{PASSWORD}@{host}"}, "stages": {"eval": {"policy": "oracle"}}}
    ).plain()
    assert PASSWORD not in json.dumps(recipe)
    assert f"http://{USER}:{PASSWORD}@{host}" in Job(recipe, Path("x")).to_json()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://ann:secret@node:8000/v1", "http://***@node:8000/v1"),
        ("https://ann@node", "https://***@node"),
        ("http://a:p@ss@node/x", "http://***@node/x"),
        ("http://a:p/w@node/x", "http://***@node/x"),
        ("http://a:b@n1,http://c:d@n2", "http://***@n1,http://***@n2"),
        ("http://node:8000/a@b", "http://node:8000/a@b"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ('{"u":"http://node","mail":"x@y"}', '{"u":"http://node","mail":"x@y"}'),
        ("GET /v1?k=3&api_key=abc&x=1", "GET /v1?k=3&api_key=***&x=1"),
        ("/x?token=abc", "/x?token=***"),
        ("{'Authorization': 'Bearer abcdefgh'}", "{'Authorization': 'Bearer ***'}"),
        ("Config(token='abc', max_tokens=5)", "Config(token='***', max_tokens=5)"),
        ("send `Authorization: Bearer TOKEN`", "send `Authorization: Bearer TOKEN`"),
        ("the key sk-0123456789abcdefghijkl is wrong", "the key *** is wrong"),
        ("2 tokens, --max-tokens 5, max_tokens=5", "2 tokens, --max-tokens 5, max_tokens=5"),
    ],
)
def test_what_is_masked_and_what_is_not(text: str, shown: str) -> None:
    assert mask(text) == shown
    assert str(StepladderError(text)) == shown
    assert masked({"a": [text], text: 1}) == {"a": [shown], shown: 1}


def test_values_of_the_environment_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPLADDER_TOKEN", "open-5e5ame")
    monkeypatch.setenv("OTHER_TOKEN", "disabled")
    assert mask("denied: open-5e5ame (disabled)") == "denied: *** (disabled)"


def test_command_lines_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["my.py", "--api-key", "abc", "--token=abc", "--token-file", "abc", "--password", "abc", "--seed", "1"]
    assert mask_command(words) == [
        *("my.py", "--api-key", "***", "--token=***", "--token-file", "abc", "--password", "***", "--seed", "1")
    ]


def test_the_command_line_that_trackers_record_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights & Biases stores `sys.argv` by itself."""
    monkeypatch.setattr(sys, "argv", ["stepladder", "recipes", f"http://{USER}:{PASSWORD}@node"])
    with redirect_stderr(io.StringIO()):
        main()
    assert sys.argv == ["stepladder", "recipes", "http://***@node"]


def test_logs_and_tracebacks_of_commands_are_masked(host: str, caplog: pytest.LogCaptureFixture) -> None:
    run_main("recipes")
    url = hide(f"http://{USER}:{PASSWORD}@{host}")
    try:
        raise ValueError(f"cannot open {reveal(url)}")
    except ValueError:
        logging.getLogger("stepladder.x").exception("GET %s by %s", f"/v1?token={KEY}", reveal(url))
    logging.getLogger("uvicorn.access").warning('%s - "%s %s HTTP/%s" %d', "1.2.3.4", "GET", "/x?token=abc", "1.1", 200)
    formatted = caplog.text
    assert "cannot open http://***@" in formatted
    assert "/x?token=***" in formatted
    assert not [secret for secret in (*SECRETS, "abc") if secret in formatted]
    output = io.StringIO()
    with redirect_stderr(output):
        sys.excepthook(ValueError, ValueError(reveal(url)), None)
    assert "ValueError: http://***@" in output.getvalue()


def _search(url: str) -> None:
    with closing(RemoteRetriever(f"{url}:1", retries=0)) as retriever:
        retriever.search(["x"], 1)


def _generate(url: str) -> None:
    with closing(OpenAIEngine("big", f"{url}/v1", max_retries=0)) as engine:
        (reply,) = engine.generate([Generate((Segment(Author.PROMPT, "x"),))])
        assert isinstance(reply, BackendError)
        raise reply


@pytest.mark.parametrize("use", [_search, _generate])
def test_errors_that_repeat_what_they_were_sent_are_masked(
    host: str, use: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(StepladderError) as failed:
        use(f"http://{USER}:{PASSWORD}@{host}" if use is _generate else f"http://{USER}:{PASSWORD}@127.0.0.1")
    told = str(failed.value) + "".join(traceback.format_exception(failed.value))
    assert "http://***@127.0.0.1" in told
    assert not [secret for secret in SECRETS if secret in told]


def test_settings_hold_no_password() -> None:
    settings = LLMJudgeConfig(model="big", url=f"https://{USER}:{PASSWORD}@node/v1")
    assert PASSWORD not in f"{settings!r} {settings.model_dump()}"
    assert settings.url is not None
    assert reveal(settings.url) == f"https://{USER}:{PASSWORD}@node/v1"


def test_a_key_in_the_query_of_a_server_is_refused_with_its_place() -> None:
    with pytest.raises(StepladderError, match=r"without a query.*OPENAI_API_KEY") as refused:
        OpenAIEngine("big", f"https://node/v1?api_key={KEY}")
    assert KEY not in str(refused.value)


def test_reports_of_older_runs_are_masked(written: Written, tmp_path: Path) -> None:
    """Runs of earlier versions have stored the command line as it was typed."""
    run = tmp_path / "run"
    shutil.copytree(written.folder, run)
    stored = (run / "run.json").read_text()
    assert "http://***@" in stored
    (run / "run.json").write_text(stored.replace("http://***@", f"http://{USER}:{PASSWORD}@"))
    assert run_main("report", "--run", str(run))[0] == 0
    assert PASSWORD not in (run / "report.html").read_text()
