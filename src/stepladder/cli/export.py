"""`export` writes preference pairs for other trainers; `adapter` writes a trained policy as a LoRA adapter."""

import json
from pathlib import Path
from typing import Annotated

import typer

from stepladder.agents import is_agent_file
from stepladder.cli.declarations import OUT, argument, listed, number_option, option, path_of, path_option, say
from stepladder.cli.options import AsJson
from stepladder.cli.recipes import missing_input
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.io.records import read_records
from stepladder.core.trace import Pair
from stepladder.core.trace_printer import printable
from stepladder.models import absolute_if_folder
from stepladder.models.adapters import is_adapter
from stepladder.models.resolve import base_models
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import PAIRS, POLICY
from stepladder.preferences.export import EXPORTS, SPLITS, export, read_rag_proguide

#: Below this fraction of the weight change, `adapter` explains what may be missing.
_LOW_FRACTION = 0.9


def export_command(
    source: Annotated[str, argument("SOURCE", "A run with pairs, or a RAG-ProGuide file (.json, .jsonl, .gz).")],
    folder: Annotated[Path, argument("DIR", "Folder to write.", parser=path_of)],
    to: Annotated[
        str, option("--to", "FORMAT", "; ".join(f"{name}: {each.summary}" for name, each in EXPORTS.items()))
    ],
    model: Annotated[
        str | None, option("--model", "NAME", "Model to train, for formats with a training configuration.")
    ] = None,
    name: Annotated[
        str | None, option("--name", "NAME", "The run's stage with the pairs.", default="the newest")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write preference pairs in the format of another trainer."""
    path = path_of(source)
    if path.is_file():
        if name is not None:
            raise StepladderError(f"--name selects a stage of a run, but {path} is a file: leave it out")
        origin, pairs = path.name, {"train": read_rag_proguide(path)}
    else:
        pair_folder = _pair_folder(path, name)
        origin = f"{path.resolve().name}/{pair_folder.parent.name}"
        pairs = {split: read_records(pair_folder / f"{split}.jsonl", Pair) for split in SPLITS}
    done = export(to, pairs, folder, source=origin, model=model)
    if as_json:
        result = {"folder": str(folder), "source": origin, "pairs": done.pairs, "rows": done.rows, "files": done.files}
        typer.echo(json.dumps(result, indent=2))
        return
    counts = listed(f"{count:,} {split}" for split, count in done.pairs.items())
    say(f"{printable(str(folder))}: {counts} pairs of {printable(origin)} as {to}; README.md says how to use them")


def _pair_folder(path: Path, name: str | None) -> Path:
    """The pairs of a run: of the named stage, or the newest."""
    run = RunFolder.open(path)
    records = [record for stage in run.recipe().stages if (record := run.done(stage.name)) is not None]
    folders = {each.name: path / each.name / each.outputs[PAIRS] for each in records if PAIRS in each.outputs}
    if not folders:
        raise missing_input(path, PAIRS)
    if name is not None and name not in folders:
        raise unknown_name("stage with pairs", name, folders)
    return folders[name or list(folders)[-1]]


def adapter_command(
    run: Annotated[Path, argument("RUN", "A run, or the folder of a trained model.", parser=path_of)],
    out: Annotated[Path, path_option("--out", "DIR", "Adapter folder.")],
    base: Annotated[
        str | None, option("--base", "NAME", "The model before training.", default="the policy of the run's recipe")
    ] = None,
    rank: Annotated[
        int, number_option("--rank", "LoRA rank: a higher one keeps more and takes more space.", min=1)
    ] = 16,
    as_json: AsJson = False,
) -> None:
    """Write a trained policy as a LoRA adapter: megabytes instead of the whole model."""
    # Imported here because they take seconds to import.
    import torch

    from stepladder.models.loading import load_model
    from stepladder.models.lora_extraction import extract_lora

    trained, base, agent = _models(run, base)
    if out.exists():
        raise StepladderError(f"--out: {out} exists already; give a new folder")
    with OUT.status("comparing the models"):
        model, tokenizer = load_model(trained, None, None)
        found = extract_lora(model, load_model(base, None, None)[0], base, tokenizer, rank, out, agent)
    if as_json:
        result = {"folder": str(found.folder), "layers": found.layers, "kept": found.kept, "bytes": found.bytes}
        typer.echo(json.dumps({**result, "left_out": found.left_out, "lost": found.lost}, indent=2))
        return
    say(
        f"{printable(str(found.folder))}: {found.bytes / 1e6:.1f} MB for {printable(base)}, with {found.kept:.1%} of "
        f"the change of {found.layers} layers"
    )
    if found.kept < _LOW_FRACTION and model.dtype == torch.bfloat16:
        say(
            "bf16 rounding counts as change too. After few updates with a small learning rate it is most of the "
            "change, and an adapter drops it first; a higher --rank keeps more of both"
        )
    if found.left_out:
        say(
            f"{found.left_out} other weights changed too (embeddings, norms: {found.lost:.1%} of the change), which a "
            "LoRA adapter cannot hold; training with lora avoids this"
        )
    if Path(base).exists():
        if is_adapter(Path(base)):
            advice = f"--base {base_models(Path(base))[-1]} makes an adapter that needs no other"
        else:
            advice = "before sharing it, set base_model_name_or_path in adapter_config.json to a public name"
        say(f"its base model is the local path {printable(base)}: {printable(advice)}")
    say(f"next: stepladder ask --model {printable(str(found.folder))} ...")


def _models(run: Path, base: str | None) -> tuple[str, str, str | None]:
    """The trained model, the model before training, and the built-in agent that it was trained with, if any."""
    if (run / "config.json").is_file():
        if base is None:
            raise StepladderError(f"{run} is a model folder, which does not name its base model: add --base NAME")
        return str(run), absolute_if_folder(base), None
    folder = RunFolder.open(run)
    policy = folder.newest(POLICY)
    if policy is None:
        raise StepladderError(f"the run {run} has no policy yet")
    shared = folder.recipe().shared
    agent = None if is_agent_file(shared.agent) else shared.agent
    return str(policy), absolute_if_folder(base) if base else shared.policy, agent
