"""Which attacks hold, and at which commit? Makes every attack on one or several versions and prints a table.

    python checks/attacks.py                         # the working tree
    python checks/attacks.py 4aba644                 # a commit and the working tree
    python checks/attacks.py --only "damaged index"  # attacks whose names contain this

In: commits. Each is checked out into a worktree in --out and runs in this environment. Out: one row per attack:
`holds`, or `FALLS` and what happened, or `not run` and the reason, for each version; exit status 1 unless every attack
holds in the working tree. Attacks use commands, HTTP and files, and a few lines of Python where there is nothing else,
so that they mean the same in every version. Code that an attack injects only creates a file in a temporary folder.
About five minutes per version on two slow cores.
"""

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from same_scores import ROOT, worktree_of
from under_attack import clients, inputs, memory, money, programs, training
from under_attack.version import ATTACKS, NotRun, Version

__all__ = ["clients", "inputs", "memory", "money", "programs", "training"]  # their attacks are in ATTACKS
HOLDS = "holds"


def outcome(name: str, version: Version) -> str:
    """What an attack did to a version."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        try:
            problem = ATTACKS[name](version, Path(folder))
            found = f"FALLS: {problem}" if problem else HOLDS
        except NotRun as error:
            found = f"not run: {error}"
        except Exception as error:  # noqa: BLE001 - the attack itself is at fault, and the others are made
            found = f"not run: {type(error).__name__}: {error}"
    print(f"{version.name}, {name}: {found} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Make the attacks and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", metavar="COMMIT", help="versions besides the working tree")
    parser.add_argument("--only", action="append", metavar="NAME", help="attacks whose names contain this")
    parser.add_argument("--jobs", type=int, default=2, help="attacks at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/attacks"), help="where worktrees go")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    names = [name for name in ATTACKS if any(word in name for word in options.only or [""])]
    with tempfile.TemporaryDirectory(prefix="attacks-") as shared, ThreadPoolExecutor(options.jobs) as pool:
        versions = [Version(commit, worktree_of(commit, out), Path(shared, commit)) for commit in options.commits]
        versions.append(Version("working tree", ROOT, Path(shared, "tree")))
        waiting = {name: [pool.submit(outcome, name, version) for version in versions] for name in names}
        results = {name: [each.result() for each in found] for name, found in waiting.items()}
    table = Table("attack", *options.commits, "working tree", box=box.SIMPLE)
    for name, found in results.items():
        table.add_row(name, *(escape(each) for each in found))
    Console(width=None if sys.stdout.isatty() else 180).print(table)
    held = sum(found[-1] == HOLDS for found in results.values())
    print(f"{held} of {len(names)} attacks hold in the working tree")
    return 0 if names and held == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
