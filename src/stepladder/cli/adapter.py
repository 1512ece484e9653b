"""`adapter` writes what training has changed in a model as a small folder."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder.agents import is_agent_file
from stepladder.cli.options import AsJson, path_of
from stepladder.core.errors import StepladderError
from stepladder.core.trace_printer import printable
from stepladder.models import absolute_if_folder
from stepladder.models.adapters import is_adapter
from stepladder.models.resolve import bases_of
from stepladder.pipeline.run_folder import RunFolder

console = Console()

#: An adapter with less of the change than this says what the rest may be.
_MOST = 0.9


def adapter_command(
    run: Annotated[
        Path, typer.Argument(parser=path_of, metavar="RUN", help="A run, or the folder of a trained model.")
    ],
    out: Annotated[Path, typer.Option("--out", parser=path_of, help="Folder of the adapter.")],
    base: Annotated[
        str | None,
        typer.Option("--base", help="The model that was begun with [dim](default: the policy of the run's recipe)[/]."),
    ] = None,
    rank: Annotated[int, typer.Option("--rank", min=1, help="Of the matrices: more keep more, and take more.")] = 16,
    as_json: AsJson = False,
) -> None:
    """Write a trained policy as an adapter: megabytes instead of the whole model, to send, keep and ask with."""
    # Imported here because they take seconds to import.
    import torch

    from stepladder.models.loading import load_model
    from stepladder.models.lora_extraction import write_difference

    trained, begun, agent = _models(run, base)
    if out.exists():
        raise StepladderError(f"--out: {out} exists already; give a new folder")
    with console.status("comparing the models"):
        model, tokenizer = load_model(trained, None, None)
        found = write_difference(model, load_model(begun, None, None)[0], begun, tokenizer, rank, out, agent)
    if as_json:
        told = {"folder": str(found.folder), "layers": found.layers, "kept": found.kept, "bytes": found.bytes}
        typer.echo(json.dumps({**told, "left_out": found.left_out, "lost": found.lost}, indent=2))
        return
    console.print(
        f"{printable(str(found.folder))}: {found.bytes / 1e6:.1f} MB for {printable(begun)}, with {found.kept:.1%} of what was "
        f"changed in {found.layers} layers",
        highlight=False,
        soft_wrap=True,
    )
    if found.kept < _MOST and model.dtype == torch.bfloat16:
        console.print(
            "rounding to bf16 counts as change too, is most of it after few updates with a small learning rate, and is "
            "what an adapter leaves out first; a higher --rank keeps more of both",
            highlight=False,
            soft_wrap=True,
        )
    if found.left_out:
        console.print(
            f"{found.left_out} other weights were changed too (embeddings, norms: {found.lost:.1%} of the change), "
            "which an adapter cannot have; train with lora to have none of that",
            highlight=False,
            soft_wrap=True,
        )
    if Path(begun).exists():
        if is_adapter(Path(begun)):
            way = f"--base {bases_of(Path(begun))[-1]} makes an adapter that needs no other"
        else:
            way = "for others, write their name for that model into adapter_config.json (base_model_name_or_path)"
        console.print(
            f"it names {printable(begun)}, a place on this machine: {printable(way)}", highlight=False, soft_wrap=True
        )
    console.print(f"next: stepladder ask --model {printable(str(found.folder))} ...", highlight=False, soft_wrap=True)


def _models(run: Path, base: str | None) -> tuple[str, str, str | None]:
    """The trained model, the one that it began with, and the agent that it was trained as, where that has a name."""
    if (run / "config.json").is_file():
        if base is None:
            raise StepladderError(f"{run} is a model folder, which does not say what it began with: add --base NAME")
        return str(run), absolute_if_folder(base), None
    folder = RunFolder.open(run)
    policy = folder.newest("policy")
    if policy is None:
        raise StepladderError(f"no stage of the run {run} has made a policy yet")
    shared = folder.recipe().shared
    agent = None if is_agent_file(shared.agent) else shared.agent
    return str(policy), absolute_if_folder(base) if base else shared.policy, agent
