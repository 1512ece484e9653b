"""Embeddings in Milvus, in a folder or in a server, are found as in any other index, also after a cut-off build."""

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from milvus_lite.adapter.grpc.server import start_server_in_thread
from milvus_lite.adapter.grpc.servicer import MilvusServicer
from pymilvus import MilvusClient

from stepladder.core.errors import StepladderError
from stepladder.retrieval.base import check_retriever
from stepladder.retrieval.index import milvus as milvus_module
from stepladder.retrieval.index.build import build_index, open_index
from stepladder.retrieval.index.manifest import check_files, index_info
from stepladder.retrieval.index.milvus import _check_size
from stepladder.retrieval.index.milvus_server import TOKEN, MilvusError
from tests.support.encoders import TOWNS, save_encoder
from tests.support.milvus_indexes import QUERIES, build, expect_same, found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("models") / "plain")


@pytest.fixture(scope="module")
def flat(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(TOWNS, tmp_path_factory.mktemp("flat") / "index", model, "flat")


@pytest.fixture(scope="module")
def built(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(TOWNS, tmp_path_factory.mktemp("milvus") / "my index", model)


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """An index of one's own."""
    return Path(shutil.copytree(built, tmp_path / "index"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "towns.jsonl"
    path.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in TOWNS))
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A Milvus that is reached by its address: milvus-lite's own server."""
    running, database, port = start_server_in_thread(str(tmp_path / "server"))
    yield f"http://127.0.0.1:{port}"
    running.stop(grace=None).wait()
    database.close()


# --- in a folder ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["FLAT", "HNSW", "AUTOINDEX"])
def test_it_finds_what_a_flat_index_finds(flat: Path, model: Path, tmp_path: Path, index: str) -> None:
    milvus = build(TOWNS, tmp_path / "milvus", model, milvus_index=index)
    expect_same(found(milvus), found(flat))
    expect_same(found(milvus, k=100), found(flat, k=100))
    with closing(open_index(milvus)) as opened:
        check_retriever(opened, QUERIES)


def test_the_manifest_tells_where_the_vectors_are_and_the_folder_has_them_once(built: Path) -> None:
    info = index_info(built)
    assert (info.settings["uri"], info.settings["milvus_index"]) == ("milvus.db", "FLAT")
    assert str(info.settings["collection"]).startswith("stepladder_my_index_")
    assert str(info.settings["vectors"]).startswith("pymilvus ")
    assert not list(built.rglob("vectors.npy"))


def test_with_bm25_the_two_are_fused(model: Path, tmp_path: Path) -> None:
    folder = build(TOWNS, tmp_path / "index", model, "bm25+milvus")
    expect_same(found(folder), found(build(TOWNS, tmp_path / "flat", model, "bm25+flat")))
    settings = index_info(folder).settings
    assert {"k1", "encoder", "uri", "collection"} <= settings.keys()


def test_searching_changes_no_file_and_the_folder_can_be_moved(folder: Path, tmp_path: Path) -> None:
    before = found(folder)
    moved = folder.rename(tmp_path / "elsewhere")
    check_files(moved, index_info(moved))
    assert found(moved) == before


def test_many_small_files_are_merged_before_the_index_is_finished(
    flat: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_module, "_BATCH", 2)
    monkeypatch.setattr(milvus_module, "_GROUP", 2)
    folder = build(TOWNS, tmp_path / "index", model)
    for _ in range(3):
        expect_same(found(folder), found(flat))


def test_one_process_can_open_it_several_times(folder: Path, model: Path) -> None:
    first, second = open_index(folder), open_index(folder)
    expected = first.search(QUERIES, 3)
    first.close()
    assert second.search(QUERIES, 3) == expected
    # Another index in its place is another index, also while the old one is open.
    build(TOWNS[:9], folder, model, overwrite=True)
    assert {len(each) for each in found(folder, k=100)} == {9}
    assert second.search(QUERIES, 3) == expected
    second.close()


def test_another_process_keeps_it_to_itself(folder: Path) -> None:
    script = f"from milvus_lite import MilvusLite; database = MilvusLite({str(folder / 'milvus.db')!r}); input('open')"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.read(4) == b"open"
        with pytest.raises(MilvusError, match="is open in another process, and milvus-lite allows one at a time"):
            open_index(folder)
        other.communicate(b"\n")
    assert found(folder)


SEARCHED_AND_NEVER_CLOSED = """
import os, sys
from pathlib import Path
from stepladder.retrieval.index.milvus_server import Milvus

milvus = Milvus(None, Path(sys.argv[1]))
(name,) = milvus.client.list_collections()
milvus.client.load_collection(name)
assert len(milvus.client.search(name, data=[[1.0] * 32], limit=3)[0]) == 3
try:
    with milvus.wrap_errors():
        milvus.client.describe_collection("towns")
except Exception as error:
    assert "'towns' does not exist" in str(error)
if not (child := os.fork()):
    os._exit(0)
os.waitpid(child, 0)
"""


def test_nothing_is_printed_and_a_process_ends_that_closes_nothing(folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SEARCHED_AND_NEVER_CLOSED, folder / "milvus.db"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert found(folder)  # nobody holds it


def test_too_much_for_a_folder_is_said_before_the_work() -> None:
    _check_size(100_000, 384, memory=10**9)
    with pytest.raises(StepladderError, match=r"needs about 1\.5 GB for 200,000 vectors.*raise it \(--memory\)"):
        _check_size(200_000, 384, memory=10**9)
    with pytest.raises(StepladderError, match=r"is for up to 1,000,000 passages.*address of a server \(uri\)"):
        _check_size(2_000_000, 8, memory=10**12)


@pytest.mark.parametrize("missing", ["pymilvus", "milvus_lite"])
def test_missing_libraries_are_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(StepladderError, match=r"pip install .*\[milvus\]'"):
        build(TOWNS, tmp_path / "index", model)


def test_more_results_than_milvus_gives_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepladder.retrieval.index.milvus._MAX_RESULTS", 50)
    assert len(found(folder, k=50)[0]) == 50
    with pytest.raises(StepladderError, match="up to 50 passages per query, not 60"):
        found(folder, k=60)


# --- in a server ----------------------------------------------------------------------------------------------


def test_a_server_is_used_by_its_address(flat: Path, model: Path, tmp_path: Path, server: str) -> None:
    folder = build(TOWNS, tmp_path / "index", model, uri=server, collection="towns")
    settings = index_info(folder).settings
    assert (settings["uri"], settings["collection"], settings["milvus_index"]) == (server, "towns", "HNSW")
    assert not (folder / "milvus.db").exists()
    expect_same(found(folder), found(flat))
    # Several open it at once, and none of them ends the server.
    with closing(open_index(folder)) as index, closing(open_index(folder)):
        check_retriever(index, QUERIES)


def test_the_token_is_sent_and_kept_nowhere(
    model: Path, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    real = MilvusClient.__init__

    def noting(self: MilvusClient, *args: object, **kwargs: object) -> None:
        seen.add(str(kwargs["token"]))
        real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(MilvusClient, "__init__", noting)
    monkeypatch.setenv(TOKEN, "root:open-sesame")
    folder = build(TOWNS, tmp_path / "index", model, uri=server)
    found(folder)
    assert seen == {"root:open-sesame"}
    secrets = (b"open-sesame", base64.b64encode(b"root:open-sesame"))
    for file in (each for each in folder.rglob("*") if each.is_file()):
        assert not any(secret in file.read_bytes() for secret in secrets), file


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://root:sesame@localhost:19530", f"uri: expected an address without secrets.*{TOKEN}"),
        ("localhost:19530", "uri: expected an address such as http://localhost:19530, found 'localhost:19530'"),
        ("index.db", "uri: expected an address such as"),
    ],
)
def test_addresses_that_are_none(tmp_path: Path, uri: str, message: str) -> None:
    with pytest.raises(StepladderError, match=message) as raised:
        build_index(TOWNS, tmp_path / "index", "milvus", uri=uri)
    assert "sesame" not in str(raised.value)


def test_a_server_that_is_down_is_found_before_the_passages_are_encoded(model: Path, tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(MilvusError, match=r"Milvus at http://127\.0\.0\.1:1: .*Check that it is running"):
        build(TOWNS, tmp_path / "index", model, uri="http://127.0.0.1:1", progress=lambda doing, *_: told.append(doing))
    assert "Encoding passages" not in told


def test_a_collection_that_is_not_the_one_that_was_built_is_noticed(model: Path, tmp_path: Path, server: str) -> None:
    folder = build(TOWNS, tmp_path / "index", model, uri=server, collection="towns")
    with closing(MilvusClient(server, dedicated=True)) as client:
        client.delete("towns", ids=[3, 4])
        with pytest.raises(MilvusError, match=r"'towns' has 58 vectors for 60 passages\. Rebuild "):
            open_index(folder)
        client.drop_collection("towns")
        with pytest.raises(MilvusError, match="has no collection 'towns'"):
            open_index(folder)
        client.create_collection("towns", dimension=8)
        with pytest.raises(MilvusError, match="'towns' has other fields, expected vectors of 32"):
            open_index(folder)
    # It is rebuilt under its own name, but not over what is somebody else's.
    with pytest.raises(MilvusError, match="a collection 'towns' that was not created by Stepladder"):
        build(TOWNS, folder, model, uri=server, collection="towns", overwrite=True)


def test_another_build_replaces_its_collection(model: Path, tmp_path: Path, server: str) -> None:
    build(TOWNS, tmp_path / "old", model, uri=server, collection="towns")
    new = build(TOWNS[:20], tmp_path / "new", model, uri=server, collection="towns", milvus_index="FLAT")
    expect_same(found(new), found(build(TOWNS[:20], tmp_path / "flat", model, "flat")))


class Failing:
    """Lets a server refuse so many upserts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self.monkeypatch = monkeypatch
        real = MilvusServicer.Upsert

        def upsert(servicer: MilvusServicer, request: object, context: grpc.ServicerContext) -> object:
            if self.times:
                self.times -= 1
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too busy")
            return real(servicer, request, context)

        monkeypatch.setattr(MilvusServicer, "Upsert", upsert)
        self.uploads(_BACKOFF=0.001)

    def uploads(self, **constants: float) -> None:
        """Change constants of uploads."""
        for name, value in constants.items():
            self.monkeypatch.setattr(milvus_module, name, value)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


def test_what_a_busy_server_refuses_is_sent_again(
    failing: Failing, flat: Path, model: Path, corpus: Path, tmp_path: Path, server: str
) -> None:
    failing.times = 3
    folder = build(corpus, tmp_path / "index", model, uri=server)
    assert failing.times == 0
    expect_same(found(folder), found(flat))


def test_a_server_that_stays_busy_ends_the_build_and_the_next_one_goes_on(
    failing: Failing, flat: Path, model: Path, corpus: Path, tmp_path: Path, server: str
) -> None:
    failing.uploads(_BATCH=8, _GROUP=24)
    told: list[int] = []

    def progress(doing: str, done: int, total: int) -> None:
        if doing.startswith("Sending"):
            told.append(done)
            failing.times = 10**9 if len(told) == 2 else 0

    with pytest.raises(MilvusError, match=r"too busy.*6 attempts; run the same command again"):
        build(corpus, tmp_path / "index", model, uri=server, progress=progress)
    failing.times = 0
    folder = build(corpus, tmp_path / "index", model, uri=server, progress=progress)
    assert told == [0, 24, 24, 48, 60]
    expect_same(found(folder), found(flat))


def test_vectors_that_got_lost_are_sent_again(
    failing: Failing, flat: Path, model: Path, corpus: Path, tmp_path: Path, server: str
) -> None:
    failing.uploads(_GROUP=24, _ATTEMPTS=1)

    def progress(doing: str, done: int, total: int) -> None:
        failing.times = int(doing.startswith("Sending") and done == 24)

    with pytest.raises(MilvusError, match="too busy"):
        build(corpus, tmp_path / "index", model, uri=server, collection="towns", progress=progress)
    with closing(MilvusClient(server, dedicated=True)) as client:
        client.delete("towns", ids=[1, 2, 3])
    failing.times = 0
    folder = build(corpus, tmp_path / "index", model, uri=server, collection="towns")
    expect_same(found(folder), found(flat))
