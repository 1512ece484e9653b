"""A downloaded run or index gets none of its user's keys: only servers that the user has named do."""

import io
import json
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NoReturn

import pytest

from stepladder.cli import main
from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.io import known_servers
from stepladder.core.io.known_servers import name_servers, server_key, servers_from_files
from stepladder.core.io.user_lists import user_list
from stepladder.engines.openai.openai_engine import OPENAI_URL, OpenAIEngine
from stepladder.pipeline.run_folder import RunFolder
from stepladder.retrieval.factory import load_retriever
from stepladder.retrieval.index import milvus
from tests.support import openai_server
from tests.support.openai_server import Server, fails, says
from tests.support.paid_calls import ask

server = openai_server.server

KEY = "sk-0123456789abcdefghijkl"


@pytest.fixture(autouse=True)
def _new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> Iterator[None]:
    """A user with a key, who has named no server yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    _forget()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    yield
    _forget()


def _forget() -> None:
    """As in a new process."""
    known_servers._named.clear()
    known_servers._from_files.clear()


def downloaded_run(folder: Path, url: str) -> Path:
    folder.mkdir()
    llm = {"model": "big", "url": url, "retries": 0}
    explore = {"policy": "oracle", "questions": 1, "simulations": 2, "evaluate": "llm", "llm": llm}
    recipe = {"name": "theirs", "agent": "prorag", "data": {"index": url}, "stages": {"explore": explore}}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    (folder / "run.json").write_text('{"stepladder_run": 2, "sessions": []}')
    return folder


def call(url: str) -> None:
    with closing(OpenAIEngine("big", url, max_retries=0)) as engine:
        engine.generate([ask("x")])


def test_continuing_somebody_elses_run_does_not_send_the_key(server: Server, tmp_path: Path) -> None:
    run = downloaded_run(tmp_path / "run", server.url)
    server.answer = lambda body, n: fails(401, "no key")
    command = ["run", str(run / "recipe.yaml"), "--out", str(run), "--set", "data.index=null"]
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        assert main(command) == 2, said.getvalue()
    assert set(server.keys) == {"Bearer none"}
    assert "OPENAI_API_KEY was not sent to it: only a file of a run or an index names it" in " ".join(
        said.getvalue().split()
    )
    server.keys.clear()
    with redirect_stdout(said), redirect_stderr(said):
        main([*command, "--set", f"stages.explore.llm.url={server.url}"])
    assert set(server.keys) == {f"Bearer {KEY}"}


def test_a_server_that_the_user_has_named_is_known_from_then_on(server: Server, tmp_path: Path) -> None:
    run = RunFolder(downloaded_run(tmp_path / "run", server.url))
    call(server.url)  # an argument of the user's own code
    _forget()
    run.recipe()
    call(server.url)
    assert server.keys == [f"Bearer {KEY}"] * 2
    user_list("known_servers.json").unlink()
    call(server.url)
    assert server.keys[2:] == ["Bearer none"]
    user_list("known_servers.json").write_text("{}")
    user_list("known_servers.json").chmod(0o666)
    with pytest.raises(StepladderError, match="can be changed by other users"):
        call(server.url)


def test_other_secrets_in_the_environment_are_not_sent_either(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"OPENAI_ORG_ID": "org-mine", "OPENAI_PROJECT_ID": "proj-mine"}
    secrets["OPENAI_CUSTOM_HEADERS"] = "X-Gateway-Key: gateway-mine\nX-Team: team-mine"
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    servers_from_files(server.url)
    call(server.url)
    assert "mine" not in str(server.headers)
    name_servers(server.url)
    call(server.url)
    assert all(value in str(server.headers[1]) for value in ("org-mine", "proj-mine", "gateway-mine", "team-mine"))


def test_a_server_that_got_one_key_gets_no_other(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPLADDER_TOKEN", "of-the-search-server")
    assert server_key("STEPLADDER_TOKEN", server.url) == "of-the-search-server"
    _forget()
    servers_from_files(server.url)
    assert server_key("STEPLADDER_TOKEN", server.url) == "of-the-search-server"
    assert server_key("OPENAI_API_KEY", server.url) == ""


def test_a_server_that_repeats_the_key_does_not_bring_it_into_files(server: Server) -> None:
    server.answer = lambda body, n: says(f"your key is {KEY}", usage={"prompt_tokens": 1, "completion_tokens": 1})
    name_servers(server.url)
    with closing(OpenAIEngine("big", server.url, max_retries=0)) as engine:
        (reply,) = engine.generate([ask("x")])
    assert KEY not in str(reply)
    assert "your key is ***" in str(reply)


def test_a_typed_url_needs_no_home_folder(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    name_servers(server.url)
    assert server_key("OPENAI_API_KEY", server.url) == KEY


def test_the_run_of_ones_own_recipe_has_the_key_also_after_it_was_stored(server: Server, tmp_path: Path) -> None:
    run = RunFolder(downloaded_run(tmp_path / "run", server.url))
    name_servers(json.loads((run.path / "recipe.yaml").read_text()), new=True)  # as `run_recipe` does
    run.recipe()
    call(server.url)
    assert server.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    ("named", "asked", "sent"),
    [
        ("http://node:80/v1", "http://NODE/v1", True),
        ("--judge-url=http://node", "http://node", True),
        ("data.index=http://a:1,http://b:2", "http://b:2", True),
        ("http://node", "https://node", False),
        ("http://node", "http://node:8080", False),
        ("http://node", "http://node.evil.com", False),
        ("http://node", "http://node@evil.com", False),
        ("http://node", "http://evil.com#@node", False),
        ("http://node", "http://node,http://evil.com", False),
        ("", "evil.com:19530", False),
        ("", "http://evil.com:port", False),
    ],
)
def test_a_server_is_a_scheme_a_host_and_a_port(named: str, asked: str, sent: bool) -> None:
    name_servers([named])
    servers_from_files({"stages": {"pairs": {"llm": {"url": asked}}}})
    assert server_key("OPENAI_API_KEY", asked) == (KEY if sent else "")


def test_openai_and_the_server_in_the_environment_always_get_the_key(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers_from_files([OPENAI_URL, server.url])
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    with closing(OpenAIEngine("gpt")), closing(OpenAIEngine("gpt", OPENAI_URL)):
        call(server.url)
    assert server.keys == [f"Bearer {KEY}"]


def test_search_servers_and_milvus_that_a_file_names_get_no_token(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPLADDER_TOKEN", "open-5e5ame")
    host = server.url.removesuffix("/v1")
    RunFolder(downloaded_run(tmp_path / "run", host)).recipe()
    server.answer = lambda body, n: fails(401, "no token")
    with closing(load_retriever(host)) as found, pytest.raises(BackendDown, match="STEPLADDER_TOKEN was not sent to"):
        found.search(["x"], 1)
    assert server.keys == [None]

    tokens = []
    monkeypatch.setenv("STEPLADDER_MILVUS_TOKEN", "open-5e5ame")

    def connect(uri: str, _: Path) -> NoReturn:
        tokens.append(server_key("STEPLADDER_MILVUS_TOKEN", uri))
        raise InterruptedError

    monkeypatch.setattr(milvus, "Milvus", connect)
    (tmp_path / "milvus.json").write_text(
        '{"uri": "http://evil:19530", "collection": "x", "index": "FLAT", "dimensions": 2}'
    )
    with pytest.raises(InterruptedError):
        milvus.open_milvus(tmp_path, ())
    assert tokens == [""]
