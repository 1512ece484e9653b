"""What a process remembers is bounded in bytes, whatever servers, clients, policies and files send it."""

import ast
import gzip
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepladder.core import memory
from stepladder.core.errors import StepladderError
from stepladder.core.io import jsonl
from stepladder.core.memory import release_caches
from stepladder.core.requests import Sampling
from stepladder.core.trace import Usage
from stepladder.engines.scripted import ScriptedEngine
from stepladder.engines.spend.ledger import Ledger
from stepladder.engines.spend.response_cache import CachedEngine, ResponseCache
from stepladder.explore import tree_store
from stepladder.explore.tree_store import read_trees
from stepladder.judges.llm.llm_judge import LLMJudge
from stepladder.oracle import lexicon
from stepladder.retrieval.index import bm25
from stepladder.serve.search.search_batcher import _Cache, _Search
from tests.support import ROOT
from tests.support.paid_calls import question

#: Functions with arguments, and calls in files, that cache without a limit; and why that is harmless.
UNLIMITED = {
    "_checked_agent": "agent files that the user names; at most 1 MB each",
    "_patterns": "regular expressions of the tags of agents",
    "jsonl.py": "validators of the types in the source",
    "dataset.py": "the questions and passages of a data set, which are read once",
    "reader.py": "the folders of a corpus, while it is listed",
    "_static_file": "styles and scripts of the studio, which are files of the package",
}


def test_every_cache_without_a_limit_has_a_reason() -> None:
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.args.args and node.args.args[0].arg != "self":
                decorators = {ast.unparse(each) for each in node.decorator_list}
                if decorators & {"cache", "functools.cache", "lru_cache(maxsize=None)", "lru_cache(None)"}:
                    found.add(node.name)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("cache", "functools.cache"):
                found.add(path.name)
    assert found == set(UNLIMITED)


def test_replies_of_a_judge_stay_on_disk(tmp_path: Path) -> None:
    path, count = tmp_path / "replies.jsonl", 60
    sampling = Sampling(max_tokens=100_000)
    written = CachedEngine(ScriptedEngine(lambda _: "because " * 10_000), path, "m")
    tracemalloc.start()
    try:
        for number in range(count):
            written.generate([replace(question(number), sampling=sampling)])
        again = ResponseCache(path, "m")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > count * 80_000
    assert held < 1_000_000
    assert again.count == written.responses.count == count
    request = replace(question(5), sampling=sampling)
    found = again.get(again.key(request), request)
    assert found is not None
    assert found.text == "because " * 10_000


def test_a_ledger_holds_no_call_that_has_ended(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "spend.jsonl")) as ledger:
        for _ in range(50):
            ledger.settle(ledger.reserve("m", Usage(9, 9)), Usage(2, 1))
        ledger.reserve("m", Usage(5, 5))
    with closing(Ledger(tmp_path / "spend.jsonl")) as ledger:
        assert list(ledger._unsettled) == [50]
        assert (ledger.paid, ledger.open, ledger.totals) == (50, 1, {"m": Usage(105, 55)})
        assert ledger.reserve("m", Usage(1, 1)) == 51


@pytest.mark.parametrize(
    ("use", "known"),
    [
        (bm25.tokenize, bm25._stem),
        (lexicon.stem, lexicon._known_stem),
    ],
)
def test_words_that_nobody_speaks_are_not_remembered(use: Callable[[str], object], known: Any) -> None:
    before = known.cache_info()
    for number in range(20):
        assert use("y" * (20_000 + number))
    assert known.cache_info() == before
    use("bridges")
    use("bridges")
    assert known.cache_info().hits > before.hits


def test_a_judge_counts_many_problems_without_remembering_all_words() -> None:
    judge = LLMJudge()
    for number in range(3_000):
        judge._no_verdict(f"problem {number}")
    judge._no_verdict("problem 1")
    assert len(judge.problems) == 1_001
    assert (judge.problems.total(), judge.problems["others"], judge.problems["problem 1"]) == (3_001, 2_000, 2)


def test_the_cache_of_a_search_server_is_given_back_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = _Cache(100, 10**6)
    for number in range(5):
        cache.put(_Search(f"query {number}", 3), ((b"x" * 1_000, b"1.0"),))
    assert cache.get("query 4", 3) is not None
    assert 5_000 < cache.bytes < 20_000
    release_caches()
    assert (cache.get("query 4", 3), cache.bytes) == (None, 0)
    monkeypatch.setattr(memory, "room_of_limits", lambda: 0)
    cache.put(_Search("query", 3), ((b"x", b"1.0"),))
    assert (cache.get("query", 3), cache.bytes) == (None, 0)


def test_a_small_file_that_unpacks_to_a_huge_line_or_tree_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trees.jsonl.gz"
    path.write_bytes(gzip.compress(bytes(200_000_000), 1))
    monkeypatch.setattr(jsonl, "MAX_LINE", 2**20)
    monkeypatch.setattr(tree_store, "_MAX_TREE", 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(StepladderError, match=r"trees.jsonl.gz: a tree of more than 1.0 MB at byte 0"):
            list(read_trees(path))
        with pytest.raises(StepladderError, match=r"trees.jsonl.gz:1: a line of more than 1.0 MB"):
            list(jsonl.text_lines(path, StepladderError))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000
