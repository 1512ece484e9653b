"""What a user names to search in: a folder, a server; with a cross-encoder or without."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from stepladder.cli import main
from stepladder.core.errors import StepladderError
from stepladder.evaluation.evaluator import evaluate
from stepladder.pipeline.fingerprint import all_ingredients
from stepladder.pipeline.recipe import Recipe
from stepladder.retrieval.factory import is_url, load_retriever, retriever_info
from stepladder.retrieval.index.build import build_index, open_index
from stepladder.retrieval.index.manifest import index_info
from stepladder.serve.http.run_server import DrainingServer, listen
from stepladder.serve.search.search_server import make_app
from stepladder.serve.server_configs import ServerConfig
from tests.support.samples import PASSAGES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_index(PASSAGES, tmp_path / "index")
    return tmp_path / "index"


@contextmanager
def served(folder: Path, token: str | None = None, **limits: int) -> Iterator[str]:
    started, listener = threading.Event(), listen("127.0.0.1", 0)
    app = make_app(open_index(folder), ServerConfig.read({"token": token, **limits}), asdict(index_info(folder)))
    server = DrainingServer(app, 1.0, on_start=started.set)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    assert started.wait(20)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.drain()
        thread.join()


def test_a_folder_and_its_server_find_the_same(folder: Path) -> None:
    query = PASSAGES[0].title
    with served(folder) as url, closing(load_retriever(url)) as remote, closing(load_retriever(str(folder))) as local:
        assert remote.search([query], 3) == local.search([query], 3)
        assert retriever_info(url) == retriever_info(str(folder)) == index_info(folder)


def test_a_client_keeps_to_the_limits_of_its_server(folder: Path) -> None:
    queries = [f"{PASSAGES[number % 3].title} {'x' * number}" for number in range(10)]
    with (
        served(folder, max_queries=4, max_characters=12) as url,
        closing(load_retriever(url)) as remote,
        closing(load_retriever(str(folder))) as local,
    ):
        assert remote.search(queries, 3) == local.search([query[:12] for query in queries], 3)
        with pytest.raises(StepladderError, match=r"replied 422: .*topk.* 100"):
            remote.search(queries, 500)


def test_the_token_comes_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(folder, token="sesame") as url:
        monkeypatch.delenv("STEPLADDER_TOKEN", raising=False)
        with closing(load_retriever(url)) as refused, pytest.raises(StepladderError, match="rejected the token"):
            refused.search(["tower"], 1)
        monkeypatch.setenv("STEPLADDER_TOKEN", "sesame")
        with closing(load_retriever(url)) as let_in:
            assert let_in.search([PASSAGES[0].title], 1)[0]


def test_a_run_may_go_on_behind_a_server(folder: Path) -> None:
    """The same index, in a folder or served, is the same ingredient."""

    def ingredients(index: str) -> object:
        recipe = Recipe.read(
            {"name": "r", "data": {"index": index}, "stages": {"eval": {"kind": "eval", "policy": "oracle"}}}
        )
        return all_ingredients(recipe)

    with served(folder) as url:
        assert ingredients(url) == ingredients(str(folder))


def test_commands_search_behind_a_server(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(folder) as url:
        assert main(["index", "search", url, PASSAGES[0].title, "-k", "1"]) == 0
        assert PASSAGES[0].id in capsys.readouterr().out
        assert main(["index", "info", url]) == 0
        assert index_info(folder).checksum in capsys.readouterr().out
        assert main(["ask", "--index", url, "--engine", "oracle", "--data", "atlas"]) == 0


def test_places(tmp_path: Path) -> None:
    assert is_url("https://node:1,http://node:2")
    assert not is_url("httpfolder")
    with pytest.raises(StepladderError, match="no such folder"):
        load_retriever(str(tmp_path / "none"))


def test_an_evaluation_is_not_lost_when_its_server_ends_afterwards(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the server holds is asked before the first question: afterwards it may be gone."""
    with served(folder) as url:
        asked: list[str] = []

        def once(place: str) -> object:
            asked.append(place)
            return retriever_info(place)

        def played(*arguments: object, **options: object) -> object:
            assert asked == [url]
            return evaluate(*arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr("stepladder.cli.ask_eval.retriever_info", once)
        monkeypatch.setattr("stepladder.cli.ask_eval.evaluate", played)
        arguments = ["eval", "--engine", "oracle", "--data", "atlas", "--limit", "2", "--index", url]
        assert main([*arguments, "--out", str(tmp_path / "eval"), "--json"]) == 0
    assert asked == [url]
    assert json.loads(capsys.readouterr().out)["index"] == {"place": url, "checksum": index_info(folder).checksum}
