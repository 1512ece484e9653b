"""Token prices by model, and budgets.

In: the path of a user's own price file, which overrides the shipped `prices.yaml`, or a budget as users write it. Out:
a `PriceTable`, whose errors name the file and the entry; a `Budget`.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import yaml  # type: ignore[import-untyped]
from pydantic import Field

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Usage

#: The price table shipped with Stepladder.
SHIPPED = Path(__file__).with_name("prices.yaml")

#: Decimal, so that sums of money are exact.
_Dollars = Annotated[Decimal, Field(ge=0)]


_BUDGET = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(usd|tok|ktok|mtok)", re.IGNORECASE)
_TOKENS = {"tok": 1, "ktok": 1_000, "mtok": 1_000_000}


class Price(Config):
    """US dollars per million tokens."""

    input: _Dollars
    output: _Dollars

    def of(self, usage: Usage) -> Decimal:
        """The cost of tokens in US dollars.

        >>> Price(input=2.5, output=10).of(Usage(read=1_000, written=100))
        Decimal('0.0035')
        """
        return (usage.read * self.input + usage.written * self.output) / 1_000_000


class _PriceFile(Config):
    models: dict[str, Price]


class PriceTable(dict[str, Price]):
    """Prices by model name: the shipped ones, overridden by those of a user's file."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(_read(SHIPPED) | (_read(path) if path is not None else {}))
        #: The file to which a missing price can be added.
        self.path = path or SHIPPED

    def need(self, model: str) -> Price:
        """The price of a model; raises an error if it is unknown."""
        if model not in self:
            raise StepladderError(
                f"model '{model}' has no price in {self.path}. Give a price file with the line "
                f"`{model}: {{input: ..., output: ...}}` below `models:` (US dollars per million tokens), "
                "or a budget in tokens, such as 2Mtok"
            )
        return self[model]


def _read(path: Path) -> dict[str, Price]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StepladderError(f"price file {path} cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StepladderError(f"price file {path} is not YAML: {error}") from error
    return _PriceFile.read(data, str(path)).models


@dataclass(frozen=True, slots=True)
class Budget:
    """A spending limit in US dollars, or in tokens (read plus written)."""

    limit: Decimal
    unit: Literal["usd", "tok"]

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Parse a budget as users write it.

        >>> print(Budget.parse("0.5usd"), Budget.parse("2Mtok"), Budget.parse("300ktok"))
        0.5usd 2000000tok 300000tok
        """
        match = _BUDGET.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"budget is {text!r}; expected US dollars or tokens, such as 5usd, 0.5usd, 2Mtok, 300ktok or 1500tok"
            )
        amount, unit = Decimal(match[1]), match[2].lower()
        if unit == "usd":
            return cls(amount, "usd")
        tokens = amount * _TOKENS[unit]
        if tokens != int(tokens):
            raise ValueError(f"budget is {text!r}, which is not a whole number of tokens")
        return cls(Decimal(int(tokens)), "tok")

    def __str__(self) -> str:
        return f"{self.limit}{self.unit}"

    def format(self, amount: Decimal) -> str:
        """An amount in the budget's unit, for messages."""
        return f"${amount:.4f}" if self.unit == "usd" else f"{amount:,} tokens"
