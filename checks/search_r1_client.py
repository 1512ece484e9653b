"""Does Search-R1's own client work with `stepladder serve`, unchanged? Asks for a GRPO batch in one request.

    git clone https://github.com/PeterGriffinJin/Search-R1
    python checks/search_r1_client.py --search-r1 Search-R1              # a checkout, or its git directory
    python checks/search_r1_client.py                                    # without it: the same request by our own code
    python checks/search_r1_client.py --search-r1 Search-R1 --index DIR

In: Search-R1's `generation.py`, of which only the class that asks and reads is used: the trainer's libraries are not
needed. 512 questions x 5 rollouts write one query each; one of them has 40,000 characters, as policies sometimes write.
Out: the seconds of `execute_predictions`, the step of its environment, and whether every observation has the passages
that a search in process finds; exit status 1 if not.
"""

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from stepladder.core.trace import Passage
from stepladder.data import load_dataset
from stepladder.retrieval.factory import load_retriever
from stepladder.retrieval.index.build import build_index
from tests.support.serve_process import serve_process

CLIENT, CLASS = "search_r1/llm_agent/generation.py", "LLMGenerationManager"
METHODS = ("execute_predictions", "postprocess_predictions", "batch_search", "_batch_search", "_passages2string")
QUESTIONS, ROLLOUTS, LONG = 512, 5, 40_000

#: The observations of a batch of policy outputs, from a URL and the number of passages.
Step = Callable[[list[str], str, int], list[str]]


def published_client(place: Path) -> Step:
    """The methods of Search-R1's class, as they are."""
    if (place / CLIENT).is_file():
        source = (place / CLIENT).read_text(encoding="utf-8")
    else:
        command = ["git", "-C", str(place), "show", f"HEAD:{CLIENT}"]
        source = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    tree = ast.parse(source)
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == CLASS)
    found.body = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name in METHODS]
    assert len(found.body) == len(METHODS), f"{CLIENT} has other methods than expected"
    imports = ast.parse("import re, requests\nfrom typing import *").body
    names: dict[str, Any] = {}
    exec(compile(ast.Module([*imports, found], []), CLIENT, "exec"), names)  # noqa: S102 - the user names the checkout

    def step(outputs: list[str], url: str, topk: int) -> list[str]:
        client = names[CLASS]()
        client.config = SimpleNamespace(search_url=url, topk=topk)
        observations: list[str] = client.execute_predictions(outputs, "<pad>", [True] * len(outputs))[0]
        return observations

    return step


def own_client(outputs: list[str], url: str, topk: int) -> list[str]:
    """The same request and the same reading of its reply."""
    queries = [output.split("<search>")[1].split("</search>")[0].strip() for output in outputs]
    body = json.dumps({"queries": queries, "topk": topk, "return_scores": True}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        results = json.load(reply)["result"]
    return [observation([hit["document"]["contents"] for hit in hits]) for hits in results]


def observation(contents: Sequence[str]) -> str:
    """What Search-R1 shows of passages."""
    parts = (each.partition("\n") for each in contents)
    shown = (f"Doc {number}(Title: {title}) {text}\n" for number, (title, _, text) in enumerate(parts, start=1))
    return f"\n\n<information>{''.join(shown).strip()}</information>\n\n"


def policy_outputs(passages: Sequence[Passage]) -> list[str]:
    """What 512 questions x 5 rollouts write: rollouts of a question often ask the same."""
    queries = [
        f"{passages[question % len(passages)].title} {('where', 'who', 'who', 'when', 'where')[rollout]} {question}"
        for question in range(QUESTIONS)
        for rollout in range(ROLLOUTS)
    ]
    queries[-1] = ("and then " * LONG)[:LONG]
    return [f"<think>I need to know more.</think>\n<search> {query} </search>" for query in queries]


def main() -> int:
    """Ask, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--search-r1", type=Path, help="A checkout of Search-R1, or its git directory.")
    parser.add_argument("--index", help="An index folder; by default BM25 over Atlas.")
    parser.add_argument("--topk", type=int, default=3)
    arguments = parser.parse_args()
    step = own_client if arguments.search_r1 is None else published_client(arguments.search_r1)
    passages = load_dataset("atlas").passages or ()
    outputs = policy_outputs(passages)
    with tempfile.TemporaryDirectory() as folder:
        index = arguments.index or f"{folder}/index"
        if arguments.index is None:
            build_index(passages, index)
        with closing(load_retriever(index)) as retriever:
            queries = [output.split("<search>")[1].split("</search>")[0].strip()[:8192] for output in outputs]
            found = [retriever.search(queries[at : at + 64], arguments.topk) for at in range(0, len(queries), 64)]
        with serve_process(index) as (base, _):
            url = f"{base}/retrieve"
            started = time.perf_counter()
            observations = step(outputs, url, arguments.topk)
            seconds = time.perf_counter() - started
    expected = [observation([f'"{each.title}"\n{each.text}' for each in hits]) for batch in found for hits in batch]
    same = sum(one == other for one, other in zip(observations, expected, strict=True))
    whose = "our own client" if arguments.search_r1 is None else "Search-R1's client, unchanged"
    print(f"{whose}: {len(outputs):,} queries in one request, topk {arguments.topk}, {seconds:.1f} s")
    print(f"observations with the passages of a search in process: {same:,} of {len(expected):,}")
    return 0 if same == len(expected) else 1


if __name__ == "__main__":
    sys.exit(main())
