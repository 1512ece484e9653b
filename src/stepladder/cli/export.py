"""`export` writes preference pairs for other trainers; `adapter` writes a trained policy as a LoRA adapter."""

from pathlib import Path
from typing import Annotated

import typer

from stepladder.agents import is_agent_file
from stepladder.cli.agent_options import PolicyStage, policy_of
from stepladder.cli.declarations import OUT, listed, option, path_option, print_json, say
from stepladder.cli.options import AsJson
from stepladder.cli.recipes import output_of
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records
from stepladder.core.trace import Pair
from stepladder.core.trace_printer import printable
from stepladder.models import absolute_if_folder
from stepladder.models.adapters import is_adapter
from stepladder.models.resolve import base_models
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import PAIRS
from stepladder.preferences.export import EXPORTS, SPLITS, export, read_pair_file
from stepladder.preferences.marks import read_marks

#: Below this fraction of the weight change, `adapter` explains what may be missing.
_LOW_FRACTION = 0.9


def export_command(
    out: Annotated[Path, path_option("DIR", "Folder to write.")],
    to: Annotated[str, option("FORMAT", "; ".join(f"{name}: {EXPORTS.description(name)}" for name in EXPORTS))],
    run: Annotated[Path | None, path_option("DIR", "A run with pairs.", "none: --pairs")] = None,
    pairs: Annotated[
        Path | None,
        path_option("FILE", "A file of pairs: RAG-ProGuide's (.json, .jsonl, .gz) or our own.", "none: --run"),
    ] = None,
    model: Annotated[
        str | None, option("NAME", "Model to train, for formats with a training configuration.", "to fill in")
    ] = None,
    stage: Annotated[str | None, option("NAME", "The run's stage with the pairs.", "the newest")] = None,
    exclude_marked: Annotated[
        bool, typer.Option("--exclude-marked", help="With --run: leave out the pairs that are marked as wrong.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write preference pairs in the format of another trainer."""
    EXPORTS.get(to)  # a wrong name is reported first
    if (run is None) == (pairs is None):
        raise StepladderError("give either --run DIR, a run with pairs, or --pairs FILE")
    if run is not None:
        found = output_of(run, PAIRS, stage)
        origin = f"{run.resolve().name}/{found.parent.name}"
        splits = {split: read_records(found / f"{split}.jsonl", Pair) for split in SPLITS}
        marks = read_marks(found)
    elif pairs is not None:
        for flag, typed in (("--stage selects a stage", stage), ("--exclude-marked uses the marks", exclude_marked)):
            if typed:
                raise StepladderError(f"{flag} of a run, but {pairs} is a file: leave it out")
        origin, splits, marks = pairs.name, {"train": read_pair_file(pairs)}, {}
    done = export(to, splits, out, source=origin, model=model, marks=marks, exclude_marked=exclude_marked)
    if as_json:
        result = {"folder": str(out), "source": origin, "pairs": done.pairs, "rows": done.rows, "files": done.files}
        print_json({**result, "marked": done.marked, "exclude_marked": exclude_marked})
        return
    counts = listed(f"{count:,} {split}" for split, count in done.pairs.items())
    say(f"{printable(str(out))}: {counts} pairs of {printable(origin)} as {to}; README.md says how to use them")
    if done.marked:
        effect = "left out" if exclude_marked else "exported too; --exclude-marked leaves them out"
        say(f"marked as wrong: {done.marked:,}, {effect}")


def adapter_command(
    out: Annotated[Path, path_option("DIR", "Adapter folder.")],
    run: Annotated[Path | None, path_option("DIR", "A run with a trained policy.", "none: --model")] = None,
    model: Annotated[
        Path | None, path_option("DIR", "The folder of a trained model, with --base.", "none: --run")
    ] = None,
    stage: PolicyStage = None,
    base: Annotated[str | None, option("NAME", "The model before training.", "the policy of the run's recipe")] = None,
    rank: Annotated[int, option("N", "LoRA rank: a higher one keeps more and takes more space.", min=1)] = 16,
    as_json: AsJson = False,
) -> None:
    """Write a trained policy as a LoRA adapter: megabytes instead of the whole model."""
    # Imported here because they take seconds to import.
    import torch

    from stepladder.models.loading import load_model
    from stepladder.models.lora_extraction import extract_lora

    trained, base, agent = _models(run, stage, model, base)
    if out.exists():
        raise StepladderError(f"--out: {out} exists already; give a new folder")
    with OUT.status("comparing the models"):
        policy, tokenizer = load_model(trained, None, None)
        found = extract_lora(policy, load_model(base, None, None)[0], base, tokenizer, rank, out, agent)
    if as_json:
        result = {"folder": str(found.folder), "layers": found.layers, "kept": found.kept, "bytes": found.bytes}
        print_json({**result, "left_out": found.left_out, "lost": found.lost})
        return
    say(
        f"{printable(str(found.folder))}: {found.bytes / 1e6:.1f} MB for {printable(base)}, with {found.kept:.1%} of "
        f"the change of {found.layers} layers"
    )
    if found.kept < _LOW_FRACTION and policy.dtype == torch.bfloat16:
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


def _models(run: Path | None, stage: str | None, model: Path | None, base: str | None) -> tuple[str, str, str | None]:
    """The trained model, the model before training, and the built-in agent that it was trained with, if any."""
    if model is not None and run is None:
        if not (model / "config.json").is_file():
            raise StepladderError(f"--model: {model} is not a model folder: it has no config.json")
        if base is None:
            raise StepladderError(f"{model} is a model folder, which does not name its base model: add --base NAME")
        return str(model), absolute_if_folder(base), None
    if run is None or model is not None:
        raise StepladderError("give either --run DIR, a run with a trained policy, or --model DIR with --base NAME")
    folder = RunFolder.open(run)
    policy = str(policy_of(folder, stage).path)
    shared = folder.recipe().shared
    agent = None if is_agent_file(shared.agent) else shared.agent
    return policy, absolute_if_folder(base) if base else shared.policy, agent
