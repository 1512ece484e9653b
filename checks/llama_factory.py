"""Does LLaMA-Factory read what Stepladder exports? Asks LLaMA-Factory itself, in an environment of its own.

    .venv/bin/python checks/llama_factory.py          on a small export, made here
    .venv/bin/python checks/llama_factory.py FOLDER   yours: stepladder export --run DIR --to llama-factory --out FOLDER

Installs LLaMA-Factory from PyPI into an environment that is kept (--environment). Runs its own data loader on the
folder with a model's tokenizer, compares what it read with the files, prints one example of each data set as the
trainer will see it, and trains for five updates with the folder's own dpo.yaml and dpo_lora.yaml, on the CPU.
"""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

LLAMA_FACTORY = "llamafactory==0.9.5"
TORCH = "torch==2.13.0"
NANO = Path(__file__).parents[1] / "src" / "stepladder" / "models" / "nano"
_WHERE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def main() -> int:
    """Prepare the environment and the folder, then start this file again over there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="an export in the llama-factory format")
    parser.add_argument("--model", default=str(NANO), help="whose tokenizer to use and what to train (nano)")
    parser.add_argument("--environment", type=Path, default=Path("build/llama-factory"), help="where to install")
    options = parser.parse_args()
    model = str(Path(options.model).absolute()) if Path(options.model).exists() else options.model
    python = _environment(options.environment.absolute())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "export"
        if options.folder is None:
            _small_export(folder)
        else:
            shutil.copytree(options.folder, folder)  # training leaves files behind
        _run(python, __file__, "--there", folder, model)
        for name in ("dpo", "dpo_lora"):
            changes = (f"model_name_or_path={model}", "use_cpu=true", "max_steps=5", "logging_steps=1")
            command = (python.with_name("llamafactory-cli"), "train", f"{name}.yaml", *changes)
            _run(*command, folder=folder, log=folder / f"{name}.log")
            results = json.loads((folder / "saves" / name / "all_results.json").read_text(encoding="utf-8"))
            losses = f"train loss {results['train_loss']:.3f}, dev loss {results['eval_loss']:.3f}"
            print(f"{name}.yaml: 5 updates, {losses}")
    print("LLaMA-Factory reads the export, and trains with its files.")
    return 0


def _environment(folder: Path) -> Path:
    """The Python of the environment, which is made when it is not there yet."""
    python, mark = folder / "bin" / "python", folder / "complete"
    if not mark.exists():
        _run(sys.executable, "-m", "venv", folder)
        # torch comes first: a CPU build, where pip is set up to find one, must not be replaced by a larger one.
        _run(python, "-m", "pip", "install", "--quiet", TORCH)
        _run(python, "-m", "pip", "install", "--quiet", TORCH, LLAMA_FACTORY)
        _leave_out_what_cannot_be_loaded(python)
        mark.touch()
    return python


def _leave_out_what_cannot_be_loaded(python: Path) -> None:
    """Take out torchvision and torchaudio where they were not built for this torch. Text needs neither.

    PyPI has them only for torch with CUDA; beside a CPU build they fail on import. LLaMA-Factory imports torchaudio
    always, so an empty module takes its place.
    """
    for name in ("torchvision", "torchaudio"):
        if subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode:
            print(f"{name} does not fit this build of torch: left out")
            _run(python, "-m", "pip", "uninstall", "--quiet", "--yes", name)
    packages = Path(subprocess.check_output([python, "-c", _WHERE], text=True).strip())
    if not (packages / "torchaudio").exists():
        (packages / "torchaudio.py").write_text('"""Stands in for torchaudio, of which no build fits."""\n')


def _run(*command: object, folder: Path | None = None, log: Path | None = None) -> None:
    """Run a command. What it says goes to the log, where one is given, and is shown when it fails."""
    words = [str(part) for part in command]
    quiet = os.environ | {"LLAMAFACTORY_VERBOSITY": "ERROR", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    with log.open("wb") if log else nullcontext() as file:
        code = subprocess.run(words, cwd=folder, env=quiet, stdout=file, stderr=file).returncode
    if code:
        said = log.read_text(encoding="utf-8", errors="replace") if log else ""
        sys.exit(f"{said}\n{' '.join(words)}\nended with exit status {code}")


def _small_export(folder: Path) -> None:
    """Pairs as the ProRAG agent makes them: every step of three gold transcripts, against an answer given too soon."""
    from stepladder import Pair, Question, Step, Trajectory
    from stepladder.agents.prorag import ProRAGBrief
    from stepladder.core.trace import Action, ActionKind, Author, Hop, Passage, Segment, Side
    from stepladder.oracle.engine import gold_action
    from stepladder.preferences.export import export

    agent, pairs = ProRAGBrief(), []
    for tower, architect, town in (
        ("Orm", "Ada Tarn", "Velm"),
        ("Brae", "Ivo Lund", "Oss"),
        ("Kest", "Una Ré", "Mirn"),
    ):
        hops = (Hop(f"Who designed {tower} Tower?", architect, ("p",)), Hop("Where was #1 born?", town, ("p",)))
        question = Question(tower, f"Where was the architect of {tower} Tower born?", (town,), hops)
        found = (Passage("p", f"{tower} Tower", f"{architect}, who designed it, was born in {town}."),)
        state = Trajectory(question, agent.name)
        while state.answer is None:
            context, known = agent.render(state), state.context()
            good, bad = gold_action(state, agent.kinds), Action(ActionKind.ANSWER, "Nobody knows", "I give up.")
            chosen, rejected = (
                Side(Segment(Author.POLICY, agent.write(action, state)), action) for action in (good, bad)
            )
            pairs.append(Pair(tower, agent.name, context, chosen, rejected, depth=len(state.steps), judge="gold"))
            passages = found if good.kind is ActionKind.QUERY else ()
            state = state.extend(Step(context[len(known) :], chosen.written, good, passages))
    export("llama-factory", {"train": pairs[:-5], "dev": pairs[-5:]}, folder, source="three gold transcripts")


def there(folder: str, model: str) -> None:
    """In LLaMA-Factory's environment: load every data set of the folder by its loader, and compare with the files."""
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_tokenizer

    info = json.loads((Path(folder) / "dataset_info.json").read_text(encoding="utf-8"))
    for name, entry in info.items():
        stage = "dpo" if entry.get("ranking") else "sft"
        settings = {
            "model_name_or_path": model,
            "stage": stage,
            "do_train": True,
            "finetuning_type": "full",
            "dataset_dir": folder,
            "dataset": name,
            "cutoff_len": 10000,
            "output_dir": f"{folder}/saves",
            "report_to": "none",
            "log_level": "error",
        }
        model_args, data_args, training_args, _, _ = get_train_args(settings)
        tokenizer = load_tokenizer(model_args)["tokenizer"]
        template = get_template_and_fix_tokenizer(tokenizer, data_args)
        loader_stage = "rm" if stage == "dpo" else "sft"
        with redirect_stdout(io.StringIO()):  # it prints an example with all its token ids
            found = get_dataset(template, model_args, data_args, training_args, loader_stage, tokenizer)
        loaded = found["train_dataset"]
        lines = (Path(folder) / entry["file_name"]).read_text(encoding="utf-8").split("\n")
        rows = [json.loads(line) for line in lines if line]
        assert len(loaded) == len(rows), f"{name}: {len(rows)} rows in the file, {len(loaded)} loaded"
        for row, example in zip(rows, loaded):
            _compare(row, example, tokenizer, stage)
        print(f"\n=== {name}: {len(loaded)} examples, all with the text of the file; the last one:")
        _show(loaded[-1], tokenizer, stage)


def _compare(row: dict[str, str], example: dict[str, Any], tokenizer: Any, stage: str) -> None:
    answers = {"chosen": "chosen_", "rejected": "rejected_"} if stage == "dpo" else {"output": ""}
    for column, prefix in answers.items():
        read, answer = _decoded(example, prefix, tokenizer)
        assert row["instruction"] in read, f"{row['instruction']!r} is not in {read!r}"
        assert row[column] in answer, f"{row[column]!r} is not in {answer!r}"
        if tokenizer.chat_template is None:
            assert (read + answer).removesuffix(tokenizer.eos_token) == row["instruction"] + row[column]


def _decoded(example: dict[str, Any], prefix: str, tokenizer: Any) -> tuple[str, str]:
    """The text that is only read, and the text that the loss counts."""
    ids, labels = example[f"{prefix}input_ids"], example[f"{prefix}labels"]
    start = next(position for position, label in enumerate(labels) if label >= 0)
    read, answer = (tokenizer.decode(part, clean_up_tokenization_spaces=False) for part in (ids[:start], ids[start:]))
    return read, answer


def _show(example: dict[str, Any], tokenizer: Any, stage: str) -> None:
    for prefix in ("chosen_", "rejected_") if stage == "dpo" else ("",):
        read, answer = _decoded(example, prefix, tokenizer)
        print(f"--- {prefix.rstrip('_') or 'step'}, read:\n{read}\n--- answered:\n{answer}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--there"]:
        there(*sys.argv[2:])
    else:
        sys.exit(main())
