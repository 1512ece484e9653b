"""Options that several commands share, as annotated types, and option groups.

An option group is a dataclass, or a `Config` with help texts, whose fields become options of the commands that take it.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console

from stepladder.agents import AGENTS
from stepladder.cli.renamed import reject_renamed
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.data import DATA_SETS, PUBLISHED
from stepladder.engines import ENGINES
from stepladder.pipeline.resources import SharedConfig

#: Results go to standard output, notes to standard error.
OUT, ERR = Console(), Console(stderr=True)


class Api(StrEnum):
    """The two endpoints of an OpenAI-compatible server."""

    chat = "chat"
    completions = "completions"


def say(markup: str, console: Console = OUT) -> None:
    """Print lines of markup as they are, without wrapping or highlighting."""
    console.print(markup, highlight=False, soft_wrap=True)


def path_of(text: str) -> Path:
    """A path as typed, with ~ expand_path."""
    return expand_path(text)


def listed(names: Iterable[str]) -> str:
    """Names joined for a help text."""
    return ", ".join(names)


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_writable_file(option: str, path: Path | None) -> None:
    """Raise if no file can be written at this path."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise StepladderError(f"{option}: cannot write {path}: give a file in an existing folder")


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command that takes option groups: dataclasses, or a `Config` annotated with help texts by field.

    Typer sees one option per field. The command receives each group filled with the typed values.
    """
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if (group := _group(parameter.annotation)) is None:
            parameters.append(_parameter(parameter.name, parameter.annotation, parameter.default))
        else:
            groups[parameter.name] = (group[0], [option.name for option in group[1]])
            parameters += group[1]

    signature = inspect.Signature(parameters)

    @wraps(command)
    def run(**typed: Any) -> None:
        bound = signature.bind(**typed)
        bound.apply_defaults()
        values = bound.arguments
        for name, (make, options) in groups.items():
            values[name] = make(**{option: values.pop(option) for option in options})
        command(**values)

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _group(kind: Any) -> tuple[Callable[..., Any], list[inspect.Parameter]] | None:
    """How to make an option group, and its options; None for any other annotation."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints, panel = get_type_hints(kind, include_extras=True), getattr(kind, "panel", None)
        return kind, [_parameter(each.name, hints[each.name], each.default, panel) for each in fields(kind)]
    config, *metadata = get_args(kind) or (kind,)
    if not metadata or not isinstance(metadata[0], Mapping):
        return None
    options = []
    for name, help_text in metadata[0].items():
        if (field := config.model_fields.get(name)) is not None:
            flags = ("-k", "--topk") if name == "topk" else (f"--{name.replace('_', '-')}",)
            annotation = _annotated(field.annotation, typer.Option(*flags, help=help_text))
            options.append(_parameter(name, annotation, field.default, "Limits"))
    return lambda **typed: config.read(typed), options


def _parameter(name: str, annotation: Any, default: Any, panel: str | None = None) -> inspect.Parameter:
    """An option as a keyword parameter, in a panel of the help. The metavar of numbers is N."""
    kind, option = get_args(annotation)
    option = copy(option)
    option.rich_help_panel = panel or option.rich_help_panel
    if not {int, float}.isdisjoint({kind, *get_args(kind)}):
        option.metavar = "N"
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=_annotated(kind, option))


def _annotated(kind: Any, option: Any) -> Any:
    return Annotated[kind, option]


_DEFAULTS = SharedConfig()


def _unset(what: str, default: object) -> str:
    """Help for an option whose default comes from the run (--run), or else is this one."""
    return f"{what} [dim](default: {default})[/]"


#: Values of --agent.
AGENTS_HELP = f"{listed(AGENTS)}; or a Python file with your own agent"

_MODELS = (
    "a model folder, an adapter, a GGUF file, a Hugging Face name, nano (included), smollm2-135m (see docs/models.md) "
    "or tiny (random weights)"
)

_TOPK = "Passages per search."
_WORLD_SEED = "Seed of the generated Atlas world."
_DATA = f"{listed((*DATA_SETS, *PUBLISHED))}, a folder of question files, or a question file; join several with +."

AgentName = Annotated[
    str | None,
    typer.Option("--agent", metavar="NAME", help=_unset(f"Prompt format and actions: {AGENTS_HELP}.", _DEFAULTS.agent)),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        callback=reject_renamed,
        help=_unset(
            f"Generation backend: {listed(ENGINES)}. `oracle` replays gold decompositions (an upper bound).",
            "transformers with --model or --run, openai with --base-url, else oracle",
        ),
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME", help=f"{_MODELS[0].upper()}{_MODELS[1:]}; with --base-url, the server's model name."
    ),
]
Policy = Annotated[str, typer.Option("--model", metavar="NAME", help=f"The model to train: {_MODELS}.")]
ExploringModel = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help=f"With --out: {_MODELS} [dim](default: nano)[/]")
]
RunPath = Annotated[
    Path | None,
    typer.Option(
        "--run", parser=path_of, metavar="DIR", help="Use a run's newest policy, its agent, data, index and limits."
    ),
]
_RUN = typer.Option("--run", parser=path_of, metavar="DIR", help="The run to add the stage to.")
RunToExtend = Annotated[Path, _RUN]
RunToExtendOrNone = Annotated[Path | None, _RUN]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url", metavar="URL", help="URL of an OpenAI-compatible server, such as http://localhost:8000/v1."
    ),
]
ApiName = Annotated[Api, typer.Option("--api", help="Endpoint of the server.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help=_unset("auto, cpu, cuda or cuda:N.", _DEFAULTS.device))
]
DType = Annotated[
    str | None, typer.Option("--dtype", metavar="NAME", help=_unset("auto, fp32 or bf16.", _DEFAULTS.dtype))
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, help=_unset("Maximum batch size of a local model.", _DEFAULTS.batch_size)),
]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Maximum concurrent requests to a server.")]
DataName = Annotated[str | None, typer.Option("--data", metavar="NAME", help=_unset(_DATA, _DEFAULTS.data.name))]
IndexName = Annotated[
    str | None,
    typer.Option(
        "--index",
        metavar="INDEX",
        help="Index folder, or URLs of search servers joined by commas [dim](default: the passages of the data set)[/]",
    ),
]
TopK = Annotated[int, typer.Option("-k", "--topk", min=1, metavar="N", help=_TOPK)]
SharedTopK = Annotated[int | None, typer.Option("-k", "--topk", min=1, help=_unset(_TOPK, _DEFAULTS.search.k))]
MaxSteps = Annotated[
    int | None,
    typer.Option("--max-steps", min=1, help=_unset("Maximum steps per question.", _DEFAULTS.episode.max_steps)),
]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-tokens", min=1, help=_unset("Maximum tokens per step.", _DEFAULTS.episode.max_tokens)),
]
Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]
WorldSeed = Annotated[int, typer.Option("--world-seed", help=_WORLD_SEED)]
SharedWorldSeed = Annotated[
    int | None, typer.Option("--world-seed", help=_unset(_WORLD_SEED, _DEFAULTS.data.world_seed))
]
Questions = Annotated[int | None, typer.Option("--questions", min=1, help="Number of questions to use.")]
NumGenerations = Annotated[int | None, typer.Option("--num-generations", min=1, help="Episodes per question.")]
Rerank = Annotated[
    str | None, typer.Option("--rerank", metavar="NAME", help="A cross-encoder that reranks the results.")
]
RunOut = Annotated[Path, typer.Option("--out", parser=path_of, metavar="DIR", help="Run folder.")]
StageName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the stage [dim](default: its kind)[/]", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Override a setting. Repeatable; the last value wins."),
]
Update = Annotated[bool, typer.Option("--update", help="Delete and recompute stale stages.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class StageOptions:
    """Options of every command that adds a stage to a run."""

    name: StageName = None
    overrides: Overrides = None
    update: Update = False
    as_json: AsJson = False
