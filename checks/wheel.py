"""Builds the wheel, looks at what is in it, installs it into a fresh environment and runs it outside the repository.

    python checks/wheel.py              # a few minutes: torch and the other dependencies are installed once more
    python checks/wheel.py --demo       # the whole `stepladder demo` as well
    python checks/wheel.py --keep DIR   # keep the environment and the working folder in DIR

In: the repository. Out: the output of each command, and exit status 1 at the first that fails. `contents` is also what
a unit test holds every wheel to.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Run one after the other in an empty folder. They need neither the network nor a GPU.
COMMANDS = (
    ("--version",),
    ("doctor",),
    ("recipes",),
    ("ask", "--model", "nano", "--data", "atlas-small"),
    ("eval", "--agent", "rag", "--data", "atlas-small", "--limit", "5"),
    ("index", "search", "index", "who designed the tower?"),
)
#: The wheel has 14 MB, of which 11 are the weights of the built-in models.
MAX_MEGABYTES = 30


def contents(names: set[str], tracked: set[str]) -> list[str]:
    """What is wrong with the file names of a wheel, given the files that git tracks.

    >>> contents({"stepladder/a.py", "stepladder-1.dist-info/METADATA"}, {"src/stepladder/a.py", "recipes/b.yaml"})
    ['missing: stepladder/recipes/b.yaml']
    >>> contents({"stepladder/a.py", "tests/test_a.py"}, {"src/stepladder/a.py"})
    ['unexpected: tests/test_a.py']
    """
    expected = {name.removeprefix("src/") for name in tracked if name.startswith("src/stepladder/")}
    expected |= {f"stepladder/{name}" for name in tracked if name.startswith("recipes/")}
    found = {name for name in names if ".dist-info/" not in name}
    missing = [f"missing: {name}" for name in sorted(expected - found)]
    return missing + [f"unexpected: {name}" for name in sorted(found - expected)]


def tracked_files(root: Path = ROOT) -> set[str]:
    """The files of the repository that git tracks, or would track, and that are there."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in listed if (root / name).is_file()}


def run(*command: str | Path, folder: Path) -> None:
    """Run a command, with its output on the terminal; the first that fails ends the check."""
    print("$", *command, flush=True)
    if code := subprocess.run([str(word) for word in command], cwd=folder).returncode:
        sys.exit(f"failed with exit status {code}: {' '.join(map(str, command))}")


def check(folder: Path, *, demo: bool) -> None:
    """Build, look, install and run, all below `folder`."""
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    tools, environment, outside = folder / "tools", folder / "environment", folder / "outside"
    outside.mkdir(parents=True)
    run(sys.executable, "-m", "venv", tools, folder=outside)
    run(tools / "bin/python", *pip, "build", "twine", folder=outside)
    run(tools / "bin/python", "-m", "build", "--outdir", folder / "dist", ROOT, folder=outside)
    packages = sorted((folder / "dist").iterdir())
    run(tools / "bin/twine", "check", "--strict", *packages, folder=outside)

    (wheel,) = (path for path in packages if path.suffix == ".whl")
    wrong = contents(set(zipfile.ZipFile(wheel).namelist()), tracked_files())
    if wheel.stat().st_size > MAX_MEGABYTES * 1e6:
        wrong.append(f"{wheel.name} has {wheel.stat().st_size / 1e6:.0f} MB, expected at most {MAX_MEGABYTES}")
    if wrong:
        sys.exit("\n".join(wrong))

    run(sys.executable, "-m", "venv", environment, folder=outside)
    run(environment / "bin/python", *pip, "--constraint", ROOT / "constraints.txt", wheel, folder=outside)
    (outside / "texts").mkdir()
    (outside / "texts/tower.md").write_text("# Orm Tower\n\nAda Tarn designed the tower.\n", encoding="utf-8")
    stepladder = environment / "bin/stepladder"
    run(stepladder, "index", "build", "texts", "--out", "index", folder=outside)
    for words in COMMANDS:
        run(stepladder, *words, folder=outside)
    if demo:
        run(stepladder, "demo", folder=outside)
    print("the wheel works")


def main() -> None:
    """Read the arguments, and check in a temporary folder unless one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="run the whole demo as well")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR, and keep it")
    options = parser.parse_args()
    if options.keep:
        check(options.keep.resolve(), demo=options.demo)
        return
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), demo=options.demo)


if __name__ == "__main__":
    main()
