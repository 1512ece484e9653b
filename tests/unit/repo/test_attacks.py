"""The check of attacks: an attack that was not made does not count as held, and every attack says what it does."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import ROOT


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "checks"))
    import attacks  # type: ignore[import-not-found]

    return attacks


def made(attacks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **each: object) -> int:
    """The exit status with these attacks alone."""
    monkeypatch.setattr(attacks, "ATTACKS", each)
    monkeypatch.setattr(sys, "argv", ["attacks.py", "--out", str(tmp_path)])
    return int(attacks.main())


def test_only_what_was_attacked_and_held_counts(
    attacks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_run(*_: object) -> None:
        raise attacks.NotRun("no such command")

    def breaks(*_: object) -> None:
        raise KeyError("here")

    held, fallen = (lambda *_: None), (lambda *_: "it ran")
    assert made(attacks, monkeypatch, tmp_path, one=held, two=held) == 0
    for outcome, words in ((fallen, "FALLS: it ran"), (not_run, "not run: no such command"), (breaks, "not run: Key")):
        assert made(attacks, monkeypatch, tmp_path, one=held, two=outcome) == 1
        assert words in capsys.readouterr().out
    assert made(attacks, monkeypatch, tmp_path) == 1, "no attack, nothing shown"


def test_every_attack_says_what_it_does(attacks: ModuleType) -> None:
    assert len(attacks.ATTACKS) > 20
    assert [name for name, each in attacks.ATTACKS.items() if not each.__doc__] == []


@pytest.mark.slow
def test_an_attack_on_this_version_holds(attacks: ModuleType, tmp_path: Path) -> None:
    version = attacks.Version("working tree", ROOT, tmp_path)
    assert attacks.outcome("added tokens of the tokenizer", version) == attacks.HOLDS
