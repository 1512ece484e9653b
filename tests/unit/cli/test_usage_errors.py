"""Old flags and values are errors that name the new ones."""

import pytest
import typer

from stepladder import cli
from stepladder.cli.usage_errors import RENAMED_FLAGS, RENAMED_VALUES


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
        (["serve-agent", "--max-playing", "8"], "--max-playing was renamed to --max-running"),
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
    assert "there is no option --lr" in printed
    assert "renamed" not in printed


def test_new_flags_exist_and_old_ones_do_not() -> None:
    flags = set.union(*flags_by_command().values())
    assert set(RENAMED_FLAGS.values()) <= flags
    assert flags.isdisjoint(RENAMED_FLAGS)
    assert set(RENAMED_VALUES) <= flags


def test_one_flag_for_one_thing() -> None:
    for command, flags in flags_by_command().items():
        assert ("-k" in flags) == ("--topk" in flags), command


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("report runs/x", "stepladder report --run runs/x"),
        ("report runs/x page.html", "stepladder report --run runs/x --out page.html"),
        ("tree runs/x", "stepladder tree --run runs/x"),
        ("tree runs/x q1 --json", "stepladder tree --run runs/x q1 --json"),
        ("export runs/x out --to trl", "stepladder export --run runs/x --out out --to trl"),
        ("adapter runs/x --out y", "stepladder adapter --run runs/x --out y"),
        ("serve-agent runs/x", "stepladder serve-agent --run runs/x"),
        ("pairs runs/x", "stepladder pairs --run runs/x"),
        ("prm runs/x", "stepladder prm --run runs/x"),
        ("train grpo runs/x --mode outcome", "stepladder train grpo --run runs/x --mode outcome"),
        ("eval runs/x", "stepladder eval --run runs/x"),
        ("run prorag-nano runs/x", "stepladder run prorag-nano --out runs/x"),
        ("index build texts my-index", "stepladder index build texts --out my-index"),
    ],
)
def test_a_run_or_an_output_without_its_flag(capsys: pytest.CaptureFixture[str], typed: str, advice: str) -> None:
    assert cli.main(typed.split()) == 2
    what = "run is given with --run" if "--run" in advice else "output is given with --out"
    assert capsys.readouterr().err == f"error: the {what}: {advice}\n"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("repot", "No such command 'repot'. Did you mean 'report'"),
        ("train gpo", "No such command 'gpo'. Did you mean 'grpo'"),
        ("report --otu x", "there is no option --otu. Did you mean '--out'? `stepladder report --help` lists"),
        ("eval --api cht", "'cht' is not one of 'chat', 'completions'. Did you mean 'chat'?"),
        ("eval --limit many", "Invalid value for '--limit': expected an integer."),
        ("eval --limit 0", "Invalid value for '--limit': expected greater than or equal to 1."),
        ("report", "--run DIR is missing: The run. `stepladder report --help` lists the options"),
        ("ask Where is Rome --model nano", "put the words in quotes: stepladder ask --model nano 'Where is Rome'"),
        (
            "index search . who built it",
            "put the words in quotes: stepladder index search . 'who built it'",
        ),
        ("train grpo --out x", "there is no option --out: this command takes an existing run, --run DIR."),
        ("train sft --run x", "there is no option --run: this command starts a run, --out DIR."),
        ("compare --run x", "there is no option --run: runs are positional here, stepladder compare DIR DIR."),
        ("serve atlas-small -k 5 --max-topk 2", "error: --topk is 5, above --max-topk, 2"),
        ("recipes prorag", "unknown recipe 'prorag'. Did you mean 'prorag-nano'?"),
        ("study rl-mods", "unknown study 'rl-mods'. Did you mean 'rl-modes'?"),
        ("run prorag-nano --out x --yes", "--yes confirms what --update deletes: add --update, or leave it out"),
    ],
)
def test_a_usage_error_is_one_line_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str], typed: str, message: str
) -> None:
    assert cli.main(typed.split()) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    "typed",
    [
        "eval --model m --base-url http://x/v1 --out o --policy-budget",
        "eval --answer-judge m --out o --budget",
        "explore --out r --model m --base-url http://x/v1 --policy-budget",
        "explore --run r --model m --base-url http://x/v1 --policy-budget",
        "explore --out r --judge-model m --budget",
        "pairs --run r --judge-model m --budget",
        "train sft --out r --source teacher --teacher-model m --teacher-budget",
    ],
)
def test_a_wrong_budget_is_named_as_it_was_typed(capsys: pytest.CaptureFixture[str], typed: str) -> None:
    flag = typed.split()[-1]
    assert cli.main([*typed.split(), "5"]) == 2
    printed = " ".join(capsys.readouterr().err.replace("│", "").split())
    assert f"'{flag}': budget is '5'; expected US dollars or tokens, such as 5usd" in printed


@pytest.mark.parametrize("command", ["ask", "eval", "serve-agent"])
def test_a_budget_without_a_folder_names_the_commands_that_have_one(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert cli.main([command, "--model", "m", "--base-url", "http://x/v1", "--policy-budget", "2Mtok"]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert "--policy-budget needs a folder that keeps the spend: it works with `eval --out DIR`" in printed
