"""What a model scores without any training: every agent in every format, on the same questions.

    python benchmarks/zero_shot.py --model FOLDER --data data/hotpotqa+data/2wikimultihopqa+data/musique
    python benchmarks/zero_shot.py --model smollm2-135m --data atlas-small --limit 5 --agents rag --formats lenient
    python benchmarks/zero_shot.py --model NAME --base-url http://localhost:8000/v1 --data questions.jsonl --index DIR

In: a model (folder, name, or served at a URL), questions with their passages or an index, agents and formats. Out: one
table row per agent and format, also as `table.md` and, with 95% confidence intervals, `table.json` in `--out`, beside a
saved evaluation per row. Greedy; model and index are opened once.

A row that `--out` already has is not computed again if model, data, index, limits, the agent's texts and how it is
played are the same. Model, data and texts count by their content. A changed rule in the code is not noticed: delete the
row's folder.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from stepladder.agents import AGENTS, Agent, Format, make_agent
from stepladder.core.answer_metrics import Miss
from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.version import __version__
from stepladder.driver import Driver
from stepladder.evaluation.evaluator import evaluate, load_scores
from stepladder.evaluation.statistics import mean_interval
from stepladder.pipeline.fingerprint import Ingredients, all_ingredients
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import SERVER, PromptingConfig, RunContext, SharedConfig

ALL = tuple(name for name in AGENTS if not name.endswith("-brief"))
#: The columns: their titles, and what a row shows.
COLUMNS = {
    "agent": ("agent", "{}"),
    "format": ("format", "{}"),
    "em": ("EM", "{:.3f}"),
    "f1": ("F1", "{:.3f}"),
    "no_answer": ("no answer", "{:.1%}"),
    "forced": ("forced", "{:.1%}"),
    "format_errors": ("errors", "{:.2f}"),
    "repaired": ("repaired", "{:.2f}"),
    "searches": ("searches", "{:.2f}"),
    "read": ("read", "{:.0f}"),
    "written": ("wrote", "{:.0f}"),
    "seconds": ("time", "{:.0f}"),
}
LEGEND = """\
no answer: episodes that ended without one. forced: episodes in which it had to be asked for. errors: steps without an
action, per episode. repaired: steps that only the lenient rule could read, per episode. searches: per episode. read,
wrote: tokens per episode. time: seconds, all episodes together."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the missing rows and print the table."""
    options = parsed(arguments)
    settings = shared_settings(options)
    shared = SharedConfig.read(settings)
    basis = common_key(settings, options)
    context = RunContext(shared)
    questions = context.split(options.split)[: options.limit]
    rows = []
    with closing(context):
        retriever = context.retriever
        with context.engine(SERVER if options.base_url else options.model) as engine:
            for name, play_format in cells(options):
                folder = options.out / f"{name}-{play_format}"
                try:
                    agent = agent_of(name, play_format, options)
                    key = basis | row_key(agent)
                    if saved_key(folder) != key:
                        began = time.perf_counter()
                        result = evaluate(Driver(engine, retriever), agent, questions, context.episode())
                        if result.stopped_by is not None:
                            raise result.stopped_by
                        seconds = round(time.perf_counter() - began, 1)
                        result.save(folder, {"benchmark": key, "seconds": seconds}, overwrite=True)
                except BackendDown:
                    raise
                except StepladderError as error:  # such as an engine without grammars: other rows are still of use
                    print(f"{name} {play_format}: {error}", file=sys.stderr)
                    continue
                rows.append({"agent": name, "format": str(play_format), **numbers(folder)})
                print(" ".join(cell.strip() for cell in shown(rows[-1])), file=sys.stderr, flush=True)
    if not rows:
        raise SystemExit(1)
    table = table_of(rows)
    (options.out / "table.md").write_text(f"{table}\n\n{LEGEND}\n", encoding="utf-8")
    (options.out / "table.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{table}\n\n{LEGEND}")


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
    parser.add_argument("--prime", action=argparse.BooleanOptionalAction, help="as in `stepladder eval`")
    parser.add_argument("--prompt", type=Path, help="a file that replaces the prompt of the agent, with one agent")
    parser.add_argument("--hint", type=Path, help="a file that replaces the hint after a malformed step")
    parser.add_argument("--engine", default="transformers")
    parser.add_argument("--base-url", default=None)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--timeout", type=float, default=60.0, help="of a call to the server, in seconds")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--topk", type=int, default=3)
    parser.add_argument("--max-steps", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("runs/zero-shot"))
    options = parser.parse_args(arguments)
    if options.prompt is not None and len(agents_of(options)) > 1:
        parser.error("--prompt replaces the prompt of one agent: add --agents NAME")
    return options


def shared_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a run, with an agent that searches: its index serves all of them."""
    calls = {"concurrency": options.concurrency, "timeout": options.timeout}
    server = {"model": options.model, "base_url": options.base_url, **calls}
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


def agents_of(options: argparse.Namespace) -> list[str]:
    """The names of the agents, in order."""
    return [*ALL] if options.agents == "all" else [AGENTS.checked(name) for name in options.agents.split(",")]


def cells(options: argparse.Namespace) -> Iterator[tuple[str, Format]]:
    """The rows of the table, in order."""
    for agent in agents_of(options):
        for name in options.formats.split(","):
            yield agent, Format(name)


def agent_of(name: str, play_format: Format, options: argparse.Namespace) -> Agent:
    """The agent of a row."""
    prompting = PromptingConfig(format=play_format.value, prime=options.prime, prompt=options.prompt, hint=options.hint)
    play = prompting.play(name, remote=bool(options.base_url))
    return make_agent(name, play=play, prompt=prompting.prompt, hint=prompting.hint)


def common_key(settings: dict[str, Any], options: argparse.Namespace) -> Ingredients:
    """What determines all rows: model, data, index and limits, files by their content."""
    stage = {"policy": SERVER if options.base_url else "base", "split": options.split, "limit": options.limit}
    recipe = Recipe.read({**settings, "policy": options.model, "stages": {"eval": stage}}, "options")
    found = all_ingredients(recipe)["eval"]
    own = {name: value for name, value in found.items() if name != "agent" and not name.startswith("prompting.")}
    return own | {"engine": options.engine, "base_url": options.base_url, "version": __version__}


def row_key(agent: Agent) -> Ingredients:
    """What determines one row beyond that: the agent, how it is played, and all texts that it shows to the model."""
    prompts = getattr(agent, "prompts", None) or getattr(agent, "prompt", "")
    openings = (agent.turn_opening, agent.query_opening, agent.answer_opening)
    texts = json.dumps([prompts, agent.hint, agent.demand, openings, agent.stop_strings], sort_keys=True)
    play = {name: value if value is None else str(value) for name, value in asdict(agent.play).items()}
    return {"agent": agent.name, "play": play, "texts": sha256(texts.encode()).hexdigest()[:16]}


def saved_key(folder: Path) -> Ingredients | None:
    """What determined a saved row; None if there is none."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found: Ingredients | None = summary.get("benchmark")
    return found


def numbers(folder: Path) -> dict[str, Any]:
    """The numbers of a row, from its saved evaluation. Those that end in `_95` are the bounds of a 95% interval."""
    rows = load_scores(folder)
    columns = {
        "em": [row.em for row in rows],
        "f1": [row.f1 for row in rows],
        "no_answer": [float(row.miss in (Miss.NO_ANSWER, Miss.FAILED)) for row in rows],
        "forced": [float(row.forced) for row in rows],
        "format_errors": [float(row.malformed_steps) for row in rows],
        "repaired": [float(row.repaired_steps) for row in rows],
        "searches": [float(row.searches) for row in rows],
        "read": [float(row.tokens_read) for row in rows],
        "written": [float(row.tokens_written) for row in rows],
    }
    found: dict[str, Any] = {}
    for name, values in columns.items():
        interval = mean_interval(values)
        found[name] = round(interval.mean, 4)
        if name in ("em", "f1"):
            found[f"{name}_95"] = [round(interval.low, 4), round(interval.high, 4)]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return found | {"questions": len(rows), "seconds": summary["seconds"]}


def shown(row: dict[str, Any]) -> list[str]:
    """The cells of a row."""
    return [template.format(row[name]) for name, (_, template) in COLUMNS.items()]


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown, with aligned columns: names to the left, numbers to the right."""
    lines = [[title for title, _ in COLUMNS.values()], *map(shown, rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    sides = ["<" if name in ("agent", "format") else ">" for name in COLUMNS]
    padded = [[f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths)] for line in lines]
    rule = ["-" * width if side == "<" else "-" * (width - 1) + ":" for side, width in zip(sides, widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))


if __name__ == "__main__":
    try:
        main()
    except StepladderError as problem:
        sys.exit(f"error: {problem}")
