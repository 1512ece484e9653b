"""The jobs of `faults.py`: commands that resume, and what their results contain."""

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.encoders import save_encoder
from tests.support.gguf_files import as_gguf, small_llama, write_gguf

RECIPE = Path(__file__).with_name("fault_stages.yaml")
#: Without a trained policy there are no pairs and no transcripts to imitate.
_SHORT_STAGES: dict[str, dict[str, Any]] = {
    "sft": {"questions": 8, "dev_questions": 2},
    "explore": {"questions": 2, "simulations": 2},
    "oracle": {},
}
_WARM_UP = {
    "policy": "nano",
    "stages.sft.questions": 64,
    "stages.sft.num_train_epochs": 6,
    "stages.sft.learning_rate": 1e-3,
    "stages.sft.eval_steps": 0,
    "stages.sft.dev_questions": 0,
}
#: Files that describe the attempts, and files that are needed only until a stage is complete.
_ATTEMPTS = ("run.json", ".lock", "started.json", "spend.jsonl")
_CHECKPOINTS = "checkpoints"
#: Replies of a judge, in the order in which they came.
_REPLIES = "replies.jsonl"
#: Times, attempts, digests of them, and what a judge cost including lost calls.
_VARYING = ("seconds", "per_second", "attempts", "created", "manifest_checksum", "contents", "judge")


def _no_variables(folder: Path) -> dict[str, str]:  # noqa: ARG001 - as the environment of any job
    return {}


@dataclass(frozen=True)
class Job:
    """A command that writes into a folder."""

    name: str
    #: The command's arguments for a folder.
    arguments: Callable[[Path], list[str]]
    environment: Callable[[Path], dict[str, str]] = _no_variables


def make_jobs(inputs: Path, judge_url: str, run: Callable[[list[str]], None], *, short: bool) -> list[Job]:
    """All jobs; their inputs are made in the folder `inputs` unless they are there. `run` executes a command."""
    inputs.mkdir(parents=True, exist_ok=True)
    corpus, encoder, gguf = inputs / "corpus.jsonl", inputs / "encoder", inputs / "model.gguf"
    if not gguf.exists():
        _write_corpus(corpus)
        save_encoder(encoder)
        write_gguf(gguf, as_gguf(small_llama()))

    def recipe(folder: Path) -> list[str]:
        return ["run", str(_recipe(inputs, short=short)), "--out", str(folder / "run"), *_settings(policy, judge_url)]

    def index(kind: str) -> Callable[[Path], list[str]]:
        options = [] if kind == "bm25" else ["--encoder", str(encoder), "--device", "cpu"]
        return lambda folder: ["index", "build", str(corpus), "--kind", kind, "--out", str(folder / "ix"), *options]

    def unpack(folder: Path) -> list[str]:  # noqa: ARG001 - writes into the cache, which the environment names
        limits = ["--max-steps", "1", "--max-tokens", "2"]
        return ["ask", "Who?", "--model", str(gguf), "--agent", "direct", "--device", "cpu", *limits]

    policy = "nano" if short else str(_warm_policy(inputs / "warm", run))
    jobs = [
        Job("recipe", recipe),
        *(Job(f"index {kind}", index(kind)) for kind in ("bm25", "bm25+flat", "hnsw")),
        Job("gguf", unpack, lambda folder: {"STEPLADDER_CACHE": str(folder / "cache")}),
    ]
    if not short:
        trained = ["--model", policy, "--base", "nano", "--rank", "4"]
        jobs.append(Job("adapter", lambda folder: ["adapter", *trained, "--out", str(folder / "adapter")]))
    return jobs


def contents(folder: Path) -> dict[str, str]:
    """A digest of every result in a folder, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and path.name not in _ATTEMPTS and _CHECKPOINTS not in inside.parts:
            found[str(inside)] = hashlib.sha256(_plain(path, folder)).hexdigest()[:16]
    return found


def _plain(path: Path, folder: Path) -> bytes:
    """The content of a file without times and without the name of the folder."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    data = data.replace(str(folder).encode(), b"FOLDER")
    if path.suffix in (".json", ".jsonl", ".gz") and "tokenizer" not in path.name:
        rows = [data] if path.suffix == ".json" else data.splitlines()
        lines = [json.dumps(_without_times(json.loads(row)), sort_keys=True) for row in rows]
        return "\n".join(sorted(lines) if path.name == _REPLIES else lines).encode()
    return data


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(each) for key, each in value.items() if not key.endswith(_VARYING)}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


def _settings(policy: str, judge_url: str) -> list[str]:
    values = {"policy": policy, **({"stages.judged.llm.url": judge_url} if policy != "nano" else {})}
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def _recipe(inputs: Path, *, short: bool) -> Path:
    """The recipe, or one with fewer stages."""
    if not short:
        return RECIPE
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    recipe["stages"] = {name: {**recipe["stages"][name], **smaller} for name, smaller in _SHORT_STAGES.items()}
    path = inputs / "short.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    return path


def _warm_policy(folder: Path, run: Callable[[list[str]], None]) -> Path:
    """A policy that answers some questions, trained once."""
    if not (folder / "sft" / "stage.json").exists():
        recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
        recipe["stages"] = {"sft": recipe["stages"]["sft"]}
        path = folder.with_suffix(".yaml")
        path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
        changes = [word for name, value in _WARM_UP.items() for word in ("--set", f"{name}={value}")]
        run(["run", str(path), "--out", str(folder), *changes])
    return folder / "sft" / "policy"


def _write_corpus(path: Path) -> None:
    rows = ({"id": str(number), "contents": f"{number**2}\n{number % 13} on {number % 7}"} for number in range(6_000))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
