"""The memory of a recipe is the limit of its caches, and no part of its results."""

import pytest

from stepladder.core import memory
from stepladder.core.errors import StepladderError
from stepladder.pipeline.fingerprint import all_ingredients
from stepladder.pipeline.recipe import load_recipe
from stepladder.pipeline.resources import RunContext, SharedConfig


@pytest.fixture(autouse=True)
def own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_limit", None)


@pytest.mark.parametrize("written", ["8MB", 8_000_000])
def test_the_setting_is_the_limit_of_all_caches(written: object) -> None:
    RunContext(SharedConfig.read({"memory": written}))
    assert memory.cache_bytes("prefixes") == 6_000_000


def test_it_does_not_make_stages_stale() -> None:
    plain, limited = load_recipe("prorag-nano"), load_recipe("prorag-nano", ["memory=1GB"])
    assert all_ingredients(plain) == all_ingredients(limited)


@pytest.mark.parametrize("written", ["much", "2 elephants"])
def test_an_amount_that_cannot_be_read(written: str) -> None:
    expected = f"^memory: expected an amount such as 500MB or 2GB, found '{written}'$"
    with pytest.raises(StepladderError, match=expected):
        SharedConfig.read({"memory": written})
