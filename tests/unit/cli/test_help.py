"""What --help says: every option with a value shows its default, and defaults are those of the settings."""

import re

import pytest
import typer

from stepladder import cli
from stepladder.cli.declarations import setting_default
from stepladder.pipeline.stages import get_stage
from stepladder.train.loop.config import TrainingConfig


def options() -> list[tuple[str, object]]:
    """Every option that takes a value, with the command that it belongs to."""
    found: list[tuple[str, object]] = []

    def visit(name: str, command: object) -> None:
        for child, each in getattr(command, "commands", {}).items():
            visit(f"{name} {child}", each)
        for param in getattr(command, "params", ()):
            if param.param_type_name == "option" and not param.is_flag:
                found.append((f"{name} {param.opts[0]}", param))

    visit("stepladder", typer.main.get_command(cli.app))
    return found


@pytest.mark.parametrize(("name", "param"), options(), ids=lambda each: each if isinstance(each, str) else "")
def test_an_option_is_required_or_shows_its_default(name: str, param: object) -> None:
    shown = getattr(param, "show_default", False) and getattr(param, "default", None) is not None
    assert param.required or shown or "(default: " in param.help, f"{name} shows no default"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["sft", "prm", "rft", "dpo", "grpo"])
def test_the_defaults_of_a_trainer_are_those_of_its_settings(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", kind, "--help"]) == 0
    printed = " ".join(re.sub("[│\n]", " ", capsys.readouterr().out).split())
    config = get_stage(kind).config
    assert issubclass(config, TrainingConfig)
    for name in ("num_train_epochs", "questions", "num_generations", "beta", "mode", "objective", "keep"):
        if (flag := f"--{name.replace('_', '-')} ") in printed:
            assert f"(default: {setting_default(config, name)})" in printed.partition(flag)[2].partition(" --")[0]
    rate = re.search(r"--learning-rate .*?\(default: (\S+) below 20M parameters, (\S+) below 1B, else (\S+);", printed)
    assert rate is not None
    assert tuple(map(float, rate.groups())) == config.auto_rates


def test_the_number_of_passages_has_one_name() -> None:
    for name, param in options():
        flags = set(param.opts)  # type: ignore[attr-defined]
        assert flags.isdisjoint({"--k", "--top-k", "--num-passages"}), name
        if "--topk" in flags:
            assert "-k" in flags, name
            assert param.help.startswith("Passages per "), name  # type: ignore[attr-defined]


def test_a_run_is_named_by_an_option_in_every_command() -> None:
    for _, param in options():
        if "--run" in param.opts:  # type: ignore[attr-defined]
            assert not param.hidden  # type: ignore[attr-defined]


def test_without_arguments_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["train"], ["index"]):
        assert cli.main(command) == 2
        printed = capsys.readouterr()
        assert "Commands" in printed.out
        assert "error" not in printed.err
