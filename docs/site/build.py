"""Prepares the documentation site: copies the pages, generates the reference, follows links out of `docs`.

    python docs/site/build.py                # build/docs; `zensical build --strict` makes build/site of it: `make docs`
    python docs/site/build.py --reference    # writes docs/reference anew: options and recipe keys, from the code

In: the pages of `docs` with their pictures, some pages from elsewhere in the repository (`OUTSIDE`), and the code. Out:
the folder `build/docs`, with pages for the Python API. `docs/reference` is committed, so that links to it work wherever
the pages are read; a stale one is an error.
"""

import argparse
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import api_reference
import cli_reference
import recipe_reference

from stepladder.core.errors import StepladderError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
STAGED = ROOT / "build" / "docs"
#: Pages from outside of `docs`: where they are, and where they are on the site.
OUTSIDE = {
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "recipes/README.md": "recipes.md",
    "benchmarks/results/README.md": "benchmarks/records.md",
    "benchmarks/results/first-error.md": "benchmarks/first-error.md",
    "benchmarks/results/tree-concurrency.md": "benchmarks/tree-concurrency.md",
    "benchmarks/results/zero-shot-1.5b.md": "benchmarks/zero-shot-1.5b.md",
    "benchmarks/results/zero-shot-smollm2.md": "benchmarks/zero-shot-smollm2.md",
    "examples/smollm2-prorag/README.md": "examples/smollm2-prorag.md",
    "src/stepladder/models/nano/README.md": "models/nano.md",
    "src/stepladder/models/nano-critic/README.md": "models/nano-critic.md",
}
#: A link whose text is the name of a page.
_NAMED = re.compile(r"\[[\w-]+\.md\](?=\(([^)\s#]+\.md))")
_INTERVAL = re.compile(r"[-+]?\d[\d.,%]* \[[-+\d.]+, [-+\d.]+\]")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def staged_pages() -> dict[str, str]:
    """All Markdown pages by their path on the site, with their links made to fit."""
    found = (path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md")))
    sources = {f"docs/{path}": path for path in found} | OUTSIDE
    texts = {source: (ROOT / source).read_text("utf-8") for source in sources}
    pages = {site: relink(titled(texts[source], source, texts), source, sources) for source, site in sources.items()}
    return {site: unbroken(text) for site, text in (pages | api_reference.pages()).items()}


def unbroken(text: str) -> str:
    """The text of a page with intervals in tables that stay in one line.

    >>> unbroken("| 0.5 [0.4, 0.6] |") == "| 0.5\\u00a0[0.4,\\u00a00.6] |"
    True
    >>> unbroken("F1 is 0.5 [0.4, 0.6].")
    'F1 is 0.5 [0.4, 0.6].'
    """
    lines = (
        _INTERVAL.sub(lambda found: found[0].replace(" ", "\u00a0"), line) if line.startswith("|") else line
        for line in text.split("\n")
    )
    return "\n".join(lines)


def titled(text: str, source: str, texts: Mapping[str, str]) -> str:
    """The text of a page with the titles of pages where it names their files.

    >>> titled("See [a.md](a.md#b) and [this](a.md).", "docs/c.md", {"docs/a.md": "# Search trees"})
    'See [Search trees](a.md#b) and [this](a.md).'
    """

    def title(found: re.Match[str]) -> str:
        page = texts.get(os.path.normpath(Path(source).parent / found[1]), "")
        heading = re.match(r"# (.+)", page)
        return f"[{heading[1]}]" if heading else found[0]

    return _NAMED.sub(title, text)


def reference_pages() -> dict[str, str]:
    """The pages of `docs/reference`, by their path in `docs`."""
    return {"reference/cli.md": cli_reference.page(), **recipe_reference.pages()}


def stale_reference() -> list[str]:
    """The pages of `docs/reference` that are not what the code gives, or that it does not give at all."""
    wanted = reference_pages()
    present = {path.relative_to(DOCS).as_posix(): path.read_text("utf-8") for path in REFERENCE.rglob("*.md")}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def write_reference() -> None:
    """Write `docs/reference` anew."""
    shutil.rmtree(REFERENCE, ignore_errors=True)
    for name, text in reference_pages().items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")


def relink(text: str, source: str, sources: dict[str, str]) -> str:
    """The text of a page with its relative links as they are on the site.

    A link to another page is a link to its place on the site. Any other file is copied to `files`, below the path that
    it has in the repository; pictures of `docs` keep their place.

    >>> relink("[a](../SECURITY.md#code)", "docs/a.md", {"docs/a.md": "a.md", "SECURITY.md": "security.md"})
    '[a](security.md#code)'
    """
    here = Path(sources[source]).parent

    def target(found: re.Match[str]) -> str:
        path = os.path.normpath(Path(source).parent / found[1])
        anchor = found[2] or ""
        place = sources.get(path) or path.removeprefix("docs/")
        if path not in sources and not path.startswith("docs/"):
            place = f"files/{path}"
        if path not in sources and not (ROOT / path).is_file():
            raise StepladderError(f"{source} links to {found[1]}, which is no file and so has no place on the site")
        return os.path.relpath(place, here) + anchor

    return _LINK.sub(target, text)


def write(pages: dict[str, str]) -> None:
    """Write the pages, and copy what they show or link to besides."""
    shutil.rmtree(STAGED, ignore_errors=True)
    for name in ("images", "studies", "site/assets"):
        shutil.copytree(DOCS / name, STAGED / Path(name).name)
    for path in DOCS.glob("*.svg"):
        shutil.copy(path, STAGED)
    for name, text in pages.items():
        page = STAGED / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        for found in _LINK.finditer(text):
            place = os.path.normpath(page.parent / found[1])
            source = Path(place.replace(f"{STAGED / 'files'}{os.sep}", f"{ROOT}{os.sep}"))
            if str(STAGED / "files") in place and not Path(place).exists():
                Path(place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, place)


def main() -> None:
    """Write the reference, or check it and stage the site."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", action="store_true", help="write docs/reference anew, and nothing else")
    try:
        if parser.parse_args().reference:
            write_reference()
            return
        if stale := stale_reference():
            raise StepladderError(
                f"{', '.join(stale)}: the code has changed. Run: python docs/site/build.py --reference"
            )
        write(staged_pages())
    except StepladderError as error:
        raise SystemExit(str(error)) from None
    print(f"{STAGED.relative_to(ROOT)}: {sum(1 for _ in STAGED.rglob('*.md'))} pages")


if __name__ == "__main__":
    main()
