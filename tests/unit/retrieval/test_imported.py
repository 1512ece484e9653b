"""FAISS indexes that others have built: imported with their corpus, compared with it, searched where they are."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from stepladder.cli import main
from stepladder.core.errors import StepladderError
from stepladder.retrieval import check_retriever
from stepladder.retrieval.factory import load_retriever
from stepladder.retrieval.imported.faiss_file import read_header
from stepladder.retrieval.imported.faiss_import import import_index
from stepladder.retrieval.index.build import build_index, open_index, passages_checksum
from stepladder.retrieval.index.manifest import index_info
from stepladder.retrieval.index.vector_index import FlatIndex, import_faiss
from tests.support.encoders import TOWNS, save_encoder
from tests.support.faiss_files import e5_vectors, write_corpus, write_faiss

QUERIES = ["It lies on the river a3", "Town 44", "river g5"]


@dataclass
class Published:
    """What somebody has put on the web."""

    index: Path
    corpus: Path
    encoder: Path
    out: Path

    def imported(self, **settings: Any) -> Path:
        import_index(self.index, self.corpus, self.out, encoder=str(self.encoder), device="cpu", **settings)
        return self.out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder = tmp_path_factory.mktemp("published")
    encoder = save_encoder(folder / "e5-tiny")
    corpus = write_corpus(folder / "towns.jsonl", TOWNS)
    texts = [json.loads(line)["contents"] for line in corpus.read_text().splitlines()]
    index = write_faiss(folder / "e5_Flat.index", e5_vectors(encoder, texts))
    published = Published(index, corpus, encoder, folder / "index")
    published.imported()
    return published


@pytest.fixture
def published(made: Published, tmp_path: Path) -> Published:
    """Copies that a test may change."""
    index, corpus = (Path(shutil.copy(each, tmp_path)) for each in (made.index, made.corpus))
    return replace(made, index=index, corpus=corpus, out=tmp_path / "index")


def vectors_of(published: Published) -> Any:
    return faiss.read_index(str(published.index)).reconstruct_n(0, len(TOWNS))


def test_an_imported_index_finds_what_faiss_finds_and_copies_nothing(published: Published) -> None:
    folder = published.imported()
    queries = e5_vectors(published.encoder, QUERIES, "query: ")
    scores, positions = faiss.read_index(str(published.index)).search(queries, 32)
    with closing(open_index(folder)) as index:
        for found, ids, values in zip(index.search(QUERIES, 32), positions.tolist(), scores.tolist()):
            assert [passage.id for passage in found] == [TOWNS[each].id for each in ids]
            assert [passage.score for passage in found] == pytest.approx(values, abs=1e-5)
            assert replace(found[0], score=None) == TOWNS[ids[0]]
        check_retriever(index, QUERIES)
    assert {each.name for each in folder.iterdir()} == {
        "index.json", "checksums.json", "dense.json", "imported.json", "rows.npy", "first.npy",
    }  # fmt: skip
    info = index_info(folder)
    assert (info.kind, info.passages, info.checksum) == ("faiss", len(TOWNS), passages_checksum(TOWNS))
    assert (info.settings["query_prefix"], info.settings["metric"]) == ("query: ", "inner_product")


@pytest.mark.parametrize(
    ("kind", "l2"),
    [
        ("Flat", True),
        ("HNSW16", True),
        ("IVF4,Flat", False),
        ("SQ8", True),
        ("RR32,IVF2,Flat", False),
        ("IDMap,Flat", False),
    ],
)
def test_other_types_and_distances(published: Published, kind: str, l2: bool) -> None:
    vectors = vectors_of(published)
    exact = (vectors @ e5_vectors(published.encoder, QUERIES, "query: ").T).argmax(axis=0)
    write_faiss(published.index, vectors, kind, l2=l2)
    with closing(open_index(published.imported(nprobe=4))) as index:
        for found, best in zip(index.search(QUERIES, 10), exact.tolist()):
            scores = [passage.score or 0.0 for passage in found]
            assert scores == sorted(scores, reverse=True)
            assert (scores[0] <= 0) == l2
            assert TOWNS[best].id in [passage.id for passage in found]


def test_lengths_matter_for_distances(published: Published) -> None:
    write_faiss(published.index, 7 * vectors_of(published), l2=True)
    with pytest.raises(StepladderError, match=r"vectors have length 7\.00, the encoder's 1\.00.*similarity=dot"):
        published.imported()
    write_faiss(published.index, 7 * vectors_of(published))
    published.imported()  # the order of inner products is the same


# --- What does not fit ----------------------------------------------------------------------------------


def other_dimension(published: Published) -> None:
    write_faiss(published.index, np.ones((len(TOWNS), 48), dtype=np.float32))


def fewer_rows(published: Published) -> None:
    write_corpus(published.corpus, TOWNS[:-1])


def other_order(published: Published) -> None:
    write_corpus(published.corpus, [*TOWNS[30:], *TOWNS[:30]])


def one_row_moved(published: Published) -> None:
    write_corpus(published.corpus, [TOWNS[-1], *TOWNS[:-1]])


def other_texts(published: Published) -> None:
    write_corpus(published.corpus, [*TOWNS[:40], *(replace(each, text="?" * 9) for each in TOWNS[40:])])


def other_encoder(published: Published) -> None:
    published.encoder = save_encoder(published.out.parent / "e5-other", seed=1)


def without_its_prefix(published: Published) -> None:
    published.encoder = Path(shutil.copytree(published.encoder, published.out.parent / "unknown-name"))


def same_id_twice(published: Published) -> None:
    write_corpus(published.corpus, [*TOWNS[:-1], replace(TOWNS[-1], id=TOWNS[3].id)])


def broken_row(published: Published) -> None:
    lines = published.corpus.read_text().splitlines()
    published.corpus.write_text("\n".join([*lines[:7], lines[7][:-5], *lines[8:]]))


def compressed(published: Published) -> None:
    published.corpus = published.corpus.rename(published.corpus.with_suffix(".jsonl.gz"))


def cut(published: Published) -> None:
    published.index.write_bytes(published.index.read_bytes()[:-100])


def cut_header(published: Published) -> None:
    published.index.write_bytes(published.index.read_bytes()[:20])


def no_faiss(published: Published) -> None:
    published.index.write_bytes(b"PK\x03\x04" + bytes(1000))


def wild_header(published: Published) -> None:
    published.index.write_bytes(b"IxFI" + b"\xff" * 1000)


def binary(published: Published) -> None:
    index = faiss.IndexBinaryFlat(64)
    faiss.write_index_binary(index, str(published.index))


def empty(published: Published) -> None:
    faiss.write_index(faiss.IndexFlatIP(32), str(published.index))


def cut_graph(published: Published) -> None:
    write_faiss(published.index, vectors_of(published), "HNSW16")
    cut(published)


def other_order_of_a_graph(published: Published) -> None:
    write_faiss(published.index, vectors_of(published), "HNSW16")
    other_order(published)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (other_dimension, r"vectors of 48 dimensions, and the encoder '.*e5-tiny' makes 32"),
        (fewer_rows, r"has 60 vectors, and .*towns\.jsonl has 59 rows"),
        (other_order, r"in another order than the index: the vector of row 1 is at position 31"),
        (one_row_moved, r"in another order than the index: the vector of row 1 is at position 60"),
        (other_texts, r"not the version that was indexed: \d+ of 32 sampled rows, such as row 4\d"),
        (other_encoder, r"was not built with '.*e5-other' from .*: 32 of 32 sampled rows have other vectors"),
        (without_its_prefix, r"was not built with '.*unknown-name'.*passage_prefix"),
        (same_id_twice, r"rows 4 and 60 have the same id 't3'"),
        (broken_row, r"towns\.jsonl:8: not JSON"),
        (compressed, r"must be a \.jsonl file: decompress it first \(gunzip -k towns\.jsonl\.gz\)"),
        (cut, r"60 vectors of 32 dimensions take 7,725 bytes, and the file has 7,625: .*cat part_\*"),
        (cut_header, r"not a FAISS index|take 7,725 bytes"),
        (no_faiss, r"not a FAISS index \(it starts with b'PK"),
        (wild_header, r"a damaged FAISS index: -1 dimensions"),
        (binary, r"an index of binary vectors"),
        (empty, r"has no vectors"),
        (cut_graph, r"FAISS cannot read it: .*download it again"),
        (other_order_of_a_graph, r"of 32 sampled rows of .* do not find themselves in the index"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_lost(
    made: Published, published: Published, spoil: Callable[[Published], None], reason: str
) -> None:
    shutil.copytree(made.out, published.out)
    before = published.out / "index.json"
    manifest = before.read_bytes()
    spoil(published)
    with pytest.raises(StepladderError, match=reason):
        published.imported(overwrite=True)
    assert before.read_bytes() == manifest, "the index from before is still there"
    assert not [each for each in published.out.parent.iterdir() if each.name.startswith(".")]


def test_files_that_move_or_change_are_named_when_the_index_is_opened(published: Published) -> None:
    folder = published.imported()
    moved = published.corpus.rename(published.corpus.with_name("moved.jsonl"))
    with pytest.raises(
        StepladderError, match=r"refers to .*towns\.jsonl, which is missing. .*'corpus' in .*imported\.json"
    ):
        open_index(folder)
    place = folder / "imported.json"
    place.write_text(place.read_text().replace("towns.jsonl", "moved.jsonl"))
    assert open_index(folder).search(QUERIES[:1], 1)[0]
    place.write_text(place.read_text().replace(str(moved), "../moved.jsonl"))
    assert open_index(folder).search(QUERIES[:1], 1)[0], "relative to the folder"
    moved.write_text(moved.read_text().replace("river", "stream", 1))
    with pytest.raises(StepladderError, match="import it again"):
        open_index(folder)


def test_an_index_folder_and_its_encoder_are_compared_when_it_is_opened(published: Published) -> None:
    published.encoder = Path(shutil.copytree(published.encoder, published.out.parent / "e5-mine"))
    folder = published.imported()
    shutil.rmtree(published.encoder)
    save_encoder(published.encoder, seed=3)
    with pytest.raises(StepladderError, match="was not built with the encoder that is now at"):
        open_index(folder)


def test_blank_lines_and_a_missing_line_break_do_not_shift_rows(published: Published) -> None:
    published.corpus.write_text("\n" + published.corpus.read_text().replace("\n", "\r\n\n").rstrip())
    with closing(open_index(published.imported())) as index:
        assert {found.id for found in index.search(["Town"], len(TOWNS))[0]} == {each.id for each in TOWNS}


def test_texts_may_have_been_embedded_without_quotes(published: Published) -> None:
    texts = [f"{each.title} {each.text}" for each in TOWNS]
    write_faiss(published.index, e5_vectors(published.encoder, texts))
    assert open_index(published.imported()).search(QUERIES[:1], 1)[0]


def test_the_commands(published: Published, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(published.out)
    arguments = ["index", "import", str(published.index), "--corpus", str(published.corpus), "--out", out]
    assert main([*arguments, "--encoder", str(published.encoder), "--device", "cpu"]) == 0
    assert "faiss, 60 passages" in " ".join(capsys.readouterr().out.split())
    assert main(["index", "search", out, "Town 7", "-k", "32", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 32
    assert main(["index", "check", out]) == 0
    assert main([*arguments, "--encoder", str(published.encoder)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    published.corpus.unlink()
    assert main(["index", "check", out]) == 2
    assert "towns.jsonl, which is missing" in capsys.readouterr().err
    assert main(["index", "build", str(published.encoder), "--out", out, "--kind", "faiss"]) == 2
    assert "index import FILE" in capsys.readouterr().err


def test_it_is_fused_with_others_by_ranks(made: Published, tmp_path: Path) -> None:
    build_index(TOWNS, tmp_path / "bm25")
    with closing(load_retriever(f"{tmp_path / 'bm25'}+{made.out}")) as both:
        assert len(both.search(["Town 7"], 32)[0]) == 32
        check_retriever(both, QUERIES)


# --- GPUs -----------------------------------------------------------------------------------------------


class PretendedGpus:
    """FAISS with GPU support, as far as it is used, on the CPU."""

    def __init__(self, count: int) -> None:
        self.count, self.parts = count, list[tuple[int, bool, Any]]()

    def install(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        real = import_faiss()

        def flat(_: object, dimensions: int, metric: int, config: Any) -> Any:
            part = real.IndexFlat(dimensions, metric)
            self.parts.append((config.device, config.useFloat16, part))
            return part

        monkeypatch.setattr(real, "GpuIndexFlat", flat, raising=False)
        monkeypatch.setattr(real, "GpuIndexFlatConfig", type("Config", (), {}), raising=False)
        monkeypatch.setattr(real, "StandardGpuResources", object, raising=False)
        monkeypatch.setattr(real, "get_num_gpus", lambda: self.count)
        monkeypatch.setattr("stepladder.retrieval.index.gpu_index._free_bytes", lambda gpu: free)
        monkeypatch.setattr("stepladder.retrieval.index.encoder.pick_device", lambda _: torch.device("cpu"))


@pytest.mark.parametrize(
    ("device", "gpus", "free"),
    [
        ("cuda", [0, 1, 2], 10**9),
        ("auto", [0, 1, 2], 2000),
        ("cuda:1", [1], 10**9),
        ("cuda", [0, 1, 2], 100),
        ("cpu", [], 10**9),
    ],
)
def test_vectors_go_to_the_gpus_of_the_device_if_they_fit(
    made: Published, monkeypatch: pytest.MonkeyPatch, device: str, gpus: list[int], free: int
) -> None:
    expected = open_index(made.out).search(QUERIES, 10)
    pretended = PretendedGpus(3)
    pretended.install(monkeypatch, free)
    opened: Any = open_index(made.out, device=device)
    fits = free * len(gpus) * 0.8 >= 60 * 32 * 2
    assert [(gpu, half) for gpu, half, _ in pretended.parts] == ([(gpu, free < 10**9) for gpu in gpus] if fits else [])
    assert isinstance(opened.vectors, FlatIndex) == (not pretended.parts)
    assert sum(part.ntotal for _, _, part in pretended.parts) == (60 if fits and gpus else 0)
    for one, other in zip(expected, opened.search(QUERIES, 10)):
        assert [found.id for found in one] == [found.id for found in other]


def test_a_build_needs_no_distribution_of_a_certain_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """conda and faiss-gpu install the same modules under other names."""
    from importlib.metadata import PackageNotFoundError

    def unknown(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("stepladder.core.extras.version", unknown)
    encoder = save_encoder(tmp_path / "encoder")
    info = build_index(TOWNS, tmp_path / "ix", "bm25+flat", encoder=str(encoder), device="cpu")
    assert info.settings["vectors"] == f"FAISS {faiss.__version__}, sentence-transformers unknown"


def test_the_header_says_what_is_in_the_file(published: Published) -> None:
    header = read_header(published.index)
    assert (header.kind, header.dimensions, header.count) == ("IxFI", 32, 60)
    assert published.index.stat().st_size == header.vectors_at + 60 * 32 * 4  # type: ignore[operator]
