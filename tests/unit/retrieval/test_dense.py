"""Encoders are used as their cards say, and indexes of embeddings find what is nearest, however they were built."""

import errno
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel, BertTokenizerFast

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import PartialFolder, WriteError
from stepladder.core.trace import Passage
from stepladder.models.devices import pick_dtype
from stepladder.retrieval.base import check_retriever
from stepladder.retrieval.hybrid import HybridRetriever
from stepladder.retrieval.index.build import build_index, open_index
from stepladder.retrieval.index.dense import DenseIndex
from stepladder.retrieval.index.dense_config import DenseConfig, EncoderConfig, Layout, card_of
from stepladder.retrieval.index.encoder import Encoder
from stepladder.retrieval.index.faiss_index import build_vector_index, check_memory, open_vector_index
from stepladder.retrieval.index.manifest import index_info
from tests.support.encoders import TOWNS, save_encoder

SKY = (
    Passage("moon", "Moon", "The Moon is the only natural satellite of the Earth."),
    Passage("bread", "Bread", "Bread is baked from flour and water."),
    Passage("whale", "Whale", "Whales are the largest animals that live in the sea."),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_encoder(folder / "plain")
    save_encoder(folder / "bge-tiny-en")
    return folder


def encoder(folder: Path, **settings: object) -> Encoder:
    return Encoder(EncoderConfig.read({"encoder": str(folder), **settings}), device="cpu", dtype="fp32")


def by_hand(folder: Path, text: str, pooling: str) -> np.ndarray:
    tokens = BertTokenizerFast.from_pretrained(folder)(text, return_tensors="pt", truncation=True)
    with torch.no_grad():
        hidden = BertModel.from_pretrained(folder)(**tokens).last_hidden_state[0]
    vector = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling].numpy()
    return np.asarray(vector / np.linalg.norm(vector))


# --- Encoders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_are_pooled_as_asked(models: Path, pooling: str) -> None:
    (found,) = encoder(models / "plain", pooling=pooling).queries(["Where is Orm?"])
    np.testing.assert_allclose(found, by_hand(models / "plain", "Where is Orm?", pooling), atol=1e-5)


def test_what_the_card_says_holds_where_nothing_else_does(models: Path) -> None:
    bge = encoder(models / "bge-tiny-en")
    prefix = "Represent this sentence for searching relevant passages: "
    assert (bge.settings.pooling, bge.settings.query_prefix, bge.settings.passage_prefix) == ("cls", prefix, "")
    np.testing.assert_allclose(
        bge.queries(["Orm?"])[0], by_hand(models / "bge-tiny-en", prefix + "Orm?", "cls"), atol=1e-5
    )
    np.testing.assert_allclose(
        bge.passages([Passage("1", "Orm", "A tower.")])[0],
        by_hand(models / "bge-tiny-en", "Orm\nA tower.", "cls"),
        atol=1e-5,
    )


def test_what_the_user_says_goes_before_the_card(models: Path) -> None:
    own = encoder(models / "bge-tiny-en", query_prefix="q: ", passage_prefix="p: ", pooling="mean")
    np.testing.assert_allclose(own.queries(["Orm?"])[0], by_hand(models / "bge-tiny-en", "q: Orm?", "mean"), atol=1e-5)
    np.testing.assert_allclose(
        own.passages([Passage("1", "", "A tower.")])[0],
        by_hand(models / "bge-tiny-en", "p: A tower.", "mean"),
        atol=1e-5,
    )


def test_prompts_in_the_models_own_files_go_before_the_card(models: Path) -> None:
    from sentence_transformers import SentenceTransformer

    own = SentenceTransformer(str(models / "plain"), prompts={"query": "ask: ", "document": "doc: "}, device="cpu")
    own.save(str(models / "e5-own"))
    found = encoder(models / "e5-own").settings
    assert (found.query_prefix, found.passage_prefix) == ("ask: ", "doc: ")


def test_dot_products_leave_the_length(models: Path) -> None:
    assert np.linalg.norm(encoder(models / "plain", similarity="dot").queries(["a tower"])[0]) > 2
    assert np.linalg.norm(encoder(models / "plain").queries(["a tower"])[0]) == pytest.approx(1)


def test_well_known_encoders_have_their_prefixes() -> None:
    assert card_of("intfloat/e5-base-v2").passage_prefix == card_of("intfloat/multilingual-e5-large").passage_prefix
    assert card_of("intfloat/e5-base-v2").passage_prefix == "passage: "
    assert card_of("BAAI/bge-m3").query_prefix == ""
    assert card_of("facebook/contriever-msmarco").similarity == "dot"
    assert card_of("/home/me/all-mpnet-base-v2").query_prefix == ""


def test_bf16_stays_near(models: Path) -> None:
    if pick_dtype("bf16", torch.device("cpu")) is not torch.bfloat16:
        pytest.skip("this processor does not compute in bf16")
    exact, quick = (
        Encoder(EncoderConfig(encoder=str(models / "plain")), device="cpu", dtype=dtype).passages(TOWNS)
        for dtype in ("fp32", "bf16")
    )
    assert exact.dtype == quick.dtype == np.float32
    assert (exact * quick).sum(1).min() > 0.995
    assert not np.array_equal(exact, quick)


def test_long_and_odd_texts_are_cut_not_refused(models: Path) -> None:
    short = encoder(models / "plain", max_tokens=8)
    assert short.settings.max_tokens == 8
    one, other = short.queries(["abcdefghi", "abcdefghizzz"])
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert np.isfinite(short.queries(["", "\ud800", "x" * 300_000])).all()


def test_an_encoder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StepladderError, match=r"the encoder '.*empty' cannot be loaded: .*Use minilm"):
        encoder(tmp_path / "empty")


@pytest.mark.parametrize("missing", ["sentence_transformers", "faiss"])
def test_missing_libraries_are_named(models: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(StepladderError, match=r"pip install .*\[dense\]'"):
        DenseIndex.from_passages(TOWNS, encoder(models / "plain"))


# --- Indexes ----------------------------------------------------------------------------------------------


def test_meaning_is_found_without_a_common_word() -> None:
    index = DenseIndex.from_passages(SKY, Encoder(device="cpu"))
    found = index.search(
        ["What circles our planet at night?", "a loaf from the oven", "huge creatures of the ocean"], 1
    )
    assert [best.id for (best,) in found] == ["moon", "bread", "whale"]


@pytest.mark.parametrize("kind", ["flat", "hnsw", "bm25+flat"])
def test_an_index_in_a_folder_keeps_the_contract(models: Path, tmp_path: Path, kind: str) -> None:
    build_index(TOWNS, tmp_path / "ix", kind, encoder=str(models / "plain"), device="cpu", dtype="fp32")
    index = open_index(tmp_path / "ix")
    check_retriever(index, ["Which town lies on the river b4?", "Town 12", "river g2"])
    if kind != "bm25+flat":
        memory = DenseIndex.from_passages(TOWNS, encoder(models / "plain"))
        for ours, theirs in zip(index.search(["river b4"], 10)[0], memory.search(["river b4"], 10)[0], strict=True):
            assert ours.score == pytest.approx(theirs.score, abs=2e-3)  # hnsw keeps fp16, where near ones may swap
    index.close()


def test_parts_of_a_joined_kind_are_fused(models: Path, tmp_path: Path) -> None:
    build_index(TOWNS, tmp_path / "ix", "bm25+flat", encoder=str(models / "plain"), device="cpu", k1=0.9)
    info = index_info(tmp_path / "ix")
    assert (info.kind, info.settings["k1"], info.settings["dimensions"]) == ("bm25+flat", 0.9, 32)
    index = open_index(tmp_path / "ix")
    assert isinstance(index, HybridRetriever)
    words, meaning = (part.search(["Town 12"], 3)[0] for part in index.retrievers)
    assert words[0].id == "t12"
    assert {passage.id for passage in index.search(["Town 12"], 3)[0]} <= {p.id for p in (*words, *meaning)} | {
        p.id for part in index.retrievers for p in part.search(["Town 12"], 100)[0]
    }


@pytest.mark.parametrize("layout", list(Layout))
def test_layouts_find_what_is_nearest(tmp_path: Path, layout: Layout) -> None:
    random = np.random.default_rng(0)
    centres = random.standard_normal((200, 32))
    vectors = centres[random.integers(200, size=12_000)] + 0.3 * random.standard_normal((12_000, 32))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    stored = vectors if layout is Layout.flat else vectors.astype(np.float16)
    np.save(tmp_path / "vectors.npy", stored)
    build_vector_index(layout, np.load(tmp_path / "vectors.npy", mmap_mode="r"), tmp_path, 10**9, lambda *_: None)
    nearest = open_vector_index(layout, tmp_path)
    queries = vectors[:100]
    exact = np.argsort(-queries @ vectors.T, axis=1)[:, :10]
    scores, found = nearest.search(queries, 10)
    assert (np.diff(scores, axis=1) <= 1e-6).all()
    recall = np.mean([len(set(one) & set(other)) / 10 for one, other in zip(exact, found)])
    assert recall > (0.999 if layout is Layout.flat else 0.95)
    np.testing.assert_allclose(nearest.vector(7), vectors[7], atol=2e-3)
    rows, places = nearest.search(queries[:1], 10)
    np.testing.assert_array_equal(places[0], found[0])
    np.testing.assert_allclose(rows[0], scores[0], atol=1e-4)
    nearest.close()


def test_what_does_not_fit_into_the_memory_is_said_before_the_work() -> None:
    with pytest.raises(
        StepladderError, match=r"hnsw of 21,000,000 vectors needs about .* or use the kind flat or ivfpq"
    ):
        check_memory(Layout.hnsw, 21_000_000, 384, 4 * 10**9)
    check_memory(Layout.ivfpq, 21_000_000, 384, 4 * 10**9)
    with pytest.raises(StepladderError, match="too few"):
        check_memory(Layout.ivfpq, 500, 384, 10**9)


def test_encoding_respects_the_memory(models: Path, tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match=r"encoding needs about .* raise it \(--memory\)"):
        build_index(TOWNS, tmp_path / "ix", "flat", encoder=str(models / "plain"), memory=10**6)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system reserves no disk space")
def test_a_full_disk_is_told_before_vectors_are_written(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors are written through memory: without space, the process would die of SIGBUS."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(WriteError, match="No space left on device"):
        build_index(TOWNS, tmp_path / "ix", "flat", encoder=str(models / "plain"), device="cpu")


def test_another_encoder_than_the_indexs_own_is_noticed(tmp_path: Path) -> None:
    save_encoder(tmp_path / "model")
    build_index(TOWNS, tmp_path / "ix", "flat", encoder=str(tmp_path / "model"), device="cpu")
    open_index(tmp_path / "ix").close()
    for seed, width, found in ((1, 32, "its vectors differ"), (0, 16, "it has 16 dimensions, the index has 32")):
        (tmp_path / "model").rename(tmp_path / f"old-{seed}")
        save_encoder(tmp_path / "model", seed, width)
        with pytest.raises(StepladderError, match=f"was not built with the encoder .*{found}"):
            open_index(tmp_path / "ix")


@pytest.mark.parametrize(
    ("kind", "message"), [("bm25+bm25", "duplicate"), ("flat+hnsw", "several"), ("bm25+flt", "'flat'")]
)
def test_kinds_that_make_no_sense(tmp_path: Path, kind: str, message: str) -> None:
    with pytest.raises(StepladderError, match=message):
        build_index(TOWNS, tmp_path / "ix", kind)


def test_unknown_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="Did you mean 'encoder'"):
        build_index(TOWNS, tmp_path / "ix", "bm25+flat", encodr="x")
    with pytest.raises(StepladderError, match="setting of the index kind bm25 'encoder'"):
        build_index(TOWNS, tmp_path / "ix", encoder="x")


# --- Building that is cut off -----------------------------------------------------------------------------


def test_a_changed_corpus_begins_anew(models: Path, tmp_path: Path) -> None:
    corpus, told = tmp_path / "corpus.jsonl", list[str]()
    corpus.write_text('{"id": "1", "text": "a tower"}\n{"id": "2", "text": "a bridge"}\n')

    def build(fail: bool) -> None:
        def progress(doing: str, done: int, total: int) -> None:
            told.append(doing)
            if fail and doing == "Encoding passages":
                raise RuntimeError("the power is gone")

        build_index(corpus, tmp_path / "ix", "flat", encoder=str(models / "plain"), device="cpu", progress=progress)

    with pytest.raises(RuntimeError):
        build(fail=True)
    time.sleep(0.01)
    corpus.write_text('{"id": "1", "text": "a tower"}\n{"id": "2", "text": "a ship"}\n')
    told.clear()
    build(fail=False)
    assert "Reading the corpus (kB)" in told
    assert {passage.text for passage in open_index(tmp_path / "ix").search(["ship"], 5)[0]} == {"a tower", "a ship"}


def test_a_build_without_an_unfinished_one(models: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    made = DenseIndex.build(
        TOWNS,
        PartialFolder(tmp_path, tmp_path / "notes"),
        Layout.flat,
        DenseConfig(encoder=str(models / "plain"), device="cpu"),
    )
    assert made["similarity"] == "cosine"
    assert DenseIndex.open(tmp_path, TOWNS).search(["Town 5"], 1)[0]


@pytest.mark.parametrize("damage", ["vectors cut", "vectors gone", "note empty", "passages cut", "another encoder"])
def test_an_unfinished_build_that_was_damaged_begins_anew(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr("stepladder.retrieval.index.vectors.SHARD", 16)
    corpus, unfinished = tmp_path / "corpus.jsonl", tmp_path / ".ix.unfinished"
    corpus.write_text("".join(json.dumps({"id": each.id, "text": each.text + each.id}) + "\n" for each in TOWNS))
    save_encoder(tmp_path / "model")

    def build(folder: str, stop: int = 1000) -> None:
        def progress(doing: str, done: int, total: int) -> None:
            if doing == "Encoding passages" and done >= stop:
                raise RuntimeError("the power is gone")

        build_index(corpus, tmp_path / folder, "flat", encoder=str(tmp_path / "model"), device="cpu", progress=progress)

    with pytest.raises(RuntimeError):
        build("ix", stop=32)
    assert (unfinished / "unfinished" / "encoded.txt").read_text() == "32"
    if damage == "vectors cut":
        with (unfinished / "vectors.npy").open("r+b") as file:
            file.truncate(1000)
    elif damage == "vectors gone":
        (unfinished / "vectors.npy").unlink()
    elif damage == "note empty":
        (unfinished / "unfinished" / "encoded.txt").write_text("")
    elif damage == "passages cut":
        (unfinished / "passages.jsonl").write_text('{"id": "t0"')
    else:
        (tmp_path / "model").rename(tmp_path / "old")
        save_encoder(tmp_path / "model", seed=1)
    build("ix")
    build("whole")
    for name in index_info(tmp_path / "whole").files:
        assert (tmp_path / "ix" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_what_fails_at_the_very_end_is_not_lost(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": each.id, "text": each.text + each.id}) + "\n" for each in TOWNS))
    told: list[str] = []

    def build() -> None:
        def progress(doing: str, done: int, total: int) -> None:
            told.append(f"{doing} {done}")

        build_index(corpus, tmp_path / "ix", "flat", encoder=str(models / "plain"), device="cpu", progress=progress)

    with monkeypatch.context() as patch:
        patch.setattr("stepladder.core.io.files._replace_folder", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build()
    told.clear()
    build()
    assert told == []  # nothing was left to do
    assert "index.json" not in index_info(tmp_path / "ix").files
    assert {each.name for each in tmp_path.iterdir()} == {"corpus.jsonl", "ix"}
    assert not (tmp_path / "ix" / "unfinished").exists()


def test_a_damaged_graph_is_named(models: Path, tmp_path: Path) -> None:
    build_index(TOWNS, tmp_path / "ix", "hnsw", encoder=str(models / "plain"), device="cpu")
    with (tmp_path / "ix" / "vectors.faiss").open("r+b") as file:
        file.write(b"XXXXXXXX")
    with pytest.raises(StepladderError, match=r"is damaged: vectors.faiss has other content"):
        open_index(tmp_path / "ix")


def test_an_encoder_that_has_moved_can_be_named_anew(tmp_path: Path) -> None:
    save_encoder(tmp_path / "model")
    build_index(TOWNS, tmp_path / "ix", "flat", encoder=str(tmp_path / "model"), device="cpu")
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(StepladderError, match=r"If it has moved, correct 'encoder' in .*dense\.json"):
        open_index(tmp_path / "ix")
    description = tmp_path / "ix" / "dense.json"
    description.write_text(description.read_text().replace(str(tmp_path / "model"), str(tmp_path / "elsewhere")))
    assert open_index(tmp_path / "ix").search(["Town 3"], 1)[0]
