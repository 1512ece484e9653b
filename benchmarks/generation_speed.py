"""How fast each engine writes many transcripts at once: one table, from one run on one machine.

    python benchmarks/generation_speed.py                                  # on a GPU: five sizes, 64 and 1,024
    python benchmarks/generation_speed.py --model nano --transcripts 32    # on a CPU
    python benchmarks/generation_speed.py --keep                           # publishes what was measured

`generation_work.py` has the transcripts and the ways to write them:

- generate: plain `generate` of transformers;
- transformers: our driver and our engine on transformers, which is paged on a GPU;
- vllm: our driver and our engine on vLLM, with seeds, log-probs and stop strings;
- vllm-alone: vLLM without Stepladder, and without seeds, log-probs, stop strings and text. It decodes the random tokens
  of random weights much more slowly than real text, so it is asked for none.

Every number is kept in `--out` as soon as it is known. The same command measures what is missing there; `--minutes`
stops in time to be called again. Each model runs in a process of its own on each backend.
All five models take about 15 minutes on one H200.

`--keep` writes benchmarks/results/generation-speed.json, for docs/results-speed.md, and the table that
`engine: auto` reads.
`random-4m` to `random-3b` have the shapes of nano, SmolLM2-135M and Qwen2.5, and random weights; give vLLM a real
tokenizer for them with `--tokenizer`, since it decodes the tokens it writes. A folder with a model does as well.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from build_results import RESULTS, column
from generation_work import (
    RANDOM,
    Transcript,
    Way,
    by_engine,
    by_generate,
    by_vllm,
    plain_model,
    rate,
    transcripts,
    vllm_engine,
    vocabulary_of,
)
from stepladder.core.io.files import atomic_file
from stepladder.engines import auto
from stepladder.engines.paged.fused_norms import fuse_norms
from stepladder.engines.transformers.engine import TransformersEngine

#: The ways of each backend, in the order in which they are measured: the slowest is last. A process has one backend:
#: vLLM does not give its memory back.
BACKENDS = {"vllm": ("vllm", "vllm-alone"), "transformers": ("transformers",), "generate": ("generate",)}
WAYS = {
    "generate": "plain `generate`",
    "transformers": "Stepladder, own engine",
    "vllm": "Stepladder on vLLM",
    "vllm-alone": "vLLM alone",
}
#: Transcripts before the first measurement of a way, which compile kernels.
WARM_UP = 64
#: Where `engine: auto` reads what was measured.
TABLE = Path(auto.__file__).with_name("generation_speed.json")

#: Everything that was measured; a cell is named by model, way and transcripts.
State = dict[str, Any]


def name_of(model: str, way: str, count: int) -> str:
    return f"{model} {way} {count}"


def read(file: Path) -> State:
    return json.loads(file.read_text()) if file.is_file() else {"cells": {}, "parameters": {}, "seconds": 0.0}


def keep(file: Path, state: State) -> None:
    with atomic_file(file) as out:
        out.write(json.dumps(state, indent=1))


# --- measuring, in a process of its own


def measure(chosen: argparse.Namespace, model: str, backend: str) -> None:
    """Measure what is missing of one model on one backend."""
    state = read(chosen.out)
    missing = [
        (way, count)
        for way in BACKENDS[backend]
        for count in sorted(chosen.transcripts)
        if way in chosen.ways and name_of(model, way, count) not in state["cells"]
    ]
    if not missing:
        return
    makers, vocabulary, state["parameters"][model] = open_model(chosen, model, backend)
    ways: dict[str, Way] = {}
    for way, count in missing:
        if way not in ways:
            ways[way] = makers[way]()
            rate(ways[way], warm_up(vocabulary, way, count))
        found: int | None = None
        with suppress(torch.OutOfMemoryError):
            found = round(rate(ways[way], transcripts(vocabulary, count), 1 if way == "generate" else chosen.rounds))
        state["cells"][name_of(model, way, count)] = found
        keep(chosen.out, state)
        said = "out of memory" if found is None else f"{found:,} tokens/s"
        print(f"{model:16}{WAYS[way]:26}{count:>8,}{said:>21}", flush=True)


def warm_up(vocabulary: int, way: str, count: int) -> list[Transcript]:
    """What a way writes before it is measured. Plain `generate` has no kernels to compile: a few tokens are enough."""
    if way != "generate":
        return transcripts(vocabulary, min(WARM_UP, count))
    return [replace(each, limits=[2] * len(each.limits)) for each in transcripts(vocabulary, 2)]


def open_model(chosen: argparse.Namespace, model: str, backend: str) -> tuple[dict[str, Callable[[], Way]], int, int]:
    """What makes the ways to write with a model, in this order; its vocabulary and number of parameters."""
    largest = max(chosen.transcripts)
    if backend == "vllm":
        folder = chosen.out.absolute().with_name(f"{Path(model).name}-config")
        served = vllm_engine(model, largest, folder, chosen.tokenizer)
        weights = served.llm.llm_engine.model_executor.driver_worker.model_runner.model.parameters()
        size = sum(each.numel() for each in weights)
        return (
            {
                "vllm": lambda: by_engine(served),
                "vllm-alone": lambda: by_vllm(served.llm, detokenize=False),
            },
            vocabulary_of(served),
            size,
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plain, words = plain_model(model, device)
    size = sum(weights.numel() for weights in plain.parameters())

    def paged() -> Way:
        if device == "cuda":
            fuse_norms(plain)  # as the engine does with a model that it loads itself
        return by_engine(TransformersEngine(plain, words, max_batch=largest))

    vocabulary = int(plain.config.get_text_config().vocab_size)
    return {"generate": lambda: by_generate(plain), "transformers": paged}, vocabulary, size


# --- the run


def run(chosen: argparse.Namespace) -> None:
    """Measure what is missing, each backend of each model in a process, as long as there is time."""
    began = time.monotonic()
    backends = [name for name, ways in BACKENDS.items() if chosen.ways & set(ways)]
    if "vllm" in backends and (find_spec("vllm") is None or not torch.cuda.is_available()):
        backends.remove("vllm")
        print("vLLM is not installed, or there is no GPU: it is left out")
    for backend in backends:
        for model in chosen.model:
            cells = read(chosen.out)["cells"]
            ways = chosen.ways & set(BACKENDS[backend])
            if all(name_of(model, way, count) in cells for way in ways for count in chosen.transcripts):
                continue
            if (time.monotonic() - began) / 60 > chosen.minutes:
                print(f"{chosen.minutes:g} minutes are over: call it again for the rest")
                return
            started = time.monotonic()
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--part", model, backend], check=True)
            state = read(chosen.out)
            state["seconds"] += time.monotonic() - started
            keep(chosen.out, state)
    print()
    show(read(chosen.out))


def rows_of(state: State) -> list[dict[str, Any]]:
    """A row for each model and number of transcripts, with a cell for each way; None: not measured."""
    places = list(dict.fromkeys((name.split()[0], int(name.split()[2])) for name in state["cells"]))
    places.sort(key=lambda place: (state["parameters"][place[0]], place[1]))
    return [
        {
            "model": model,
            "parameters": state["parameters"][model],
            "transcripts": count,
            **{way: state["cells"].get(name_of(model, way, count)) for way in WAYS},
        }
        for model, count in places
    ]


def show(state: State) -> None:
    print(f"{'model':16}{'transcripts':>12}" + "".join(f"{label:>24}" for label in WAYS.values()) + f"{'share':>8}")
    for row in rows_of(state):
        cells = "".join(f"{'-' if row[way] is None else format(row[way], ','):>24}" for way in WAYS)
        share = f"{row['vllm'] / row['vllm-alone']:.0%}" if row["vllm"] and row["vllm-alone"] else "-"
        print(f"{row['model']:16}{row['transcripts']:>12,}{cells}{share:>8}")


# --- publishing


def publish(state: State) -> None:
    """Write the table of docs/results-speed.md, and the one that `engine: auto` reads."""
    if not torch.cuda.is_available():
        raise SystemExit("publish on the machine with the GPU: its name and versions are part of the table")
    hardware, date = f"one {torch.cuda.get_device_name()}", datetime.now(UTC).date().isoformat()
    rows = rows_of(state)
    columns = [
        column("model", "model", "text"),
        column("transcripts", "transcripts", "number", ",.0f"),
        *(column(label, way, "number", ",.0f") for way, label in WAYS.items()),
        column("of vLLM alone", "share", "number", ".0%"),
    ]
    both = [row for row in rows if row["vllm"] and row["vllm-alone"]]
    shares = {id(row): row["vllm"] / row["vllm-alone"] for row in both}
    cells = [
        {name: row[name] for name in ("model", "transcripts", *WAYS)} | {"share": shares.get(id(row))} for row in rows
    ]
    table = {
        "id": "generation-speed",
        "title": "Tokens written per second, by engine",
        "source": None,
        "provenance": {
            "command": "python benchmarks/generation_speed.py",
            "recipe": ["none"],
            "seeds": [0],
            "data": "random tokens: transcripts of four steps, about 980 tokens each, 160 of them written",
            "split": "none",
            "questions": max(row["transcripts"] for row in rows),
            "hardware": hardware,
            "date": date,
            "commit": None,
            "recipe_sha256": None,
            "versions": {name: found for name in ("torch", "transformers", "vllm") if (found := _version(name))},
            "log": {"seconds": round(state["seconds"], 1), "tokens": None, "about": "all models, with loading"},
        },
        "columns": columns,
        "rows": [{"cells": each} for each in cells],
    }
    with atomic_file(RESULTS / "generation-speed.json") as out:
        out.write(json.dumps(table, indent=2) + "\n")
    names = ("parameters", "transcripts", "transformers", "vllm")
    about = "tokens written per second; written by benchmarks/generation_speed.py --keep"
    short = {"about": about, "hardware": hardware, "date": date}
    with atomic_file(TABLE) as out:
        out.write(json.dumps(short | {"rows": [{name: row[name] for name in names} for row in rows]}, indent=2) + "\n")
    print("written; now: python benchmarks/build_results.py")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="may be given several times")
    parser.add_argument("--transcripts", type=int, action="append", help="may be given several times")
    parser.add_argument("--ways", type=lambda text: set(text.split(",")), default=set(WAYS), help=", ".join(WAYS))
    parser.add_argument("--rounds", type=int, default=3, help="of each cell, but of plain generate; the median counts")
    parser.add_argument("--tokenizer", help="a folder or hub name, for random models in vLLM")
    parser.add_argument("--out", type=Path, default=Path("generation-speed.cells.json"))
    parser.add_argument("--minutes", type=float, default=9.0, help="begin nothing new after that")
    parser.add_argument("--keep", action="store_true", help="publish what was measured")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.model = chosen.model or (list(RANDOM) if gpu else ["nano"])
    chosen.transcripts = chosen.transcripts or ([64, 1024] if gpu else [32])
    if unknown := chosen.ways - set(WAYS):
        parser.error(f"unknown ways {', '.join(sorted(unknown))}; known: {', '.join(WAYS)}")
    if chosen.part:
        measure(chosen, *chosen.part)
    elif chosen.keep:
        publish(read(chosen.out))
    else:
        run(chosen)


if __name__ == "__main__":
    main()
