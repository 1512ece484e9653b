"""What a user names to search in: a folder, a server; with a cross-encoder or without."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from stepladder.cli import main
from stepladder.core.errors import StepladderError
from stepladder.core.io.known_servers import server_key, servers_from_files
from stepladder.core.io.masking import hide, reveal
from stepladder.core.trace import Passage
from stepladder.evaluation.evaluator import evaluate
from stepladder.pipeline.fingerprint import all_ingredients
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import RunContext, SharedConfig
from stepladder.retrieval.factory import absolute_location, is_url, load_retriever, retriever_info
from stepladder.retrieval.hybrid import FusionConfig, fuse_by_ranks, fuse_by_scores
from stepladder.retrieval.index.build import build_index, open_index
from stepladder.retrieval.index.manifest import index_info
from stepladder.serve.http.run_server import DrainingServer, listen
from stepladder.serve.search.search_server import make_app
from stepladder.serve.server_configs import ServerConfig
from tests.support.encoders import TOWNS, save_encoder
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


def test_several_indexes_are_fused_by_ranks_or_scores(folder: Path, tmp_path: Path) -> None:
    """The same corpus behind four retrievers, one of them a server, with 32 passages per search."""
    passages = [
        Passage(f"p{number}", f"Town {number}", "It has a river " + "and a mill " * number) for number in range(40)
    ]
    folders = [tmp_path / f"index{number}" for number in range(3)]
    for number, each in enumerate(folders):
        build_index(passages, each, b=number / 4)
    with served(folders[0]) as url:
        location = "+".join([url, *map(str, folders)])
        alone = [load_retriever(part).search(["river mill"], 100)[0] for part in [url, *map(str, folders)]]
        with closing(load_retriever(location)) as ranked:
            assert ranked.search(["river mill"], 32)[0] == fuse_by_ranks(alone, 32)
            assert len(ranked.search(["river mill"], 32)[0]) == 32
        chosen = FusionConfig(fusion="scores", weights=(1, 0, 0, 2))
        with closing(load_retriever(location, fusion=chosen)) as scored:
            assert scored.search(["river mill"], 32)[0] == fuse_by_scores(alone, 32, (1, 0, 0, 2))
        with closing(load_retriever(location, fusion=FusionConfig(rank_constant=0))) as steep:
            assert steep.search(["river mill"], 3)[0] == fuse_by_ranks(alone, 3, constant=0)
        info = retriever_info(location)
        assert info is not None
        assert (info.kind, info.passages, info.checksum) == ("bm25+bm25+bm25+bm25", 40, index_info(folders[0]).checksum)
        assert (info.settings["1.b"], info.settings["4.b"]) == (0.0, 0.5)
    assert absolute_location(f"{folders[0]}+http://node:8000") == f"{folders[0]}+http://node:8000"
    other = retriever_info(f"{folders[0]}+{folder}")
    assert other is not None
    assert other.passages == 40 + len(PASSAGES)


def test_fusion_is_a_setting_of_recipes_and_an_option(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = f"{folder}+{folder.rename(tmp_path / 'moved')}"
    build_index(PASSAGES, folder)

    def run(**search: Any) -> Any:
        return RunContext(SharedConfig.read({"data": {"index": joined}, "search": search}))

    settings = {"k": 32, "fusion": "scores", "weights": [1, 2], "rank_constant": 10}
    assert run(**settings).retriever.fusion == "scores"
    assert run(**settings).retriever.weights == (1, 2)
    assert (run().retriever.fusion, run(rank_constant=7).retriever.constant) == ("ranks", 7)
    assert run().settings.plain()["search"] == {"k": 3, "rerank": None, "device": "cpu"}, "as in runs from before"
    with pytest.raises(StepladderError, match=r"the weights 1\.0 for 2 indexes; expected one for each"):
        assert run(weights=[1]).retriever
    with pytest.raises(StepladderError, match="expected 'ranks' or 'scores', found 'rank'"):
        run(fusion="rank")
    assert main(["index", "search", joined, PASSAGES[0].title, "-k", "32", "--fusion", "scores", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["score"] == 2.0
    assert main(["index", "search", str(folder), "tower", "--fusion", "ranks"]) == 2
    assert "fusion need several indexes" in capsys.readouterr().err


def test_a_hybrid_index_is_fused_by_scores_unless_told_otherwise(tmp_path: Path) -> None:
    encoder = save_encoder(tmp_path / "encoder")
    build_index(TOWNS, tmp_path / "ix", "bm25+flat", encoder=str(encoder), device="cpu")
    usual: Any = load_retriever(str(tmp_path / "ix"))
    ranked: Any = load_retriever(str(tmp_path / "ix"), fusion=FusionConfig(fusion="ranks"))
    assert (usual.fusion, usual.weights) == ("scores", (0.6, 0.4))
    assert (ranked.fusion, ranked.weights) == ("ranks", (1.0, 1.0)), "the weights are tuned for scores"
    assert len(ranked.search(["Town 7"], 32)[0]) == 32


def test_a_folder_may_have_a_plus_in_its_name(folder: Path) -> None:
    renamed = folder.rename(folder.with_name("a+b"))
    assert load_retriever(str(renamed)).search([PASSAGES[0].title], 1)[0]
    assert absolute_location(str(renamed)) == str(renamed)


def test_a_server_that_only_a_file_names_gets_no_token_also_among_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPLADDER_TOKEN", "sesame-1234")
    servers_from_files({"data": {"index": "some-index+http://stranger.example:8000+http://other.example"}})
    for url in ("http://stranger.example:8000", "http://other.example"):
        assert server_key("STEPLADDER_TOKEN", url) == ""
    assert reveal(hide("a+http://ann:secret@node:8000+b")) == "a+http://ann:secret@node:8000+b"
    assert hide("http://ann:secret@node:8000+b") == "http://***@node:8000+b"
    assert reveal("http://***@node:8000") == "http://ann:secret@node:8000"


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
