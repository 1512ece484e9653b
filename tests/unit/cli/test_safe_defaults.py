"""What a user would regret is no default: the oracle's scores are told from a model's, questions fit the corpus."""

import ast
import inspect
import json
from pathlib import Path
from typing import get_args

import pytest

import stepladder as sl
from stepladder import cli
from stepladder.cli import ask_eval, explore, serve
from tests.support.shell import Shell, shell

__all__ = ["shell"]

NOTICE = "The oracle answers, not a model. It sees the gold answers: its scores are an upper bound."
BRIEF = ("--agent", "rag", "--max-tokens", "2", "--limit", "1")


@pytest.mark.parametrize("command", [["ask"], ["eval", "--limit", "2"], ["eval", "--limit", "2", "--json"]])
@pytest.mark.parametrize("engine", [[], ["--engine", "oracle"]])
def test_the_oracle_is_announced_before_anything_else(shell: Shell, command: list[str], engine: list[str]) -> None:
    _, notes = shell.run(*command, *engine)
    assert notes.startswith(NOTICE)
    assert "--model nano or --run DIR" in notes.splitlines()[0]


def test_a_model_is_not_announced_as_the_oracle(shell: Shell, tmp_path: Path) -> None:
    out, notes = shell.run("eval", "--model", "tiny", *BRIEF, "--out", tmp_path / "mine")
    assert "oracle" not in notes
    assert "upper bound" not in out
    assert json.loads((tmp_path / "mine" / "summary.json").read_text())["upper_bound"] is False


def test_results_of_the_oracle_say_that_they_are_an_upper_bound(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shell("eval", "--limit", 2, "--out", tmp_path / "best")
    assert out.startswith("prorag by oracle (upper bound) on atlas test, 2 questions")
    summary = json.loads((tmp_path / "best" / "summary.json").read_text())
    assert (summary["engine"], summary["upper_bound"]) == ("oracle", True)
    shell("eval", "--model", "tiny", "--agent", "rag", "--max-tokens", 2, "--limit", 2, "--out", tmp_path / "mine")
    assert "best (upper bound)" in shell("compare", tmp_path / "best", tmp_path / "mine")
    assert shell.json("compare", tmp_path / "mine", tmp_path / "best", "--against", "best")["reference"] == (
        "best (upper bound)"
    )
    assert shell("eval", "--limit", 2, "--against", tmp_path / "best").count("vs. the other run") == 2
    evaluation = sl.evaluate("oracle", "atlas", limit=2, agent="prorag")
    assert repr(evaluation).endswith("upper bound)")
    evaluation.show()
    assert "evaluation (upper bound), 2 questions" in capsys.readouterr().out


def test_old_evaluations_of_the_oracle_are_labeled_too(shell: Shell, tmp_path: Path) -> None:
    shell("eval", "--limit", 2, "--out", tmp_path / "old")
    file = tmp_path / "old" / "summary.json"
    old = {name: value for name, value in json.loads(file.read_text()).items() if name != "upper_bound"}
    file.write_text(json.dumps(old))
    assert shell.json("compare", tmp_path / "old")["arms"][0]["label"] == "old (upper bound)"


def test_candidates_chosen_by_the_gold_judge_are_an_upper_bound(shell: Shell) -> None:
    arguments = ("eval", "--model", "tiny", *BRIEF, "--guide", "gold", "--n", "2")
    out, notes = shell.run(*arguments)
    assert notes.startswith("The gold judge chooses among the candidates. It sees the gold answers")
    assert "tiny (upper bound)" in out


def test_exploring_with_the_oracle_is_announced(shell: Shell, tmp_path: Path) -> None:
    search = ("--questions", 1, "--simulations", 1, "--width", 1)
    _, notes = shell.run("explore", "--out", tmp_path / "run", *search, "--set", "policy=oracle")
    assert notes.startswith(NOTICE)


def test_questions_of_atlas_are_not_scored_over_a_foreign_index(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "Rome.txt").write_text("Rome is a city in Italy.")
    shell("index", "build", tmp_path / "texts", "--out", tmp_path / "mine")
    for command, advice in (("eval", "add --data FILE"), ("ask", "give a question, or add --data FILE")):
        told = " ".join(shell(command, "--agent", "rag", "--index", tmp_path / "mine", code=2).split())
        assert "without --data the questions are those of atlas, and " in told
        assert f"mine has none of its passages: {advice}" in told
    given = ("--limit", 1, "--index", tmp_path / "mine", "--data", "atlas")
    assert shell.json("eval", "--agent", "rag", *given)["questions"] == 1
    shell("index", "build", "atlas", "--out", tmp_path / "atlas")
    assert shell.json("eval", "--limit", 1, "--index", tmp_path / "atlas")["em"]["mean"] == 1.0
    assert shell.json("ask", "--index", tmp_path / "atlas")["upper_bound"] is True
    assert "upper_bound" not in shell.json("ask", "--model", "tiny", "--agent", "rag", "--max-tokens", 2)


def test_a_run_to_serve_is_named_with_run(shell: Shell, tmp_path: Path) -> None:
    told = " ".join(shell("serve-agent", tmp_path / "run", "--port", 1, code=2).split())
    assert f"the run is given with --run: stepladder serve-agent --run {tmp_path / 'run'} --port 1" in told
    assert "add --run DIR or --model NAME" in shell("serve-agent", code=2)


def test_no_function_of_the_command_line_has_many_parameters() -> None:
    many = {}
    for path in Path(cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                count = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
                if count > 12:
                    many[f"{path.name}:{node.name}"] = count
    assert many == {}


def test_an_option_of_several_commands_is_declared_once() -> None:
    commands = (ask_eval.ask_command, ask_eval.eval_command, serve.serve_agent_command, explore.explore_command)
    options = [
        {name: get_args(each.annotation)[1] for name, each in inspect.signature(command).parameters.items()}
        for command in commands
    ]
    for name in ("agent", "data", "index", "topk", "world_seed"):
        assert len({(each[name].param_decls, each[name].help) for each in options}) == 1, name
    for name in ("model", "stage", "temperature", "guide", "n", "max_steps", "run"):
        assert len({(each[name].param_decls, each[name].help) for each in options[:3]}) == 1, name
