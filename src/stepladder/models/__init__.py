"""Models that come with the package, by name.

nano          4 million parameters, pre-trained on fictional encyclopedias; its card is `nano/README.md`
nano-critic   nano, taught to see what is wrong: what a reward model begins with; `nano-critic/README.md`
tiny          0.1 million random weights, made in memory: the floor, and the fastest way to try something out
"""

from pathlib import Path

from stepladder.files import expanded

BUILT_IN = ("nano", "nano-critic", "tiny")


def built_in_folder(model: str | Path) -> Path | None:
    """Where a built-in model lies; None for other models, and for tiny, which has no files."""
    return Path(__file__).parent / str(model) if str(model) in BUILT_IN and str(model) != "tiny" else None


def is_model_folder(model: str) -> bool:
    """Whether a model is a folder on this machine, rather than a built-in one or one of the hub."""
    return model not in BUILT_IN and expanded(model).is_dir()


def absolute_if_folder(model: str) -> str:
    """The model by a name that holds wherever a command is typed."""
    return str(expanded(model).absolute()) if is_model_folder(model) else model
