"""Passages are added to an index as if it had been built from all of them; what it has stays in place until then."""

from pathlib import Path

import numpy as np
import pytest

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage
from stepladder.retrieval.corpus.passage_store import PassageStore
from stepladder.retrieval.corpus.tables import CorpusError
from stepladder.retrieval.index import add
from stepladder.retrieval.index.add import add_to_index
from stepladder.retrieval.index.build import build_index, open_index
from stepladder.retrieval.index.encoder import Encoder
from stepladder.retrieval.index.manifest import IndexInfo, check_index, index_info, unread_files, write_manifest
from tests.support.document_files import write_pdf
from tests.support.encoders import TOWNS, save_encoder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("models") / "plain")


def texts(folder: Path, **files: str) -> Path:
    """A folder of texts."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def stored(folder: Path) -> dict[str, str]:
    """The ids and texts of an index, in order."""
    return {passage.id: passage.text for passage in PassageStore(folder)}


def same_files(one: Path, other: Path) -> bool:
    names = index_info(one).files.keys()
    return names == index_info(other).files.keys() and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def test_adding_equals_building_from_all(tmp_path: Path) -> None:
    build_index(TOWNS[:40], tmp_path / "ix", k1=0.9, source="towns")
    info = add_to_index(TOWNS[40:], tmp_path / "ix", source="more towns")
    both = build_index(TOWNS, tmp_path / "both", k1=0.9)
    assert same_files(tmp_path / "ix", tmp_path / "both")
    assert (info.checksum, info.passages, info.settings) == (both.checksum, 60, both.settings)
    assert info.source == "towns + more towns"
    assert index_info(tmp_path / "ix") == info
    check_index(tmp_path / "ix")


@pytest.mark.parametrize("kind", ["flat", "bm25+hnsw"])
def test_vectors_of_old_passages_are_reused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    encoded: list[str] = []

    class Watched(Encoder):
        def passages(self, passages):  # type: ignore[no-untyped-def]
            encoded.extend(each.id for each in passages)
            return super().passages(passages)

    build_index(TOWNS[:40], tmp_path / "ix", kind, encoder=str(model), device="cpu")
    monkeypatch.setattr("stepladder.retrieval.index.dense.Encoder", Watched)
    add_to_index(TOWNS[40:], tmp_path / "ix", device="cpu")
    assert encoded == ["t39", *(f"t{number}" for number in range(40, 60))]  # t39 is compared with its vector
    build_index(TOWNS, tmp_path / "both", kind, encoder=str(model), device="cpu")
    queries = [f"Town {number}" for number in range(0, 60, 7)]
    ours, theirs = (open_index(tmp_path / name).search(queries, 3) for name in ("ix", "both"))
    for one, other in zip(ours, theirs):
        assert [each.id for each in one] == [each.id for each in other]
        assert np.allclose([each.score or 0 for each in one], [each.score or 0 for each in other], atol=1e-3)


def test_an_id_with_another_text_is_refused_or_replaced(model: Path, tmp_path: Path) -> None:
    build_index(TOWNS[:3], tmp_path / "ix", "flat", encoder=str(model), device="cpu")
    before = {file.name: file.read_bytes() for file in (tmp_path / "ix").iterdir()}
    changed = [Passage("t1", "Town 1", "It has moved."), Passage("t9", "Town 0", TOWNS[0].text), TOWNS[2], TOWNS[5]]
    with pytest.raises(CorpusError, match=r"the index has a passage 't1' with another text.* replace \(--replace\)"):
        add_to_index(changed, tmp_path / "ix", device="cpu")
    assert {file.name: file.read_bytes() for file in (tmp_path / "ix").iterdir()} == before
    info = add_to_index(changed, tmp_path / "ix", replace=True, device="cpu")
    assert list(stored(tmp_path / "ix")) == ["t0", "t2", "t1", "t5"]
    assert info.left_out == {"duplicates": 2}
    index = open_index(tmp_path / "ix")
    vectors = np.load(tmp_path / "ix" / "vectors.npy")
    # Encoders compute in bf16 where that is fast, and rounding depends on the batch.
    assert np.allclose(vectors, index.encoder.passages(list(index.passages)), atol=1e-2)  # type: ignore[attr-defined]
    assert [path.name for path in tmp_path.iterdir()] == ["ix"]


def test_documents_that_were_read_again(tmp_path: Path) -> None:
    folder = texts(tmp_path / "in", a="One two. Three four.", b="Five six.", c="Seven eight.")
    (folder / "d.pdf").write_bytes(b"%PDF-1.4")
    build_index(folder, tmp_path / "ix", words=2, overlap=0)
    assert list(unread_files(tmp_path / "ix")) == ["d.pdf"]
    texts(folder, a="New words.")
    (folder / "c.txt").write_bytes(b"\xff")
    write_pdf(folder / "d.pdf", [["Nine ten."]])
    with pytest.raises(CorpusError, match=r"a passage 'a.txt#1' with another text"):
        add_to_index(folder, tmp_path / "ix", words=2, overlap=0)
    info = add_to_index(folder, tmp_path / "ix", words=2, overlap=0, replace=True)
    expected = {"b.txt#1": "Five six.", "c.txt#1": "Seven eight.", "a.txt#1": "New words.", "d.pdf#1": "Nine ten."}
    assert stored(tmp_path / "ix") == expected  # c.txt cannot be read any more, so what the index has of it stays
    assert list(unread_files(tmp_path / "ix")) == ["c.txt"]
    assert info.left_out == {"duplicates": 1, "unreadable files": 1}


def test_of_a_document_that_is_blank_now_nothing_stays(tmp_path: Path) -> None:
    folder = texts(tmp_path / "in", a="One two.", b="Five six.")
    build_index(folder, tmp_path / "ix")
    add_to_index(texts(folder, a="\n"), tmp_path / "ix", replace=True)
    assert stored(tmp_path / "ix") == {"b.txt#1": "Five six."}


def test_adding_nothing_new_changes_nothing(tmp_path: Path) -> None:
    folder = texts(tmp_path / "in", a="One two.")
    info = build_index(folder, tmp_path / "ix")
    before = (tmp_path / "ix").stat().st_ino
    assert add_to_index(folder, tmp_path / "ix") == info
    assert (tmp_path / "ix").stat().st_ino == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "ix"]


def test_an_interrupted_addition_leaves_the_index_and_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(TOWNS[:20], tmp_path / "ix", "bm25+flat", encoder=str(model), device="cpu")
    more = texts(tmp_path / "more", **{f"m{number:02}": f"The mill {number} grinds." for number in range(20)})
    monkeypatch.setattr("stepladder.retrieval.index.vectors.SHARD", 8)
    told: list[tuple[str, int]] = []

    def stop(doing: str, done: int, total: int) -> None:
        if (doing, done) == ("Encoding passages", 28):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_to_index(more, tmp_path / "ix", device="cpu", progress=stop)
    check_index(tmp_path / "ix")
    assert open_index(tmp_path / "ix").search(["Town 7"], 1)[0][0].id == "t7"
    add_to_index(more, tmp_path / "ix", device="cpu", progress=lambda doing, done, _: told.append((doing, done)))
    assert told[0] == ("Encoding passages", 28)
    assert [passage.id for passage in open_index(tmp_path / "ix").search(["mill 13"], 1)[0]] == ["m13.txt#1"]
    assert index_info(tmp_path / "ix").passages == 40


def test_what_cannot_be_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(TOWNS[:3], tmp_path / "ix")
    with pytest.raises(StepladderError, match="'k1' is the same for all passages of an index"):
        add_to_index(TOWNS[3:], tmp_path / "ix", k1=0.9)
    with pytest.raises(StepladderError, match="setting of the index kind bm25 'device'"):
        add_to_index(TOWNS[3:], tmp_path / "ix", device="cpu")
    with pytest.raises(StepladderError, match="no such folder"):
        add_to_index(TOWNS[3:], tmp_path / "none")
    (tmp_path / "ix" / "thesis.tex").write_text("years of work")
    with pytest.raises(StepladderError, match="contains files that are not part of an index"):
        add_to_index(TOWNS[3:], tmp_path / "ix")
    (tmp_path / "remote").mkdir()
    write_manifest(tmp_path / "remote", IndexInfo("milvus", 3, {}, "", "", "", {}))
    with pytest.raises(StepladderError, match=r"kind milvus. Build an index of the new ones, and search both"):
        add_to_index(TOWNS[3:], tmp_path / "remote")
    assert add.document_of("no-document") == ""
