"""Are gold passages recognized in an index with other ids and other cuts of the same articles?

    python checks/gold_across_indexes.py --data FOLDER

In: a folder with `hotpotqa`, `2wikimultihopqa` and `musique`, each with `corpus.jsonl.gz`, `dev.jsonl.gz` and
`train.jsonl.gz`, in FlashRAG's layout. Every corpus is indexed (BM25) as it is and rebuilt:

    foreign ids     the passages in another order, numbered from 0
    swapped ids     every passage has the id of another passage
    60 words        the articles (all passages of one title) cut anew into pieces of 60 words that overlap by 15
    100 words       the same with 100 and 20, the defaults of `stepladder index build`
    150 words       the same with 150 and 30

A search returns 3 passages; of 60 words also 4, which have about as many words as 3 passages of these corpora (68 to 88
words on average). Out, for each:

- the oracle's F1 on the dev questions, the share of gold passages that it retrieved, and the transcripts that `sft`
  gets from the train questions
- F1 and transcripts with labels by place: a piece is gold if it overlaps a gold passage in the article and contains the
  answer (if none does, any that overlaps). What they lose against the original corpus, the search has lost: no matcher
  can find it again
- false matches among the first 20 results for every question, sub-question and gold title: accepted passages that do
  not overlap a gold passage. Copies have 12 consecutive words in common with it: the corpora have some texts twice

Exit status 1 if F1 differs by more than 0.01 (ids) or 0.03 (cuts) from that of the original corpus or from that by
place, or the number of transcripts by more than 2% from that by place. With other ids, it may also differ by no more
than 2% from that of the original corpus; with other cuts the search finds more or less. Pieces of 60 words are compared
with the original corpus with 4 passages per search.
"""

import argparse
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from stepladder.agents import make_agent
from stepladder.core.answer_metrics import covers
from stepladder.core.trace import Hop, Passage, Question
from stepladder.data import load_dataset
from stepladder.driver import Driver
from stepladder.evaluation.evaluator import evaluate
from stepladder.explore.episode import EpisodeConfig
from stepladder.oracle.agent_check import check_agent
from stepladder.oracle.decomposition import fill_references, hop_answers, supports
from stepladder.oracle.engine import OracleEngine
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.train.sft.demonstrations import gold_demonstrations

SETS = ("hotpotqa", "2wikimultihopqa", "musique")
#: Largest difference in F1 with other ids and with other cuts, and largest relative difference in transcripts.
IDS, CUTS, TRANSCRIPTS = 0.01, 0.03, 0.02
#: Consecutive words that a copy has in common with a gold passage.
COPY = 12
#: Results per query among which false matches are counted.
DEPTH = 20


@dataclass(frozen=True)
class Rebuilt:
    """A corpus, and the ids of the original passages that each of its passages shares words with, by id."""

    name: str
    passages: list[Passage]
    origins: dict[str, set[str]]
    #: Passages per search, one measurement for each, and the largest difference in F1.
    ks: tuple[int, ...] = (3,)
    limit: float = IDS


def with_new_ids(name: str, passages: Sequence[Passage], ids: Sequence[str]) -> Rebuilt:
    """The passages under other ids."""
    named = [replace(passage, id=new) for passage, new in zip(passages, ids, strict=True)]
    return Rebuilt(name, named, {new: {passage.id} for passage, new in zip(passages, ids, strict=True)})


def cut_anew(passages: Sequence[Passage], words: int, overlap: int, ks: tuple[int, ...]) -> Rebuilt:
    """The articles cut into pieces of some words, numbered from 0."""
    articles: dict[str, list[Passage]] = {}
    for passage in passages:
        articles.setdefault(passage.title, []).append(passage)
    pieces: list[Passage] = []
    origins: dict[str, set[str]] = {}
    for title, parts in articles.items():
        owners = [part.id for part in parts for _ in part.text.split()]
        article = " ".join(part.text for part in parts).split()
        for start in range(0, max(len(article) - overlap, 1), words - overlap):
            key = str(len(pieces))
            pieces.append(Passage(key, title, " ".join(article[start : start + words])))
            origins[key] = set(owners[start : start + words])
    return Rebuilt(f"{words} words", pieces, origins, ks, CUTS)


def rebuilt(passages: Sequence[Passage], seed: int = 0) -> Iterator[Rebuilt]:
    """The corpus in all its forms, the original first."""
    rng = random.Random(seed)
    ids = [passage.id for passage in passages]
    yield with_new_ids("original", passages, ids)
    shuffled = rng.sample(list(passages), len(passages))
    yield with_new_ids("foreign ids", shuffled, [str(number) for number in range(len(shuffled))])
    yield with_new_ids("swapped ids", passages, ids[1:] + ids[:1])
    yield cut_anew(passages, 60, 15, (3, 4))
    yield cut_anew(passages, 100, 20, (3,))
    yield cut_anew(passages, 150, 30, (3,))


def labelled_by_place(questions: Sequence[Question], corpus: Rebuilt) -> list[Question]:
    """The questions with the ids of the rebuilt corpus as gold ids, and nothing else to recognize passages by."""
    pieces: dict[str, list[Passage]] = {}
    for passage in corpus.passages:
        for origin in corpus.origins[passage.id]:
            pieces.setdefault(origin, []).append(passage)

    def places(ids: Sequence[str], answers: Sequence[str]) -> tuple[str, ...]:
        parts = [piece for each in ids for piece in pieces.get(each, ())]
        stating = [piece for piece in parts if any(covers(piece.text, each) for each in answers)]
        return tuple(piece.id for piece in stating or parts)

    def relabelled(hop: Hop) -> Hop:
        return replace(hop, passages=places(hop.passages, (hop.answer, *hop.aliases)), gold_texts=())

    return [
        replace(
            question,
            hops=tuple(map(relabelled, question.hops)),
            gold_passages=tuple(places(group, ()) for group in question.gold_passages),
            gold_texts=(),
        )
        for question in questions
    ]


@dataclass(frozen=True)
class Matches:
    """Passages that are accepted as gold, those that overlap no gold passage, and the copies among these."""

    accepted: int
    wrong: int
    copies: int


def count_matches(
    questions: Sequence[Question], corpus: Rebuilt, index: BM25Index, texts: Mapping[str, str]
) -> Matches:
    """Count matches among search results. `texts`: those of the original passages, by id."""
    accepted, wrong, copies = 0, 0, 0
    for question in questions:
        queries = [question.text, *(fill_references(hop.question, hop_answers(question)) for hop in question.hops)]
        queries += [text.title for hop in question.hops for text in hop.gold_texts]
        found = {passage.id: passage for results in index.search(queries, DEPTH) for passage in results}
        for hop in (hop for hop in question.hops if hop.passages):
            matches = [passage for passage in found.values() if supports(hop, (passage,))]
            outside = [passage for passage in matches if corpus.origins[passage.id].isdisjoint(hop.passages)]
            gold = set().union(*(runs(texts[each]) for each in hop.passages if each in texts))
            accepted, wrong = accepted + len(matches), wrong + len(outside)
            copies += sum(not gold.isdisjoint(runs(passage.text)) for passage in outside)
    return Matches(accepted, wrong, copies)


def runs(text: str) -> set[str]:
    """All sequences of consecutive words that make a copy."""
    words = "".join(each.lower() if each.isalnum() else " " for each in text).split()
    return {" ".join(words[start : start + COPY]) for start in range(len(words) - COPY + 1)}


@dataclass(frozen=True)
class Figures:
    """What the oracle reaches with one index."""

    f1: float
    recall: float
    transcripts: int

    @classmethod
    def of(cls, index: BM25Index, dev: Sequence[Question], train: Sequence[Question], k: int) -> "Figures":
        agent, settings = make_agent("prorag", check_agent), EpisodeConfig(k=k)
        scores = evaluate(Driver(OracleEngine(agent), index), agent, dev, settings).scores
        recall = fmean(row.gold_recall for row in scores if row.gold_recall is not None)
        kept = gold_demonstrations(agent, train, index, settings, seed=0).kept
        return cls(fmean(row.f1 for row in scores), recall, len(kept))

    def difference(self, other: "Figures", limit: float, *, transcripts: bool) -> str:
        """How these figures are outside of the limits around others; empty if they are not."""
        if abs(self.f1 - other.f1) > limit:
            return f"F1 {self.f1:.4f} instead of {other.f1:.4f}"
        if transcripts and abs(self.transcripts - other.transcripts) > TRANSCRIPTS * other.transcripts:
            return f"{self.transcripts:,} transcripts instead of {other.transcripts:,}"
        return ""


def measure(name: str, folder: Path, console: Console) -> list[str]:
    """Measure one data set on all forms of its corpus; returns what is outside of the limits."""
    data = load_dataset(str(folder))
    assert data.passages is not None
    dev, train = data.split("dev"), data.split("train")
    texts = {passage.id: passage.text for passage in data.passages}
    table = Table(title=f"{name}: {len(dev)} dev questions, {len(train)} train questions")
    columns = "corpus,passages,k,F1,by place,gold recall,transcripts,by place,accepted,false,copies"
    for column in columns.split(","):
        table.add_column(column, justify="left" if column == "corpus" else "right")
    original: Figures | None = None
    problems: list[str] = []
    for corpus in rebuilt(data.passages):
        index = BM25Index.from_passages(corpus.passages)
        matches = count_matches(dev, corpus, index, texts)
        placed = [labelled_by_place(questions, corpus) for questions in (dev, train)]
        for k in corpus.ks:
            here, place = Figures.of(index, dev, train, k), Figures.of(index, *placed, k)
            original = original or here
            table.add_row(
                *(corpus.name, f"{len(corpus.passages):,}", str(k)),
                *(f"{here.f1:.4f}", f"{place.f1:.4f}", f"{here.recall:.4f}"),
                *(f"{each:,}" for each in (here.transcripts, place.transcripts)),
                *(f"{each:,}" for each in (matches.accepted, matches.wrong, matches.copies)),
            )
            found = [here.difference(place, corpus.limit, transcripts=True)]
            if k == corpus.ks[-1]:
                found.append(here.difference(original, corpus.limit, transcripts=corpus.limit == IDS))
            problems += [f"{name}, {corpus.name}, k = {k}: {each}" for each in found if each]
    console.print(table)
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Gold passages in indexes with other ids and other cuts.")
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    options = parser.parse_args()
    console = Console(width=max(120, int(os.environ.get("COLUMNS", "0"))))
    problems: list[str] = []
    for name in options.sets:
        problems += measure(name, options.data / name, console)
    for problem in problems:
        console.print(f"outside of the limits: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
