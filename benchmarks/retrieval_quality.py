"""How much of what a multi-hop question needs is found? Recall of BM25, dense and hybrid search on real questions.

    python benchmarks/retrieval_quality.py --data FOLDER --cache vectors --out recall.json
    python benchmarks/retrieval_quality.py --data FOLDER --cache vectors --tune

In: a folder with `hotpotqa`, `2wikimultihopqa`, `musique` and `popqa`, each with `corpus.jsonl.gz`, `dev.jsonl.gz` and,
popqa excepted, `train.jsonl.gz`, in FlashRAG's layout. Out: recall@2, @5 and @10, the share of a question's gold
passages among the first k (a gold passage may have several ids), as the mean over all dev questions with its 95%
bootstrap interval. A star says that a row differs from the first one with p < 0.05, question by question.

`--tune` compares settings on the train questions and never reads the dev questions. Vectors, the slow part, are kept in
the cache by what they were made of; what is there is not made again, also after Ctrl-C.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.jsonl import read_objects
from stepladder.core.trace import Passage, Question
from stepladder.data.formats.base import read_questions
from stepladder.data.formats.rows import QuestionFileError
from stepladder.evaluation.statistics import mean_interval, paired_difference
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.corpus.reader import read_corpus
from stepladder.retrieval.hybrid import HybridRetriever, fuse_by_ranks, fuse_by_scores
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.retrieval.index.build import BM25_WEIGHT
from stepladder.retrieval.index.dense_config import EncoderConfig
from stepladder.retrieval.index.encoder import Encoder, Vectors

SETS = ("hotpotqa", "2wikimultihopqa", "musique", "popqa")
KS = (2, 5, 10)
#: The one pool on which papers report figures: the set, the source of its passages, its name here.
PUBLISHED_POOL = ("2wikimultihopqa", "hipporag1000", "2wiki, 6,119 passages")
#: Recall@2 and @5 that papers report there, on 1,000 questions of which the dev questions are 300.
PUBLISHED = {
    "BM25": (51.8, 61.9),
    "BM25, another run": (55.3, 65.3),
    "Contriever": (46.6, 57.5),
    "GTR": (60.2, 67.9),
    "ColBERTv2": (59.2, 68.2),
    "NV-Embed-v2 (7B)": (67.1, 76.5),
}
CAVEATS = """\
Corpora are pools of gold and distractor passages, not the whole of Wikipedia. MuSiQue's pool lacks many hard
distractors, and its gold ids were matched by rule; about 3% of 2Wiki's gold titles may be wrong. The train questions
come from the official train and dev sets; no dev question is among them. Figures compare systems run on these files
with each other, not with papers; the exception is 2Wiki restricted to the passages that papers used. What is labelled
published was measured by others on 1,000 questions, of which ours are 300."""
NO_DATA = """\
Nothing to measure: give --data FOLDER with hotpotqa/, 2wikimultihopqa/, musique/ and popqa/ in FlashRAG's layout:
  corpus.jsonl.gz  {"id", "contents": "\\"Title\\"\\ntext", "source"}
  dev.jsonl.gz     {"id", "question", "golden_answers", "metadata": {"supporting_facts": {"ids": [["..."], ...]}}}
The authors of the four sets publish the questions with their supporting facts, and HippoRAG's repository the passages
that papers search; `ids` lists for each gold passage the ids that count as it."""
CONSOLE = Console(width=110)  # also where the output is a file
#: Vectors are written to the cache so many at a time.
CHUNK = 512

#: recall@k of each question.
Recalls = dict[int, list[float]]


@dataclass(frozen=True)
class Pool:
    """Passages and the questions that are asked of them."""

    name: str
    passages: list[Passage]
    questions: tuple[Question, ...]

    def ask(self, retriever: Retriever, k: int = max(KS)) -> list[tuple[Passage, ...]]:
        """What a retriever finds for the questions."""
        return retriever.search([question.text for question in self.questions], k)

    def recalls(self, found: Sequence[Sequence[Passage]]) -> Recalls:
        """How much of what the questions need is among the first k of what was found."""
        return {k: [recall(question, each[:k]) for question, each in zip(self.questions, found)] for k in KS}


def recall(question: Question, found: Iterable[Passage]) -> float:
    """The share of the question's gold passages, each of which may have several ids, that was found."""
    ids = {passage.id for passage in found}
    return sum(not ids.isdisjoint(group) for group in question.gold_passages) / len(question.gold_passages)


def read_pools(folder: Path, split: str) -> list[Pool]:
    """The pools that have questions of the split; for dev also the one that papers report on."""
    pools = []
    for name in SETS:
        questions_file = folder / name / f"{split}.jsonl.gz"
        if split == "train" and not questions_file.exists():
            continue
        corpus, asked = folder / name / "corpus.jsonl.gz", read_questions(questions_file).questions
        questions = tuple(question for question in asked if question.gold_passages)
        if len(questions) < len(asked):
            print(f"{name}: {len(asked) - len(questions)} questions left out, their gold passages are not known")
        passages = list(read_corpus(corpus))
        pools.append(Pool(name, passages, questions))
        if split == "dev" and name == PUBLISHED_POOL[0]:
            sources = {line.id("id"): line.data.get("source") for line in read_objects(corpus, QuestionFileError)}
            kept = [passage for passage in passages if sources[passage.id] == PUBLISHED_POOL[1]]
            pools.append(Pool(PUBLISHED_POOL[2], kept, questions))
    return pools


# --- vectors ------------------------------------------------------------------------------------------------------


class CachedEncoder(Encoder):
    """An encoder that makes no vector of a passage twice, also over several runs."""

    def __init__(self, name: str, cache: Path | None) -> None:
        super().__init__(EncoderConfig(encoder=name), dtype="fp32")  # figures that depend on no processor
        # A vector tells models of one name apart; rounded, since processors do not agree to the last digit.
        made_by = repr(self.settings).encode() + np.round(self.queries(["Who built the tower?"]), 2).tobytes()
        self._folder = cache and cache / blake2b(made_by, digest_size=8).hexdigest()
        self._known: dict[bytes, Vectors] = {}
        for file in sorted(self._folder.glob("*.npz")) if self._folder else ():
            with np.load(file) as stored:
                self._known.update(zip(map(bytes, stored["keys"]), stored["vectors"]))

    def passages(self, passages: Sequence[Passage]) -> Vectors:
        """The vectors of passages; those not yet known are made and written, a chunk at a time."""
        keys = [blake2b(f"{each.title}\n{each.text}".encode(), digest_size=16).digest() for each in passages]
        missing = {key: passage for key, passage in zip(keys, passages) if key not in self._known}
        for start in range(0, len(missing), CHUNK):
            chunk = list(missing)[start : start + CHUNK]
            self._add(chunk, super().passages([missing[key] for key in chunk]))
            print(f"  {start + len(chunk):,} of {len(missing):,} vectors made", file=sys.stderr, flush=True)
        return np.stack([self._known[key] for key in keys])

    def _add(self, keys: list[bytes], vectors: Vectors) -> None:
        self._known.update(zip(keys, vectors))
        if self._folder:
            name = blake2b(b"".join(keys), digest_size=8).hexdigest()
            with atomic_file(self._folder / f"{name}.npz", "wb", "cached vectors") as file:
                np.savez(file, keys=np.array([list(key) for key in keys], dtype=np.uint8), vectors=vectors)


# --- what is compared ---------------------------------------------------------------------------------------------


def systems(pool: Pool, kinds: Sequence[str], encoders: Sequence[CachedEncoder]) -> dict[str, Retriever]:
    """The retrievers of a pool by name, with the settings that a user gets."""
    bm25 = BM25Index.from_passages(pool.passages)
    dense = {each.settings.encoder: dense_index(pool.passages, each) for each in encoders}
    found: dict[str, Retriever] = {"bm25": bm25} if "bm25" in kinds else {}
    if "dense" in kinds:
        found |= {f"dense, {short(name)}": each for name, each in dense.items()}
    if "hybrid" in kinds:
        for name, each in dense.items():
            found[f"hybrid, {short(name)}: ranks"] = HybridRetriever([bm25, each])
            weights = (BM25_WEIGHT, 1 - BM25_WEIGHT)
            found[f"hybrid, {short(name)}: scores"] = HybridRetriever([bm25, each], fusion="scores", weights=weights)
    return found


def dense_index(passages: Sequence[Passage], encoder: Encoder) -> Retriever:
    """All vectors compared with a query: exact."""
    from stepladder.retrieval.index.dense import DenseIndex  # needs the extra `dense`, which BM25 alone does not

    return DenseIndex.from_passages(passages, encoder=encoder)


def short(encoder: str) -> str:
    """The name of an encoder that is a folder or a hub name."""
    return Path(encoder).name


def measure(pools: Sequence[Pool], kinds: Sequence[str], encoders: Sequence[CachedEncoder]) -> list[dict[str, object]]:
    """Print a table a pool; all figures as rows for a file."""
    rows: list[dict[str, object]] = []
    for pool in pools:
        table = Table("", *(f"recall@{k}" for k in KS), title=f"{pool.name}: {len(pool.questions)} questions")
        first: Recalls | None = None
        for name, retriever in systems(pool, kinds, encoders).items():
            recalls = pool.recalls(pool.ask(retriever))
            first = first or recalls
            table.add_row(name, *(shown(recalls[k], first[k]) for k in KS))
            rows += [
                {"pool": pool.name, "passages": len(pool.passages), "questions": len(pool.questions), "system": name}
                | {"k": k, "recall": asdict(mean_interval(recalls[k]))}
                for k in KS
            ]
        if pool.name == PUBLISHED_POOL[2]:
            for name, figures in PUBLISHED.items():
                table.add_row(f"published: {name}", *(f"{figure:.1f}" for figure in figures), "")
        CONSOLE.print(table)
    return rows


def shown(values: Sequence[float], first: Sequence[float]) -> str:
    """A mean with its interval, and a mark where it differs from the first row's with p < 0.05."""
    interval, marks = mean_interval(values), ""
    if values is not first:
        compared = paired_difference(values, first)
        marks = " *" if compared.p_value < 0.05 else ""
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]{marks}"


# --- settings, by the train questions -----------------------------------------------------------------------------


def tune(pools: Sequence[Pool], kinds: Sequence[str], encoders: Sequence[CachedEncoder]) -> list[dict[str, object]]:
    """Print recalls on the train questions for a grid of settings; all figures as rows for a file."""
    found: dict[str, dict[str, Recalls]] = {}
    for pool in pools:
        for setting, recalls in itertools.chain(
            bm25_grid(pool) if "bm25" in kinds else (),
            *(dense_grid(pool, each) for each in encoders if "dense" in kinds),
            *(hybrid_grid(pool, each) for each in encoders if "hybrid" in kinds),
        ):
            found.setdefault(setting, {})[pool.name] = recalls
    table = Table("train questions, recall@2 @5 @10", *(pool.name for pool in pools), "mean of the sets")
    rows: list[dict[str, object]] = []
    for setting, of in found.items():
        means = {name: [100 * float(np.mean(recalls[k])) for k in KS] for name, recalls in of.items()}
        means["mean"] = np.mean(list(means.values()), axis=0).tolist()
        table.add_row(setting, *(" ".join(f"{each:.1f}" for each in figures) for figures in means.values()))
        rows.append({"setting": setting, "recall": means})
    CONSOLE.print(table)
    return rows


def bm25_grid(pool: Pool) -> Iterable[tuple[str, Recalls]]:
    for k1, b, title in itertools.product((0.9, 1.2, 1.5), (0.4, 0.75), (1, 2, 3, 5)):
        index = BM25Index.from_passages(pool.passages, k1=k1, b=b, title_weight=title)
        yield f"bm25 k1 {k1}, b {b}, title {title}", pool.recalls(pool.ask(index))


def dense_grid(pool: Pool, encoder: Encoder) -> Iterable[tuple[str, Recalls]]:
    # A passage without a title is encoded as its text alone.
    with_stop = [Passage(each.id, "", f"{each.title}. {each.text}") for each in pool.passages]
    for how, passages in (("title, newline, text", pool.passages), ("title. text", with_stop)):
        yield f"dense, {short(encoder.settings.encoder)}: {how}", pool.recalls(pool.ask(dense_index(passages, encoder)))


def hybrid_grid(pool: Pool, encoder: Encoder) -> Iterable[tuple[str, Recalls]]:
    bm25 = pool.ask(BM25Index.from_passages(pool.passages), 100)
    dense = pool.ask(dense_index(pool.passages, encoder), 100)
    hybrid = f"hybrid, {short(encoder.settings.encoder)}"
    for depth, constant, (ours, theirs) in itertools.product((20, 100), (10, 60), ((1, 1), (2, 1), (3, 1), (1, 2))):
        name = f"{hybrid}: ranks, depth {depth}, constant {constant}, weights {ours}:{theirs}"
        found = [
            fuse_by_ranks([one[:depth], other[:depth]], max(KS), (ours, theirs), constant)
            for one, other in zip(bm25, dense)
        ]
        yield name, pool.recalls(found)
    for weight in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        name = f"{hybrid}: scores, weight of bm25 {weight}"
        weights = (weight, 1 - weight)
        yield name, pool.recalls([fuse_by_scores(both, max(KS), weights) for both in zip(bm25, dense)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the four sets")
    parser.add_argument("--kinds", default="bm25,dense,hybrid", help="of bm25, dense, hybrid; all by default")
    parser.add_argument("--encoder", nargs="+", default=["minilm"], help="minilm, model folders or hub names")
    parser.add_argument("--cache", type=Path, help="folder to keep vectors in")
    parser.add_argument("--tune", action="store_true", help="compare settings on the train questions instead")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file too")
    options = parser.parse_args()
    if options.data is None:
        print(NO_DATA)
        return 0
    kinds = options.kinds.split(",")
    if unknown := set(kinds) - {"bm25", "dense", "hybrid"}:
        parser.error(f"--kinds: unknown {', '.join(sorted(unknown))}; choose of bm25, dense, hybrid")
    try:
        encoders = [CachedEncoder(name, options.cache) for name in options.encoder if set(kinds) - {"bm25"}]
        pools = read_pools(options.data, "train" if options.tune else "dev")
        rows = (tune if options.tune else measure)(pools, kinds, encoders)
        print(CAVEATS)
        if options.out:
            with atomic_file(options.out) as file:
                json.dump({"caveats": CAVEATS, "published": PUBLISHED, "figures": rows}, file, indent=1)
    except StepladderError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
