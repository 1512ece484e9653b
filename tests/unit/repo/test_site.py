"""The documentation site: the reference is what the code gives, every page is in the navigation, nothing is loaded."""

import doctest
import importlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from stepladder import __all__ as public_names
from stepladder.core.errors import StepladderError
from stepladder.pipeline.stages import STAGES, get_stage
from tests.support import ROOT

sys.path.append(str(ROOT / "docs/site"))  # scripts, which find each other beside them
build = importlib.import_module("build")

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """All pages of the site in Markdown, by path."""
    found: dict[str, str] = build.staged_pages()
    return found


def pages_in(nav: Any) -> Iterator[str]:
    """The pages of a navigation, at any depth."""
    match nav:
        case str():
            yield nav
        case list():
            for each in nav:
                yield from pages_in(each)
        case dict():
            for each in nav.values():
                yield from pages_in(each)


def test_the_reference_is_what_the_code_gives() -> None:
    assert build.stale_reference() == [], "run: python docs/site/build.py --reference"


def test_every_page_is_in_the_navigation_once(pages: dict[str, str]) -> None:
    listed = list(pages_in(CONFIG["nav"]))
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(pages)


def test_every_setting_of_every_stage_has_a_heading_with_its_default(pages: dict[str, str]) -> None:
    for kind in STAGES:
        page = pages[f"reference/stages/{kind}.md"]
        for key in get_stage(kind).config.model_fields:
            assert f"### `{key}`\n" in page
    assert "### `process_weight`\n\n*number >= 0, default `0.3`*\n" in pages["reference/stages/grpo.md"]
    assert "### `rewards.f1_weight`\n\n*number > 0, default `2`*\n" in pages["reference/stages/grpo.md"]


def test_every_public_name_is_in_the_python_reference(pages: dict[str, str]) -> None:
    text = "".join(text for name, text in pages.items() if name.startswith("reference/api/"))
    documented = set(re.findall(r"^::: [\w.]+\.(\w+)$", text, re.MULTILINE))
    assert documented == set(public_names) - {"__version__"}


def test_every_command_is_in_the_reference_with_its_options(pages: dict[str, str]) -> None:
    page = pages["reference/cli.md"]
    assert {"## `stepladder ask`", "## `stepladder train grpo`", "## `stepladder index build`"} <= set(
        page.splitlines()
    )
    assert "- `--seed N`: Random seed. (default: 0)" in page


def test_links_out_of_the_docs_lead_to_their_place_on_the_site() -> None:
    sources = {"docs/a.md": "a.md", "SECURITY.md": "security.md", "docs/reference/b.md": "reference/b.md"}
    assert build.relink("[x](../SECURITY.md#code)", "docs/a.md", sources) == "[x](security.md#code)"
    assert build.relink("[x](../Makefile)", "docs/a.md", sources) == "[x](files/Makefile)"
    assert build.relink("[x](../../SECURITY.md)", "docs/reference/b.md", sources) == "[x](../security.md)"
    assert build.relink("[x](https://a.b/c) [y](#z)", "docs/a.md", sources) == "[x](https://a.b/c) [y](#z)"
    with pytest.raises(StepladderError, match=r"docs/a.md links to \.\./gone.txt"):
        build.relink("[x](../gone.txt)", "docs/a.md", sources)


def test_the_site_loads_nothing_from_the_network(pages: dict[str, str]) -> None:
    assert CONFIG["theme"]["font"] is False
    assert not re.search(r"https?://", yaml.safe_dump({key: CONFIG[key] for key in ("extra_css", "plugins", "extra")}))
    for name, text in pages.items():
        assert "```mermaid" not in text, f"{name}: a Mermaid diagram loads its library from the network"
        assert not re.search(r"!\[[^\]]*\]\(https?://", text), f"{name} shows a picture from the network"


@pytest.mark.parametrize("module", ["build", "cli_reference", "recipe_reference"])
def test_examples_in_the_scripts_of_the_site_are_right(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
