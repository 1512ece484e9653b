"""A cross-encoder on top of a retriever."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage
from stepladder.data import load_dataset
from stepladder.retrieval.base import Retriever, check_retriever
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.retrieval.rerank import RerankedRetriever
from tests.support.samples import PASSAGES, WordRetriever

pytest.importorskip("sentence_transformers")

QUERIES = ["Who founded the tower?", "Where is the bridge and who built it?", "tower"]


def save_cross_encoder(folder: Path, labels: int = 1) -> Path:
    """Two layers of random weights, large enough that scores differ, and a vocabulary of letters and a few words."""
    letters = [chr(code) for code in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{each}" for each in letters)]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*words, "the", "tower", "founded"]))
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words) + 3,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.5,
        num_labels=labels,
    )
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_cross_encoder(tmp_path_factory.mktemp("models") / "cross-encoder")


class Fixed(Retriever):
    """Finds the same for every query."""

    max_batch = 7

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages, self.asked, self.closed = tuple(passages), list[int](), False

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        self.asked.append(k)
        return [self.passages[:k] for _ in queries]

    def close(self) -> None:
        self.closed = True


def plain_score(folder: Path, query: str, text: str) -> float:
    """The score of one pair by itself, straight through transformers."""
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        inputs = tokenizer(query, text, truncation="longest_first", max_length=128, return_tensors="pt")
        return float(model(**inputs).logits.item())


def test_scores_are_those_of_the_model_for_each_pair_alone(cross_encoder: Path) -> None:
    retriever = RerankedRetriever(WordRetriever(), cross_encoder, batch=3, device="cpu")
    for query, found in zip(QUERIES, retriever.search(QUERIES, len(PASSAGES))):
        assert {each.id for each in found} == {each.id for each in PASSAGES}
        for passage in found:
            expected = plain_score(cross_encoder, query, f"{passage.title}\n{passage.text}")
            assert passage.score == pytest.approx(expected, rel=1e-4, abs=1e-4)
        scores = [passage.score or 0.0 for passage in found]
        assert scores == sorted(scores, reverse=True)
        assert len(set(scores)) > 1


def test_a_passage_without_a_title_is_read_as_its_text(cross_encoder: Path) -> None:
    retriever = RerankedRetriever(Fixed([Passage("1", "", "A tower.")]), cross_encoder, device="cpu")
    ((found,),) = retriever.search(["tower"], 1)
    assert found.score == pytest.approx(plain_score(cross_encoder, "tower", "A tower."), rel=1e-4)


def test_what_is_longer_than_the_model_can_read_is_cut(cross_encoder: Path) -> None:
    long = Passage("1", "", "tower " * 500)
    retriever = RerankedRetriever(Fixed([long]), cross_encoder, device="cpu", max_tokens=512)  # the model reads 128
    ((found,),) = retriever.search(["the tower"], 1)
    assert found.score == pytest.approx(plain_score(cross_encoder, "the tower", long.text), rel=1e-4)
    shorter = RerankedRetriever(Fixed([long]), cross_encoder, device="cpu", max_tokens=16)
    ((cut,),) = shorter.search(["the tower"], 1)
    assert cut.score != found.score


def test_equal_scores_keep_the_inner_order(cross_encoder: Path) -> None:
    same = [Passage(each, "Orm", "A tower.") for each in "dacb"]
    other = Passage("e", "Velm", "A bridge of stone that is much longer than the tower, and older too.")
    retriever = RerankedRetriever(Fixed([*same[:2], other, *same[2:]]), cross_encoder, batch=2, device="cpu")
    for found in retriever.search(["tower", "Who?"], 5):
        assert [each.id for each in found if each.id != "e"] == ["d", "a", "c", "b"]


def test_candidates_are_as_many_as_depth_or_k(cross_encoder: Path) -> None:
    passages = [Passage(str(number), f"Tower {number}", "It stands." * number) for number in range(8)]
    inner = Fixed(passages)
    retriever = RerankedRetriever(inner, cross_encoder, depth=4, device="cpu")
    assert [len(found) for found in retriever.search(["tower", "it"], 2)] == [2, 2]
    assert len(retriever.search(["tower"], 6)[0]) == 6
    assert inner.asked == [4, 6]
    # The best of all candidates, not the candidates' first two.
    best = max(passages[:4], key=lambda each: plain_score(cross_encoder, "tower", f"{each.title}\n{each.text}"))
    assert retriever.search(["tower"], 1)[0][0].id == best.id
    assert retriever.max_batch == inner.max_batch
    retriever.close()
    assert inner.closed


def test_queries_that_find_nothing_are_not_read(cross_encoder: Path) -> None:
    retriever = RerankedRetriever(Fixed([]), cross_encoder, device="cpu")
    assert retriever.search(["tower", "bridge"], 3) == [(), ()]


def test_it_keeps_the_contract(cross_encoder: Path) -> None:
    data = load_dataset("atlas")
    inner = BM25Index.from_passages(data.passages)
    queries = [question.text for question in data.split("test")[:4]]
    check_retriever(RerankedRetriever(inner, cross_encoder, depth=10, batch=4, device="cpu"), queries)


def test_a_missing_library_is_told_when_it_is_needed(cross_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(StepladderError, match=r"pip install .*\[dense\]'"):
        RerankedRetriever(WordRetriever(), cross_encoder)


def test_models_that_do_not_rank_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match=r"with 3 outputs; expected a cross-encoder with one"):
        RerankedRetriever(WordRetriever(), save_cross_encoder(tmp_path / "three", labels=3), device="cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        StepladderError, match=r"empty' could not be loaded: .* Give a folder with a sentence-transformers"
    ):
        RerankedRetriever(WordRetriever(), tmp_path / "empty", device="cpu")


def test_an_encoder_without_a_score_is_refused(tmp_path: Path) -> None:
    folder = save_cross_encoder(tmp_path / "encoder")
    BertModel.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(StepladderError, match="is a BertModel"):
        RerankedRetriever(WordRetriever(), folder, device="cpu")


def test_settings_that_make_no_sense_are_refused(cross_encoder: Path) -> None:
    with pytest.raises(ValueError, match="depth=0"):
        RerankedRetriever(WordRetriever(), cross_encoder, depth=0)
