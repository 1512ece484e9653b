"""Runs every benchmark, one after the other, each in a process of its own: `make bench`.

`python benchmarks/run.py driver` runs those whose name contains a word.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
#: What is here and measures nothing: this file, and those that keep the published tables.
TOOLS = ("run", "build_results", "real_tables", "record")


def main(words: list[str]) -> int:
    scripts = sorted(path for path in HERE.glob("*.py") if path.stem not in TOOLS)
    chosen = [path for path in scripts if not words or any(word in path.stem for word in words)]
    if not chosen:
        print(f"no benchmark matches {' '.join(words)}; there are: {', '.join(path.stem for path in scripts)}")
        return 2
    failed = []
    for path in chosen:
        print(f"\n== {path.stem} ==", flush=True)
        if subprocess.run([sys.executable, str(path)], check=False).returncode:
            failed.append(path.stem)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
