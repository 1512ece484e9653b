"""Policies behind servers: a server that dies, spending limits across kill -9, training on what a server wrote."""

import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.core.trace import UNKNOWN_TOKENS
from stepladder.data import load_dataset
from stepladder.engines.spend.ledger import Ledger
from stepladder.evaluation.evaluator import load_scores
from stepladder.explore.tree_store import read_trees
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.reporting.studies.study_arms import prepare
from stepladder.reporting.studies.study_runner import run_study
from stepladder.reporting.studies.study_spec import Study
from tests.support import openai_server
from tests.support.forked_jobs import forked_jobs
from tests.support.openai_server import Answer, Server
from tests.support.served_policies import DATA, Player
from tests.support.shell import Shell

server, second_server = openai_server.server, openai_server.second_server

SEARCH = {"questions": 6, "simulations": 12, "width": 4}


@pytest.fixture(scope="module")
def player() -> Player:
    data = load_dataset("atlas-small", seed=0)
    return Player([question for split in data.questions.values() for question in split])


def played(*urls: str, stages: dict[str, Any], **settings: Any) -> Recipe:
    server = {"model": "scripted", "base_url": list(urls), "concurrency": 8, "timeout": 10, **settings}
    return Recipe.read({**DATA, "server": server, "stages": stages})


def dying(player: Player, server: Server, at: int) -> None:
    """The server dies while it answers its call of this number."""

    def answer(body: dict[str, Any], number: int) -> Answer:
        if number == at:
            server.die()
        return player.reply(body)

    server.answer = answer


STAGES = {
    "explore": {"explore": {**SEARCH, "policy": "server"}},
    "eval": {"eval": {"limit": 24, "policy": "server"}},
    "rank": {"rank": {"questions": 4, "n": 4, "policy": "server"}},
}


def result_of(folder: Path, stage: str) -> Any:
    if stage in ("eval", "after"):
        return [(row.question_id, row.prediction, row.searches) for row in load_scores(folder / stage / "evaluation")]
    trees = list(read_trees(folder / stage / "trees.jsonl.gz"))
    assert max(Counter(tree.question.id for tree in trees).values()) == 1
    return sorted((tree.question.id, [node.step and node.step.action for node in tree.nodes]) for tree in trees)


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_that_dies_in_the_middle_loses_and_doubles_nothing(
    server: Server, second_server: Server, player: Player, tmp_path: Path, stage: str
) -> None:
    server.answer = player.reply
    run_recipe(played(server.url, stages=STAGES[stage]), tmp_path / "one")
    alone = len(server.requests)
    assert any(body.get("n", 1) == 4 for body in server.requests) == (stage != "eval"), "siblings are one call"
    dying(player, second_server, at=alone // 5)
    run_recipe(played(server.url, second_server.url, stages=STAGES[stage]), tmp_path / "two")
    assert second_server.dead
    assert len(second_server.requests) > alone // 5
    assert result_of(tmp_path / "two", stage) == result_of(tmp_path / "one", stage)
    assert len(server.answered) - alone + len(second_server.answered) == alone, "every call was answered once"


# --- spending limits ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_spending_limit_holds_across_a_kill(
    server: Server, player: Player, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some calls are answered, the others hang when the process is killed: those may have been billed, and count."""
    killed = threading.Event()

    def answer(body: dict[str, Any], number: int) -> Answer:
        if number >= 10:
            killed.wait()  # however slow the machine is
        return player.reply(body)

    server.answer = answer
    run = tmp_path / "run"
    command = "explore --model scripted --agent search-r1 --data atlas-small -k 1 --questions 4 --simulations 12 --out"
    limits = ["--set", "width=4", "--concurrency", "4", "--timeout", "600", "--base-url", server.url, "--policy-budget"]
    words = [*command.split(), str(run), *limits]
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # room for the 14 calls whatever their order
    program = [sys.executable, "-m", "stepladder", *words, "90ktok"]
    child = subprocess.Popen(program, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        with server.lock:
            assert server.lock.wait_for(lambda: len(server.requests) == 14, timeout=300)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        killed.set()
    answered = (run / "explore" / "policy-replies.jsonl").read_text().splitlines()
    assert len(answered) >= 10

    limit = spent(run) + 100  # less than any call may cost
    refused = " ".join(shell(*words, f"{limit}tok", code=2).split())
    assert f"the budget of {limit}tok is spent" in refused
    assert "4 calls that may have been billed count with their maximum" in refused
    assert spent(run) == limit - 100
    shell(*words, "900ktok")
    assert len(list(read_trees(run / "explore" / "trees.jsonl.gz"))) == 4
    calls = Counter((str(body["messages"]), body["seed"], body["temperature"]) for body in server.requests)
    assert Counter(calls.values()).keys() <= {1, 2}
    assert sum(count - 1 for count in calls.values()) <= 4, "only what hung was requested again"


def spent(run: Path) -> int:
    ledger = Ledger(run / "explore" / "policy-spend.jsonl")
    try:
        return sum(usage.read + usage.written for usage in ledger.totals.values())
    finally:
        ledger.close()


# --- training on what a server wrote --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "trained",
    [
        {"sft": {"source": "trees", "policy": "base", "dev_questions": 0, "num_train_epochs": 1}},
        {"pairs": {"judge": "mc"}, "dpo": {"policy": "base", "dev_questions": 0}},
        {"prm": {"objective": "values", "policy": "base", "num_train_epochs": 1}},
        {"rft": {"policy": "base", "questions": 4, "threshold": None, "dev_questions": 0, "sampled_by": "server"}},
    ],
    ids=lambda stages: next(reversed(stages)),
)
def test_text_without_token_ids_is_trained_on_if_reencode_says_so(
    server: Server, player: Player, tmp_path: Path, trained: dict[str, Any]
) -> None:
    server.answer = player.reply
    *before, last = trained
    stages: dict[str, Any] = {} if last == "rft" else {"explore": {**SEARCH, "policy": "server"}}
    recipe = {**DATA, "policy": "tiny", "agent": "search-r1-brief"}

    def with_reencode(allowed: dict[str, Any]) -> dict[str, Any]:
        own = {**stages, **trained, last: {**trained[last], **allowed}}
        return {**recipe, "server": {"model": "scripted", "base_url": server.url}, "stages": own}

    with pytest.raises(StepladderError, match="set reencode to true"):
        run_recipe(Recipe.read(with_reencode({})), tmp_path / "run")
    report = run_recipe(Recipe.read(with_reencode({"reencode": True})), tmp_path / "run")
    assert report.stages[-1].summary.get("updates", 1) > 0
    if stages:
        tree = next(read_trees(tmp_path / "run" / "explore" / "trees.jsonl.gz"))
        assert {node.step.written.vocabulary for node in tree.nodes if node.step} == {UNKNOWN_TOKENS}
    assert all(stage.name != before for stage in report.stages)


def test_a_model_behind_a_server_cannot_be_trained() -> None:
    server = {"base_url": "http://localhost:8000/v1"}
    recipe = {**DATA, "policy": "gpt", "engine": "openai", "server": server}
    with pytest.raises(StepladderError, match=r"stages\.sft: the policy 'gpt' is behind a server .* cannot be trained"):
        Recipe.read({**recipe, "stages": {"sft": {}}})
    Recipe.read({**recipe, "stages": {"eval": {}}})
    with pytest.raises(StepladderError, match=r"stages\.eval\.policy: the recipe has no server: add server\.model"):
        Recipe.read({**DATA, "stages": {"eval": {"policy": "server"}}})
    with pytest.raises(StepladderError, match=r"engine: openai needs the server: server\.base_url"):
        Recipe.read({**DATA, "engine": "openai", "stages": {"eval": {}}})


# --- every place where a policy plays -------------------------------------------------------------------


def test_engine_openai_plays_explore_rank_and_eval(
    server: Server, player: Player, tmp_path: Path, shell: Shell
) -> None:
    server.answer = player.reply
    stages = {"explore": SEARCH, "rank": {"questions": 4, "n": 4}, "eval": {"limit": 6}}
    shared = {**DATA, "policy": "scripted", "engine": "openai", "server": {"base_url": server.url}}
    (tmp_path / "served.yaml").write_text(yaml.safe_dump({**shared, "stages": stages}, sort_keys=False))
    shell("run", tmp_path / "served.yaml", "--out", tmp_path / "run")
    assert {body["model"] for body in server.requests} == {"scripted"}
    assert len(result_of(tmp_path / "run", "explore")) == SEARCH["questions"]
    assert len(result_of(tmp_path / "run", "rank")) == 4
    played = result_of(tmp_path / "run", "eval")
    assert sum(prediction == "Nobody" for _, prediction, _ in played) < 6
    assert {searches for _, _, searches in played} == {1}
    calls = len(server.requests)
    shell("run", tmp_path / "served.yaml", "--out", tmp_path / "run")
    assert len(server.requests) == calls, "finished stages are not played again"


@pytest.mark.slow
def test_a_reward_model_is_examined_on_episodes_of_a_server(server: Server, player: Player, tmp_path: Path) -> None:
    server.answer = player.reply
    stages = {
        "explore": {**SEARCH, "policy": "server"},
        "prm": {"objective": "values", "policy": "base", "num_train_epochs": 1, "reencode": True},
        "prm-eval": {"policy": "server", "questions": 12, "held_out_pairs": False, "retokenize": True},
    }
    settings = {**DATA, "policy": "tiny", "server": {"model": "scripted", "base_url": server.url, "budget": "900ktok"}}
    report = run_recipe(Recipe.read({**settings, "stages": stages}), tmp_path / "run")
    summary = report.stages[-1].summary
    assert summary["questions"] == 12
    assert summary["steps"] >= 24
    assert (tmp_path / "run" / "prm-eval" / "policy-spend.jsonl").stat().st_size > 0
    assert sum("policy-replies" in path.name for path in (tmp_path / "run").rglob("*.jsonl")) == 2


@pytest.mark.slow
def test_the_arms_of_a_study_are_played_by_a_model_behind_a_server(
    server: Server, player: Player, tmp_path: Path
) -> None:
    server.answer = player.reply
    stages = {"before": {"kind": "eval", "limit": 4}, "rank": {"questions": 2}, "after": {"kind": "eval", "limit": 4}}
    shared = {**DATA, "policy": "scripted", "engine": "openai", "server": {"base_url": server.url}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**shared, "stages": stages}, sort_keys=False))
    definition = {
        "name": "small",
        "question": "How many samples?",
        "recipe": str(tmp_path / "small.yaml"),
        "arms": {"few": {"stages.rank.n": 2}, "many": {"stages.rank.n": 3}},
        "baseline": "few",
        "seeds": 1,
        "estimand": {"stage": "after"},
    }
    study = prepare(Study.read(definition))
    with forked_jobs():
        run_study(study, tmp_path / "study", jobs=1, console=Console(quiet=True))
    for arm in study.arms:
        assert {searches for _, _, searches in result_of(tmp_path / "study" / "seed-0" / arm, "after")} == {1}
    samples = Counter(body.get("n", 1) for body in server.requests)
    assert samples.keys() == {1, 2, 3}
    assert samples[1] == 2 * 4 * 3, "before, which the arms share, and twice after: two calls per question"
