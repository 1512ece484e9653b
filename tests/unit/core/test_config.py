"""Config refuse what they do not understand, in one line that says what to do."""

from typing import Literal

import pytest
from pydantic import Field, PositiveFloat

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError


class Search(Config):
    k: int = Field(default=3, ge=1)
    rerank: bool = False


class Whole(Config):
    search: Search = Search()
    extra: Search | None = None
    rate: float = 0.1
    dtype: Literal["auto", "fp32"] = "auto"
    sizes: tuple[int, ...] = ()
    shares: dict[str, PositiveFloat] = Field(default_factory=dict)
    speed: Literal["auto"] | PositiveFloat = "auto"


def test_plain_data_becomes_typed_settings() -> None:
    whole = Whole.read({"search": {"k": 2}, "rate": "1e-4"})
    assert (whole.search.k, whole.rate) == (2, 1e-4)  # YAML reads 1e-4 as text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"serach": {}}, "f.yaml: serach: unknown key. Did you mean 'search'? Known: search, extra, rate"),
        ({"search": {"K": 2, "kk": 1}}, "f.yaml: search.K: unknown key. Did you mean 'k'? Known: k, rerank"),
        ({"search": {"rerun": 2}}, "f.yaml: search.rerun: unknown key. Did you mean 'rerank'? Known: k, rerank"),
        ({"extra": {"rerun": 2}}, "f.yaml: extra.rerun: unknown key. Did you mean 'rerank'? Known: k, rerank"),
        ({"search": {"k": "many"}}, "f.yaml: search.k: expected an integer, found 'many'"),
        ({"search": {"k": None}}, "f.yaml: search.k: expected an integer, found nothing"),
        ({"speed": "fast"}, "f.yaml: speed: expected 'auto' or a number, found 'fast'"),
        ({"speed": -1}, "f.yaml: speed: expected 'auto' or greater than 0, found -1"),
        ({"speed": {}}, "f.yaml: speed: expected 'auto' or a number, found {}"),
        ({"search": {"k": 0}}, "f.yaml: search.k: expected greater than or equal to 1, found 0"),
        ({"search": {"k": True}}, "f.yaml: search.k: expected a number, found true"),
        ({"search": 3}, "f.yaml: search: expected settings as `name: value`, found 3"),
        ({"rate": float("nan")}, "f.yaml: rate: expected a finite number, found nan"),
        ({"dtype": "fp16"}, "f.yaml: dtype: expected 'auto' or 'fp32', found 'fp16'"),
        ({"sizes": [1, "x"]}, "f.yaml: sizes.1: expected an integer"),
        ({"sizes": 1}, "f.yaml: sizes: expected a list, found 1"),
        ({"shares": {"a": 1, "b": -1}}, "f.yaml: shares.b: expected greater than 0, found -1"),
        ({"dtype": "fp23"}, "f.yaml: dtype: expected 'auto' or 'fp32', found 'fp23'. Did you mean 'fp32'?"),
        (["search"], "f.yaml: expected settings as `name: value`, found ['search']"),
    ],
)
def test_a_mistake_is_one_line_with_place_found_and_expected(data: object, message: str) -> None:
    with pytest.raises(StepladderError) as error:
        Whole.read(data, "f.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_field_is_named() -> None:
    class Needs(Config):
        url: str

    with pytest.raises(StepladderError, match=r"^url: is missing$"):
        Needs.read({})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Search().k = 4  # type: ignore[misc]
