"""Index builds that are killed leave nothing half-written and go on where they were."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.core.errors import StepladderError
from stepladder.retrieval.index import milvus as milvus_module
from stepladder.retrieval.index.build import build_index
from stepladder.retrieval.index.manifest import index_info
from tests.support.encoders import TOWNS, save_encoder
from tests.support.milvus_indexes import build, expect_same, found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("models") / "plain")


def test_a_killed_build_leaves_no_index_and_the_next_clears_up(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from stepladder.retrieval.index.build import build_index\n"
        "from stepladder.core.trace import Passage\n"
        "def passages():\n"
        "    yield Passage('a', '', 'word')\n"
        "    print('half', flush=True)\n"
        "    time.sleep(600)\n"
        "build_index(passages(), Path(sys.argv[1]))"
    )
    folder = tmp_path / "ix"
    with subprocess.Popen([sys.executable, "-c", script, folder], stdout=subprocess.PIPE, text=True) as build:
        assert build.stdout is not None
        assert build.stdout.readline() == "half\n"
        build.send_signal(signal.SIGKILL)
    assert not folder.exists()
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".ix.")

    build_index(TOWNS, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["ix"]


SLOW_BUILD = """
import sys, time
from stepladder.retrieval.index import faiss_index as nearest, vectors
from stepladder.retrieval.index.build import build_index
vectors.SHARD, nearest._MIN_TRAINING = 512, 1000
corpus, folder, encoder, kind, stop = sys.argv[1:]
def progress(doing, done, total):
    if f"{doing} {done}" == stop:
        print(stop, flush=True)
        time.sleep(600)
build_index(corpus, folder, kind, encoder=encoder, device="cpu", progress=progress)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stop"), [("bm25+flat", "Encoding passages 1024"), ("ivfpq", "Compressing vectors 0")]
)
def test_a_killed_build_goes_on_and_gives_the_same_index(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, stop: str
) -> None:
    monkeypatch.setattr("stepladder.retrieval.index.vectors.SHARD", 512)
    monkeypatch.setattr("stepladder.retrieval.index.faiss_index._MIN_TRAINING", 1000)
    corpus = tmp_path / "corpus.jsonl"
    rows = ({"id": str(number), "contents": f"{number**2}\n{number % 13} on {number % 7}"} for number in range(2000))
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told: list[str] = []

    def build(folder: str) -> None:
        def progress(doing: str, done: int, total: int) -> None:
            told.append(f"{doing} {done}")

        build_index(corpus, tmp_path / folder, kind, encoder=str(model), device="cpu", progress=progress)

    command = [sys.executable, "-c", SLOW_BUILD, corpus, tmp_path / "cut", model, kind, stop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == stop + "\n"
        with pytest.raises(StepladderError, match="is in use by another process"):
            build("cut")
        killed.send_signal(signal.SIGKILL)
    assert not (tmp_path / "cut").exists()

    build("cut")
    assert not any(each.startswith("Reading") for each in told)
    assert told[0] == (stop if stop.startswith("Encoding") else "Encoding passages 2000")
    build("whole")
    info = index_info(tmp_path / "cut")
    assert info.files == index_info(tmp_path / "whole").files
    for name in info.files:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert sorted(each.name for each in tmp_path.iterdir()) == ["corpus.jsonl", "cut", "whole"]


KILLED_WHILE_SENDING = """
import os, signal, sys
from stepladder.retrieval.index import milvus as milvus_module
from stepladder.retrieval.index.build import build_index

milvus_module._BATCH, milvus_module._GROUP = 4, 12

def progress(doing, done, total):
    if doing.startswith("Sending") and done >= 24:
        os.kill(os.getpid(), signal.SIGKILL)

corpus, folder, model = sys.argv[1:]
build_index(corpus, folder, "milvus", encoder=model, device="cpu", dtype="fp32", progress=progress)
"""


@pytest.mark.slow
def test_a_build_that_was_killed_while_sending_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, corpus = tmp_path / "index", tmp_path / "towns.jsonl"
    corpus.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in TOWNS))
    command = [sys.executable, "-c", KILLED_WHILE_SENDING, corpus, folder, model]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert (killed.returncode, killed.stdout, killed.stderr) == (-signal.SIGKILL, "", "")
    assert not folder.exists()
    for index in tmp_path.rglob("*.idx"):
        index.write_bytes(b"")  # as if milvus-lite was killed while it wrote them
    monkeypatch.setattr(milvus_module, "_GROUP", 12)
    told: list[tuple[str, int, int]] = []
    build(corpus, folder, model, progress=lambda *now: told.append(now))
    assert [now for now in told if now[0] == "Encoding passages"] == [("Encoding passages", 60, 60)]
    assert [done for doing, done, _ in told if doing == "Sending vectors to Milvus"] == [24, 36, 48, 60]
    expect_same(found(folder), found(build(TOWNS, tmp_path / "flat", model, "flat")))
