"""What a model scores without any training: every agent in every format, on the same questions.

    python benchmarks/zero_shot.py --model FOLDER --data data/hotpotqa+data/2wikimultihopqa+data/musique
    python benchmarks/zero_shot.py --model smollm2-135m --data atlas-small --limit 5 --agents rag --formats lenient
    python benchmarks/zero_shot.py --model NAME --base-url http://localhost:8000/v1 --data questions.jsonl --index DIR

In: a model (folder, name, or served at a URL), questions with their passages or an index, agents and formats. Out: one
table row per agent and format, also as `table.md` and `table.json` in `--out`, beside a saved evaluation per row. Rows
that `--out` already has for the same settings are not computed again. Greedy; model and index are opened once.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepladder.agents import AGENTS, Format, make_agent
from stepladder.core.answer_metrics import Miss, QuestionScore
from stepladder.core.errors import StepladderError
from stepladder.core.version import __version__
from stepladder.driver import Driver
from stepladder.evaluation.evaluator import evaluate, load_scores
from stepladder.pipeline.resources import SERVER, PromptingConfig, RunContext, SharedConfig

ALL = tuple(name for name in AGENTS if not name.endswith("-brief"))
COLUMNS = {
    "agent": "agent",
    "format": "format",
    "em": "EM",
    "f1": "F1",
    "format_errors": "format errors / episode",
    "repaired": "steps read leniently / episode",
    "forced": "forced answers",
    "no_answer": "no answer",
    "searches": "searches",
    "read": "tokens read",
    "written": "tokens written",
    "seconds": "seconds",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the missing rows and print the table."""
    options = parsed(arguments)
    context = RunContext(SharedConfig.read(shared_settings(options)))
    questions = context.split(options.split)[: options.limit]
    rows = []
    with closing(context):
        retriever = context.retriever
        with context.engine(SERVER if options.base_url else options.model) as engine:
            for agent, play_format in cells(options):
                folder = options.out / f"{agent}-{play_format}"
                settings = {
                    "agent": agent,
                    "format": str(play_format),
                    "remote": bool(options.base_url),
                    "model": options.model,
                    "engine": "openai" if options.base_url else options.engine,
                    "data": options.data,
                    "split": options.split,
                    "limit": options.limit,
                    "index": options.index,
                    "episode": asdict(context.episode()),
                    "version": __version__,
                }
                if saved_settings(folder) != settings:
                    play = PromptingConfig(format=play_format.value).play(agent, remote=bool(options.base_url))
                    began = time.perf_counter()
                    driver = Driver(engine, retriever)
                    try:
                        result = evaluate(driver, make_agent(agent, play=play), questions, context.episode())
                    except StepladderError as error:  # an engine without grammars: the other rows are still of use
                        print(f"{agent} {play_format}: {error}", file=sys.stderr)
                        continue
                    if result.stopped_by is not None:
                        raise result.stopped_by
                    seconds = round(time.perf_counter() - began, 1)
                    result.save(folder, {"benchmark": settings, "seconds": seconds}, overwrite=True)
                rows.append({"agent": agent, "format": str(play_format), **numbers(folder)})
                print(line(rows[-1]), file=sys.stderr, flush=True)
    table = "\n".join([line(COLUMNS), "|".join(["", *["---"] * len(COLUMNS), ""]), *map(line, rows)])
    (options.out / "table.md").write_text(table + "\n", encoding="utf-8")
    (options.out / "table.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", "--questions", default="atlas-small", help="as in `stepladder eval --data`")
    parser.add_argument("--split", default="dev", help="of a question file: all")
    parser.add_argument("--index", default=None)
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--agents", default="all", help=f"all, or some of {','.join(ALL)}")
    parser.add_argument("--formats", default=",".join(Format))
    parser.add_argument("--engine", default="transformers")
    parser.add_argument("--base-url", default=None)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--topk", type=int, default=3)
    parser.add_argument("--max-steps", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("runs/zero-shot"))
    return parser.parse_args(arguments)


def shared_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a run, with an agent that searches: its index serves all of them."""
    server = {"model": options.model, "base_url": options.base_url, "concurrency": options.concurrency}
    return {
        "agent": "prorag",
        "engine": options.engine,
        "server": server if options.base_url else None,
        "data": {"name": options.data, "index": options.index},
        "search": {"k": options.topk},
        "episode": {"max_steps": options.max_steps, "max_tokens": options.max_tokens},
        "device": options.device,
        "dtype": options.dtype,
        "batch_size": options.batch_size,
    }


def cells(options: argparse.Namespace) -> Iterator[tuple[str, Format]]:
    """The rows of the table, in order."""
    agents = ALL if options.agents == "all" else options.agents.split(",")
    for agent in agents:
        AGENTS.checked(agent)
        for name in options.formats.split(","):
            yield agent, Format(name)


def saved_settings(folder: Path) -> dict[str, Any] | None:
    """The settings of a saved row; None if there is none."""
    try:
        found: dict[str, Any] | None = json.loads((folder / "summary.json").read_text(encoding="utf-8")).get(
            "benchmark"
        )
    except (OSError, ValueError):
        return None
    return found


def numbers(folder: Path) -> dict[str, float]:
    """The numbers of a row, from its saved evaluation."""
    rows = load_scores(folder)

    def mean(values: Sequence[float]) -> float:
        return round(sum(values) / len(rows), 4)

    def column(name: str) -> float:
        return mean([float(getattr(row, name)) for row in rows])

    def unanswered(row: QuestionScore) -> bool:
        return row.miss in (Miss.NO_ANSWER, Miss.FAILED)

    return {
        "em": column("em"),
        "f1": column("f1"),
        "format_errors": column("malformed_steps"),
        "repaired": column("repaired_steps"),
        "forced": column("forced"),
        "no_answer": mean([float(unanswered(row)) for row in rows]),
        "searches": column("searches"),
        "read": column("tokens_read"),
        "written": column("tokens_written"),
        "seconds": json.loads((folder / "summary.json").read_text(encoding="utf-8"))["seconds"],
    }


def line(row: dict[str, Any]) -> str:
    """One line of the table."""
    shares, counts = ("forced", "no_answer"), ("read", "written", "seconds")

    def cell(name: str) -> str:
        value = row[name]
        if isinstance(value, str):
            return value
        if name in shares:
            return f"{value:.1%}"
        return f"{value:.0f}" if name in counts else f"{value:.3f}" if name in ("em", "f1") else f"{value:.2f}"

    return f"| {' | '.join(map(cell, COLUMNS))} |"


if __name__ == "__main__":
    main()
