"""`explore`, `pairs` and `export`, typed as a user would, with a policy that wanders and a judge behind HTTP."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import test_engine_openai
from conftest import PASSAGES, WordRetriever
from stepladder import cli
from stepladder.engines.base import Engine
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.store import read_trees
from stepladder.records import read_records
from stepladder.run.folder import RunFolder
from stepladder.trace import Pair
from stepladder.workshop import Workshop
from test_engine_openai import Answer, Server, says
from test_mcts import stroll

server = test_engine_openai.server

QUESTION = {
    "question": "Where was the architect of Orm Tower born?",
    "golden_answers": ["Velm"],
    "metadata": {},
}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"id": f"q{number}", **QUESTION}) + "\n" for number in range(12)))
    return path


@pytest.fixture(autouse=True)
def _wandering_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def engine(self: Workshop, policy: str) -> Iterator[Engine]:
        yield ScriptedEngine(stroll)

    monkeypatch.setattr(Workshop, "engine", engine)
    monkeypatch.setattr(Workshop, "retriever", WordRetriever(PASSAGES))
    monkeypatch.setattr(Workshop, "check_index", lambda self: None)


class Shell:
    """Types commands and looks at what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> str:
        found = cli.main([str(each) for each in arguments])
        printed = self.capsys.readouterr()
        assert found == code, printed
        return printed.out if code == 0 else printed.err

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def explored(shell: Shell, questions: Path, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    given = ("--model", "tiny", "--data", questions, "--agent", "prorag-brief", "--simulations", 20)
    shell("explore", "--out", run, *given)
    return run


def test_trees_and_pairs_of_a_question_file(shell: Shell, explored: Path) -> None:
    trees = list(read_trees(explored / "explore" / "trees.jsonl.gz"))
    assert len(trees) == 12
    assert max(tree.nodes[0].visits for tree in trees) <= 20
    printed = shell("pairs", "--run", explored)
    assert "explore: done" in printed
    assert re.search(r"pairs +spre +[1-9]", printed)
    pairs = {
        split: list(read_records(explored / "pairs" / "pairs" / f"{split}.jsonl", Pair)) for split in ("train", "dev")
    }
    stats = json.loads((explored / "pairs" / "pairs" / "stats.json").read_text())
    assert (stats["train"], stats["dev"]) == (len(pairs["train"]), len(pairs["dev"]))
    assert pairs["dev"]
    asked = {split: {pair.question_id for pair in pairs[split]} for split in pairs}
    assert asked["train"].isdisjoint(asked["dev"]), "a question is on one side of the split"
    assert all(pair.margin is not None and pair.margin >= 0.01 for pair in pairs["train"])


def test_the_same_command_again_computes_nothing(shell: Shell, explored: Path) -> None:
    assert "explore: done" in shell("explore", "--run", explored, "--simulations", 20, "--questions", 64)
    assert RunFolder.open(explored).done("explore").attempts == 1  # type: ignore[union-attr]


def test_other_settings_are_refused_until_update_is_said(shell: Shell, explored: Path) -> None:
    assert "stages.explore.simulations: 20 -> 8" in shell("explore", "--run", explored, "--simulations", 8, code=2)
    shell("explore", "--run", explored, "--simulations", 8, "--update")
    assert max(tree.nodes[0].visits for tree in read_trees(explored / "explore" / "trees.jsonl.gz")) <= 8


def test_settings_that_cost_time_alone_may_change(shell: Shell, explored: Path) -> None:
    shell("explore", "--run", explored, "--simulations", 20, "--set", "trees_at_once=2")


def test_several_judges_side_by_side(shell: Shell, explored: Path) -> None:
    for judge in ("spre", "mc", "q"):
        shell("pairs", "--run", explored, "--judge", judge, "--name", f"by-{judge}")
    report = shell.json("pairs", "--run", explored, "--judge", "mc", "--name", "by-mc")
    (stage,) = report["stages"]
    assert (stage["name"], stage["summary"]["judge"]) == ("by-mc", "mc")


def test_balanced_pairs(shell: Shell, explored: Path) -> None:
    everything = shell.json("pairs", "--run", explored, "--name", "all")["stages"][0]["summary"]
    balanced = shell.json("pairs", "--run", explored, "--name", "some", "--balance", "kind,depth")["stages"][0][
        "summary"
    ]
    assert 0 < balanced["pairs"] < everything["pairs"]
    assert balanced["dropped"]["balance"] == everything["pairs"] - balanced["pairs"]


def test_exports_of_a_run(shell: Shell, explored: Path, tmp_path: Path) -> None:
    assert "has no pairs yet" in shell("export", explored, tmp_path / "out", "--to", "trl", code=2)
    shell("pairs", "--run", explored)
    for format in ("trl", "llama-factory", "rag-proguide"):
        assert "README.md says how" in shell("export", explored, tmp_path / format, "--to", format)
        assert (tmp_path / format / "README.md").is_file()
    again = next((tmp_path / "rag-proguide").glob("*train*.json*"))
    assert "train pairs as trl" in shell("export", again, tmp_path / "from-file", "--to", "trl")
    assert "Did you mean 'trl'" in shell("export", explored, tmp_path / "x", "--to", "trll", code=2)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["explore"], "say --run DIR"),
        (["explore", "--run", "RUN", "--out", "elsewhere"], "say --run DIR"),
        (["explore", "--run", "RUN", "--model", "nano"], "--model belongs to the run"),
        (["explore", "--run", "RUN", "--set", "simulation=3"], "Did you mean 'simulations'"),
        (["explore", "--run", "RUN", "--preset", "prorg"], "found 'prorg'"),
        (["explore", "--run", "RUN", "--budget", "5usd"], "add --judge-model"),
        (["pairs", "--run", "RUN", "--judge", "llm"], "llm.model"),
        (["pairs", "--run", "RUN", "--judge", "spree"], "found 'spree'"),
        (["pairs", "--run", "RUN", "--judge-model", "m", "--budget", "5 euros"], "5usd"),
        (["pairs", "--run", "RUN", "--judge-model", "nobody-knows", "--budget", "5usd"], "nobody-knows"),
        (["pairs", "--run", "RUN", "--dry-run"], "costs nothing"),
        (["pairs", "--run", "nowhere"], "is not a run"),
    ],
)
def test_mistakes_are_explained(shell: Shell, explored: Path, arguments: list[str], advice: str) -> None:
    given = [str(explored) if each == "RUN" else each for each in arguments]
    assert advice in shell(*given, code=2).replace("\n", " ")


# --- a judge behind HTTP --------------------------------------------------------------------------------------


def a_choice(body: dict[str, Any], number: int) -> Answer:
    return says(json.dumps({"reason": "so", "best": "A", "worst": "B"}))


def judged(shell: Shell, run: Path, server: Server, *more: object) -> Any:
    given = ("--judge-model", "tiny", "--judge-url", server.url, "--order", "made", *more)
    return shell.json("pairs", "--run", run, *given)["stages"][0]["summary"]


def test_a_model_judges_within_its_budget_and_is_paid_once(shell: Shell, explored: Path, server: Server) -> None:
    server.answer = a_choice  # type: ignore[method-assign]
    given = ("--judge-model", "tiny", "--judge-url", server.url, "--order", "made")
    cost = shell.json("pairs", "--run", explored, *given, "--dry-run")
    assert cost["calls"] > 10
    assert server.requests == [], "a dry run asks nothing"
    stopped = shell("pairs", "--run", explored, *given, "--budget", "9ktok", code=2)
    assert "budget of 9000tok is spent" in stopped.replace("\n", " ")
    asked = len(server.requests)
    assert 0 < asked < cost["calls"]
    left = shell.json("pairs", "--run", explored, *given, "--dry-run")
    assert (left["calls"], left["recalled"]) == (cost["calls"] - asked, asked)
    summary = judged(shell, explored, server, "--budget", "2Mtok")
    assert len(server.requests) == cost["calls"], "what was paid for is not asked again"
    bodies = [json.dumps(body["messages"]) for body in server.requests]
    assert len(bodies) == len(set(bodies))
    assert summary["spend"]["calls"] == cost["calls"]
    assert summary["asked"]["asked"] == cost["calls"]
    assert summary["judge"] == "llm-choice-made"


def test_replies_that_were_paid_for_survive_another_question_to_the_trees(
    shell: Shell, explored: Path, server: Server
) -> None:
    server.answer = a_choice  # type: ignore[method-assign]
    judged(shell, explored, server)
    asked = len(server.requests)
    judged(shell, explored, server, "--set", "twin_overlap=0.5", "--update")
    assert len(server.requests) == asked


def test_a_model_may_grade_leaves_while_trees_grow(shell: Shell, explored: Path, server: Server) -> None:
    server.answer = lambda body, number: says(json.dumps({"reason": "so", "score": 80}))  # type: ignore[method-assign]
    judge = ("--judge-model", "tiny", "--judge-url", server.url)
    given = ("explore", "--run", explored, "--name", "graded", *judge, "--simulations", 6, "--questions", 3)
    cost = shell.json(*given, "--dry-run")
    assert cost["calls"] == 18
    assert server.requests == []
    report = shell.json(*given)
    trees = list(read_trees(explored / "graded" / "trees.jsonl.gz"))
    assert {node.scores["leaf"] for tree in trees for node in tree.nodes if node.scores} == {0.8}
    assert not any(node.rollouts for tree in trees for node in tree.nodes)
    bodies = [json.dumps(body["messages"]) for body in server.requests]
    assert bodies
    assert len(bodies) == len(set(bodies)), "steps that branches share are graded once"
    spend = report["stages"][0]["summary"]["spend"]
    assert spend["calls"] == len(bodies) <= cost["calls"]
    assert spend["tokens_read"] + spend["tokens_written"] <= cost["tokens_at_most"]
