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


def option(flags: str, metavar: str, help_text: str, default: object = None, **settings: Any) -> Any:
    """A typer option. `flags` are separated by spaces; `default` describes what an option that is left out means."""
    return typer.Option(*flags.split(), metavar=metavar, help=_with_default(help_text, default), **settings)


def number_option(flags: str, help_text: str, default: object = None, **limits: Any) -> Any:
    """An option that takes a number."""
    return option(flags, "N", help_text, default, **limits)


def path_option(flags: str, metavar: str, help_text: str, default: object = None) -> Any:
    """An option that takes a path."""
    return option(flags, metavar, help_text, default, parser=path_of)


def argument(metavar: str, help_text: str, default: object = None, **settings: Any) -> Any:
    """A typer argument."""
    return typer.Argument(metavar=metavar, help=_with_default(help_text, default), show_default=False, **settings)


def _with_default(help_text: str, default: object) -> str:
    return help_text if default is None else f"{help_text}", default="{default}"


def say(markup: str, console: Console = OUT) -> None:
    """Print lines of markup as they are, without wrapping or highlighting."""
    console.print(markup, highlight=False, soft_wrap=True)


def path_of(text: str) -> Path:
    """A path as typed, with ~ resolved."""
    return expand_path(text)


def listed(names: Iterable[str]) -> str:
    """Names joined for a help text."""
    return ", ".join(names)


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_writable_file(flag: str, path: Path | None) -> None:
    """Raise if no file can be written at this path."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise StepladderError(f"{flag}: cannot write {path}: give a file in an existing folder")


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command that takes option groups: dataclasses, or a `Config` annotated with help texts by field.

    Typer sees one option per field. The command receives each group filled with the typed values.
    """
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if (group := _group(parameter.annotation)) is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
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
            flags = "-k --topk" if name == "topk" else f"--{name.replace('_', '-')}"
            annotation = _annotated(field.annotation, number_option(flags, help_text))
            options.append(_parameter(name, annotation, field.default, "Limits"))
    return lambda **typed: config.read(typed), options


def _parameter(name: str, annotation: Any, default: Any, panel: str | None = None) -> inspect.Parameter:
    """An option as a keyword parameter, in a panel of the help."""
    kind, metadata = get_args(annotation)
    if panel is not None:
        metadata = copy(metadata)
        metadata.rich_help_panel = panel
    annotation = _annotated(kind, metadata)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotated(kind: Any, metadata: Any) -> Any:
    return Annotated[kind, metadata]


_DEFAULTS = SharedConfig()


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
    option("--agent", "NAME", _unset(f"Prompt format and actions: {AGENTS_HELP}.", _DEFAULTS.agent)),
]
EngineName = Annotated[
    str | None,
    option("--engine", "NAME", _unset(
            f"Generation backend: {listed(ENGINES)}. `oracle` replays gold decompositions (an upper bound).",
            "transformers with --model or --run, openai with --base-url, else oracle",
        ), callback=reject_renamed),
]
ModelName = Annotated[
    str | None,
    option("--model", "NAME", f"{_MODELS[0].upper()}{_MODELS[1:]}; with --base-url, the server's model name."),
]
Policy = Annotated[str, option("--model", "NAME", f"The model to train: {_MODELS}.")]
ExploringModel = Annotated[
    str | None, option("--model", "NAME", f"With --out: {_MODELS}", default="nano")
]
RunPath = Annotated[
    Path | None,
    path_option("--run", "DIR", "Use a run's newest policy, its agent, data, index and limits."),
]
_RUN = path_option("--run", "DIR", "The run to add the stage to.")
RunToExtend = Annotated[Path, _RUN]
RunToExtendOrNone = Annotated[Path | None, _RUN]
BaseUrl = Annotated[
    str | None,
    option("--base-url", "URL", "URL of an OpenAI-compatible server, such as http://localhost:8000/v1."),
]
ApiName = Annotated[Api, typer.Option("--api", help="Endpoint of the server.")]
Device = Annotated[
    str | None, option("--device", "NAME", _unset("auto, cpu, cuda or cuda:N.", _DEFAULTS.device))
]
DType = Annotated[
    str | None, option("--dtype", "NAME", _unset("auto, fp32 or bf16.", _DEFAULTS.dtype))
]
BatchSize = Annotated[
    int | None,
    number_option("--batch-size", _unset("Maximum batch size of a local model.", _DEFAULTS.batch_size), min=1),
]
Concurrency = Annotated[int, number_option("--concurrency", "Maximum concurrent requests to a server.", min=1)]
DataName = Annotated[str | None, option("--data", "NAME", _unset(_DATA, _DEFAULTS.data.name))]
IndexName = Annotated[
    str | None,
    option("--index", "INDEX", "Index folder, or URLs of search servers joined by commas", default="the passages of the data set"),
]
TopK = Annotated[int, number_option("-k --topk", _TOPK, min=1)]
SharedTopK = Annotated[int | None, number_option("-k --topk", _unset(_TOPK, _DEFAULTS.search.k), min=1)]
MaxSteps = Annotated[
    int | None,
    number_option("--max-steps", _unset("Maximum steps per question.", _DEFAULTS.episode.max_steps), min=1),
]
MaxTokens = Annotated[
    int | None,
    number_option("--max-tokens", _unset("Maximum tokens per step.", _DEFAULTS.episode.max_tokens), min=1),
]
Seed = Annotated[int, number_option("--seed", "Random seed.")]
WorldSeed = Annotated[int, number_option("--world-seed", _WORLD_SEED)]
SharedWorldSeed = Annotated[
    int | None, number_option("--world-seed", _unset(_WORLD_SEED, _DEFAULTS.data.world_seed))
]
Questions = Annotated[int | None, number_option("--questions", "Number of questions to use.", min=1)]
NumGenerations = Annotated[int | None, number_option("--num-generations", "Episodes per question.", min=1)]
Rerank = Annotated[
    str | None, option("--rerank", "NAME", "A cross-encoder that reranks the results.")
]
RunOut = Annotated[Path, path_option("--out", "DIR", "Run folder.")]
StageName = Annotated[
    str | None,
    option("--name", "NAME", "Name of the stage", default="its kind", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    option("--set", "NAME=VALUE", "Override a setting. Repeatable; the last value wins."),
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
