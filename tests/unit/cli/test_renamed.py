"""Old flags and values are errors that name the new ones."""

import pytest
import typer

from stepladder import cli
from stepladder.cli.renamed import RENAMED_FLAGS, RENAMED_VALUES


def flags_by_command() -> dict[str, set[str]]:
    """The flags of every command, by its full name."""
    found = {}

    def visit(name: str, command: object) -> None:
        for child, each in getattr(command, "commands", {}).items():
            visit(f"{name} {child}", each)
        found[name] = {flag for param in getattr(command, "params", ()) for flag in param.opts}

    visit("stepladder", typer.main.get_command(cli.app))
    return found


@pytest.mark.parametrize(
    ("arguments", "new"),
    [
        (["train", "sft", "--out", "x", "--lr", "1e-3"], "--lr was renamed to --learning-rate"),
        (["train", "grpo", "--run", "x", "--lr=1e-3"], "--lr was renamed to --learning-rate"),
        (["train", "dpo", "--run", "x", "--epochs", "2"], "--epochs was renamed to --num-train-epochs"),
        (["train", "rft", "--run", "x", "--samples", "4"], "--samples was renamed to --num-generations"),
        (["prm", "--run", "x", "--samples", "4"], "--samples was renamed to --num-generations"),
        (["train", "dpo", "--run", "x", "--loss", "ipo"], "--loss was renamed to --loss-type"),
        (["train", "sft", "--out", "x", "--teacher", "http://x/v1"], "--teacher was renamed to --teacher-url"),
        (["eval", "--batch", "8"], "--batch was renamed to --batch-size"),
        (["serve-agent", "x", "--max-playing", "8"], "--max-playing was renamed to --max-running"),
        (["ask", "--k", "2"], "--k was renamed to --topk"),
        (["index", "search", "x", "y", "--k", "2"], "--k was renamed to --topk"),
        (["ask", "--engine", "gold"], "'gold' was renamed to 'oracle'"),
        (["eval", "--engine", "gold"], "'gold' was renamed to 'oracle'"),
    ],
)
def test_an_old_name_is_an_error_that_names_the_new_one(
    capsys: pytest.CaptureFixture[str], arguments: list[str], new: str
) -> None:
    assert cli.main(arguments) == 2
    printed = " ".join(capsys.readouterr().err.replace("│", "").split())
    assert new in printed


def test_an_old_flag_that_the_command_never_had_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "x", "--lr", "1"]) == 2
    printed = capsys.readouterr().err
    assert "No such option: --lr" in printed
    assert "renamed" not in printed


def test_new_flags_exist_and_old_ones_do_not() -> None:
    flags = set.union(*flags_by_command().values())
    assert set(RENAMED_FLAGS.values()) <= flags
    assert flags.isdisjoint(RENAMED_FLAGS)
    assert set(RENAMED_VALUES) <= flags


def test_one_flag_for_one_thing() -> None:
    for command, flags in flags_by_command().items():
        assert ("-k" in flags) == ("--topk" in flags), command
