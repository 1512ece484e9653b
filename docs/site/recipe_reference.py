"""The pages of recipe keys, from the settings classes: one for the keys of a recipe, one per kind of stage.

In: the pydantic models of the settings, and the `#:` comments above their fields. Out: Markdown pages by path. A key is
a heading with its type, its default and its comment, so that a search for its name finds it.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ByteSize
from pydantic.fields import FieldInfo

from stepladder.core.config import Config, union_members
from stepladder.core.errors import StepladderError
from stepladder.pipeline.recipe import _RecipeFile
from stepladder.pipeline.stage import StageSpec
from stepladder.pipeline.stages import STAGES, get_stage

#: What each kind of stage does, in a line; a kind that is missing here is an error, so that new stages get theirs.
STAGE_TITLES = {
    "sft": "supervised fine-tuning on transcripts",
    "explore": "search trees by MCTS",
    "rank": "sampled actions, ranked by a judge",
    "pairs": "preference pairs from trees",
    "pairs-file": "preference pairs from a file",
    "prm": "a process reward model",
    "prm-eval": "an examination of the reward model",
    "rft": "rejection-sampling fine-tuning",
    "accept": "the policy before or after a training stage, by dev questions",
    "dpo": "direct preference optimization",
    "grpo": "reinforcement learning",
    "eval": "scores on a split",
}
#: The module whose settings all training stages share.
_SHARED_KEYS = "stepladder.train.loop.config"
_WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
_BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


def pages() -> dict[str, str]:
    """Markdown by the path of its page."""
    if missing := set(STAGES) ^ set(STAGE_TITLES):
        raise StepladderError(
            f"docs/site/recipe_reference.py: no line, or one too many, for {', '.join(sorted(missing))}"
        )
    found = {"reference/recipe.md": _recipe_page()}
    for kind in STAGE_TITLES:
        found[f"reference/stages/{kind}.md"] = _stage_page(kind, get_stage(kind))
    return found


def _recipe_page() -> str:
    listed = "\n".join(f"- [`{kind}`](stages/{kind}.md): {title}" for kind, title in STAGE_TITLES.items())
    return "\n".join(
        [
            "# Recipe keys\n",
            "A recipe is a YAML file with the keys below. `stages` maps names of your choice to settings; `kind` says "
            "which kind of stage it is, and may be left out where the name is a kind. `--set a.b=c` overrides a key, "
            "as in `--set stages.grpo.beta=0.01`. An unknown key is an error that names the nearest one. Generated "
            "from the code.\n",
            "## Kinds of stages\n",
            listed + "\n",
            "## Keys\n",
            *_keys(_RecipeFile, list(_RecipeFile.model_fields)),
        ]
    )


def _stage_page(kind: str, spec: StageSpec) -> str:
    config = spec.config
    summary = inspect.cleandoc(config.__doc__ or "").replace("<", "&lt;")
    shared = [name for name in config.model_fields if _defined_in(config, name) == _SHARED_KEYS]
    own = [name for name in config.model_fields if name not in shared]
    reads, writes = (", ".join(f"`{role}`" for role in roles) or "nothing" for roles in (spec.inputs, spec.outputs))
    return "\n".join(
        [
            f"# Stage `{kind}`\n",
            f"{STAGE_TITLES[kind].capitalize()}. {summary}\n",
            f"- Reads: {reads}. An input is the output of the newest earlier stage that writes this role; a key with "
            "the name of the role, such as `policy: rft`, selects another.",
            f"- Writes: {writes}.",
            "- Change a key with `--set stages.NAME.KEY=VALUE`, where NAME is the name of the stage in the recipe.\n",
            "## Keys\n",
            *_keys(config, own),
            *(["## Keys of every training stage\n", *_keys(config, shared)] if shared else []),
        ]
    )


def _defined_in(config: type[Config], name: str) -> str:
    """The module of the class that declares a key."""
    return next(base.__module__ for base in config.__mro__ if name in inspect.get_annotations(base))


def _keys(config: type[Config], names: list[str], prefix: str = "") -> Iterator[str]:
    """A heading per key, and those of nested settings behind it."""
    comments = _comments(config)
    for name in names:
        field = config.model_fields[name]
        default = _default(field)
        facts = _type(field.annotation, field.metadata) + (f", default `{default}`" if default else "")
        yield f"### `{prefix}{name}`\n\n*{facts}*\n"
        if text := comments.get(name) or field.description:
            yield f"{_sentence(text)}\n"
        for kind in union_members(field.annotation):
            if isinstance(kind, type) and issubclass(kind, Config):
                yield f"{_sentence(inspect.cleandoc(kind.__doc__ or ''))}\n"
                yield from _keys(kind, list(kind.model_fields), f"{prefix}{name}.")


def _sentence(text: str) -> str:
    """A comment as a paragraph. Blocks of code in it, such as doctests, are left out."""
    text = re.split(r"\n\s*(?:>>>|    )", text)[0]
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Config):
        return ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _type(kind: Any, metadata: Any = ()) -> str:
    """A type in words.

    >>> from pydantic import NonNegativeFloat
    >>> _type(int | None), _type(Literal["a", "b"]), _type(tuple[str, ...]), _type(NonNegativeFloat)
    ('integer or null', '`a` or `b`', 'list of text', 'number >= 0')
    """
    bounds = [
        f"{sign} {value:g}"
        for each in _flat(metadata)
        for key, sign in _BOUNDS
        if _bound(each, key, value := getattr(each, key, None))
    ]
    return " ".join([_bare(kind), " and ".join(bounds)]).strip()


def _flat(metadata: Any) -> Iterator[Any]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from _flat(each.metadata)
        else:
            yield each


def _bound(each: Any, key: str, value: Any) -> bool:
    return isinstance(value, int | float) and type(each).__name__.lower() == key


def _bare(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _type(get_args(kind)[0], get_args(kind)[1:])
    if kind in _WORDS:
        return _WORDS[kind]
    if kind is ByteSize:
        return "amount such as 500MB or 2GB"
    if isinstance(kind, type) and issubclass(kind, Config):
        return "settings"
    match get_origin(kind), get_args(kind):
        case (origin, values) if origin is Literal:
            return " or ".join(f"`{value}`" for value in values)
        case (origin, (item, *_)) if origin is tuple:
            return f"list of {_bare(item)}"
        case (origin, (_, value)) if origin in (dict, Mapping) or (
            inspect.isclass(origin) and issubclass(origin, Mapping)
        ):
            return f"mapping of names to {_bare(value)}"
    members = union_members(kind)
    if len(members) > 1:
        parts = [_bare(each) for each in get_args(kind) if each is not NoneType]
        return " or ".join([*dict.fromkeys(parts), *(["null"] if NoneType in members else [])])
    return "value"


@cache
def _comments(config: type[Config]) -> dict[str, str]:
    """The `#:` comments above the fields, also those of base classes."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not (isinstance(base, type) and issubclass(base, Config)) or base is Config:
            continue
        lines, _ = inspect.getsourcelines(base)
        tree = ast.parse(inspect.cleandoc("\n" + "".join(lines)))
        source = inspect.cleandoc("\n" + "".join(lines)).splitlines()
        body = tree.body[0]
        assert isinstance(body, ast.ClassDef)
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                above: list[str] = []
                number = node.lineno - 2
                while number >= 0 and source[number].strip().startswith("#:"):
                    above.insert(0, source[number].strip().removeprefix("#:").strip())
                    number -= 1
                if above:
                    found[node.target.id] = " ".join(above)
    return found
