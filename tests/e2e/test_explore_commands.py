"""`explore`, `pairs` and `export`, typed as a user would, with a policy that wanders and a judge behind HTTP."""

import json
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from rich.console import Console

from stepladder.core.io.records import read_records
from stepladder.core.trace import Action, ActionKind, Author, Node, Pair, Question, Segment, Step, StopReason, Tree
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.tree_store import read_trees
from stepladder.pipeline import run_recipe
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stages.pairs import PairConfig
from stepladder.reporting.run_tables import print_report
from tests.support import openai_server
from tests.support.openai_server import Answer, Server, fails, says
from tests.support.samples import PASSAGES, WordRetriever
from tests.support.shell import Shell
from tests.support.trees import stroll

server = openai_server.server

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
    def engine(self: RunContext, policy: str, *_: object, **__: object) -> Iterator[Engine]:
        yield ScriptedEngine(stroll)

    monkeypatch.setattr(RunContext, "engine", engine)
    monkeypatch.setattr(RunContext, "retriever", WordRetriever(PASSAGES))
    monkeypatch.setattr(RunContext, "check_index", lambda self: None)


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
    shell("explore", "--run", explored, "--simulations", 8, "--update", "--yes")
    assert max(tree.nodes[0].visits for tree in read_trees(explored / "explore" / "trees.jsonl.gz")) <= 8


def test_settings_that_cost_time_alone_may_change(shell: Shell, explored: Path) -> None:
    shell("explore", "--run", explored, "--simulations", 20, "--set", "max_concurrent_trees=2")


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
    assert "has no pairs yet" in shell("export", "--run", explored, "--out", tmp_path / "out", "--to", "trl", code=2)
    shell("pairs", "--run", explored)
    for format in ("trl", "llama-factory", "rag-proguide"):
        assert "README.md says how" in shell("export", "--run", explored, "--out", tmp_path / format, "--to", format)
        assert (tmp_path / format / "README.md").is_file()
    again = next((tmp_path / "rag-proguide").glob("*train*.json*"))
    same = "preference/train.jsonl"
    for pairs in (again, explored / "pairs" / "pairs" / "train.jsonl"):
        printed = shell("export", "--pairs", pairs, "--out", tmp_path / pairs.suffix, "--to", "trl")
        assert f"train pairs of {pairs.name} as trl" in printed
        assert (tmp_path / pairs.suffix / same).read_bytes() == (tmp_path / "trl" / same).read_bytes()
    wrong = ("export", "--run", explored, "--out", tmp_path / "x", "--to", "trll")
    assert "Did you mean 'trl'" in shell(*wrong, code=2)
    assert "give either --run DIR" in shell("export", "--out", tmp_path / "x", "--to", "trl", code=2)


def test_the_pairs_of_any_stage_can_be_exported(shell: Shell, explored: Path, tmp_path: Path) -> None:
    for judge in ("mc", "spre"):
        shell("pairs", "--run", explored, "--judge", judge, "--name", judge)
    export = ("export", "--run", explored, "--to", "trl", "--out")
    assert shell.json(*export, tmp_path / "newest")["source"] == "run/spre"
    assert shell.json(*export, tmp_path / "named", "--stage", "mc")["source"] == "run/mc"
    assert "from `run/mc`" in (tmp_path / "named" / "README.md").read_text()
    assert "Known: mc, spre" in shell(*export, tmp_path / "x", "--stage", "gold", code=2)


def questions_of(run: Path, stage: str) -> dict[str, set[str]]:
    folder = run / stage / "pairs"
    splits = ("train", "dev")
    return {split: {pair.question_id for pair in read_records(folder / f"{split}.jsonl", Pair)} for split in splits}


def test_all_judges_hold_out_the_same_questions(shell: Shell, explored: Path) -> None:
    """What is learnt from the pairs of one judge may be tested on those of another."""
    for judge in ("mc", "gold"):
        shell("pairs", "--run", explored, "--judge", judge, "--name", f"by-{judge}", "--set", "dev_share=0.3")
    mc, gold = questions_of(explored, "by-mc"), questions_of(explored, "by-gold")
    assert mc["dev"]
    assert gold["dev"]
    assert (mc["train"] | gold["train"]).isdisjoint(mc["dev"] | gold["dev"])


def test_there_is_always_something_to_learn_from(shell: Shell, tmp_path: Path, questions: Path) -> None:
    questions.write_text("".join(questions.read_text().splitlines(keepends=True)[:2]))
    run = tmp_path / "few"
    shell("explore", "--out", run, "--model", "tiny", "--data", questions, "--agent", "prorag-brief")
    shell("pairs", "--run", run, "--set", "dev_share=0.99")
    assert questions_of(run, "pairs")["train"]


def test_a_stage_that_found_nothing_may_be_tried_with_other_settings(shell: Shell, explored: Path) -> None:
    said = shell("pairs", "--run", explored, "--set", "min_state_visits=999", code=2)
    assert "pairs: no pairs in 12 trees, where 0 states have steps to compare: in all others the policy wrote" in said
    assert "Train it longer. Or explore with more simulations" in said
    shell("pairs", "--run", explored)


def test_steps_of_equal_value_are_why_a_policy_that_is_hardly_trained_gives_no_pairs(
    shell: Shell, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not for want of a gold decomposition: the cause is said, with counts, and what to try."""
    questions.write_text(questions.read_text().replace("Velm", "Something that nobody answers"))
    shell("explore", "--out", tmp_path / "run", "--model", "tiny", "--data", questions, "--agent", "prorag-brief")
    said = shell("pairs", "--run", tmp_path / "run", code=2)
    assert re.search(r"no pairs in 12 trees, where \d+ states have steps to compare, but in none of them do two", said)
    assert "differ in value by the margin, 0.01" in said
    assert "train it longer. Or explore with more simulations" in said
    assert "gold" not in said
    monkeypatch.setattr("stepladder.preferences.pairs.judge_tree", lambda tree: [None] * len(tree.nodes))
    monkeypatch.setattr("stepladder.oracle.step_judge.judge_tree", lambda tree: [None] * len(tree.nodes))
    said = shell("pairs", "--run", tmp_path / "run", "--judge", "gold", code=2)
    assert "none of them graded: judge 'gold' needs questions with a gold decomposition" in said


def test_the_search_itself_knows_nothing_of_what_it_did_not_visit() -> None:
    """An end that nobody visited has earned something, but a discounted Q cannot be compared with that."""
    answers = [Step((), Segment(Author.POLICY, each), Action(ActionKind.ANSWER, each)) for each in ("Velm", "Oss")]
    ends = [Node(n, 0, answers[n - 1], stop=StopReason.ANSWERED, reward=1.0) for n in (1, 2)]
    tree = Tree(Question("q", "?", ("Velm",)), "prorag", (Node(0, None, None, 1), ends[0], replace(ends[1], visits=1)))
    by_q = partial(PairConfig(judge="q").make_judge().prefer, tree, tree.nodes[1:])
    assert Driver().run([by_q])[0].value == []


def test_the_report_fits_a_narrow_terminal(shell: Shell, explored: Path) -> None:
    for name in ("pairs", "pairs-with-a-long-name"):
        shell("pairs", "--run", explored, "--judge", "mc", "--name", name)
    report = run_recipe(RunFolder.open(explored).recipe(), explored)
    for width, agreement in ((60, ""), (70, r" +[\d.]+ \[[\d.]+, [\d.]+\]")):
        console = Console(width=width, file=StringIO())
        print_report(console, report)
        printed = console.file.getvalue()  # type: ignore[attr-defined]
        assert re.search(rf"^pairs +mc +\d+ +\d+{agreement}$", printed, re.MULTILINE)
        assert bool(agreement) != ("columns omitted: agreement" in printed)
        assert "…" not in printed


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["explore"], "give either --run DIR"),
        (["explore", "--run", "RUN", "--out", "elsewhere"], "give either --run DIR"),
        (["explore", "--run", "RUN", "--model", "nano"], "--model was set when the run"),
        (["explore", "--run", "RUN", "--set", "simulation=3"], "Did you mean 'simulations'"),
        (["explore", "--run", "RUN", "--preset", "prorg"], "found 'prorg'"),
        (["explore", "--run", "RUN", "--budget", "5usd"], "--budget needs a --judge-model"),
        (["pairs", "--run", "RUN", "--judge", "llm"], "llm.model"),
        (["pairs", "--run", "RUN", "--judge", "spree"], "unknown judge 'spree'"),
        (["pairs", "--run", "RUN", "--judge-model", "m", "--budget", "5 euros"], "5usd"),
        (["pairs", "--run", "RUN", "--judge-model", "nobody-knows", "--budget", "5usd"], "nobody-knows"),
        (["pairs", "--run", "RUN", "--dry-run"], "costs nothing"),
        (["pairs", "--run", "RUN", "--name", "explore"], "choose another --name"),
        (["pairs", "--run", "RUN", "--name", "../out"], "lower-case letters"),
        (["pairs", "--run", "RUN", "--margin", "5"], "less than or equal to 1"),
        (["pairs", "--run", "RUN", "--margin", "0.2", "--judge", "gold"], "margin has no effect with judge: gold"),
        (["pairs", "--run", "RUN", "--margin", "0.2", "--judge-model", "m"], "margin has no effect with judge: llm"),
        (["pairs", "--run", "RUN", "--judge-model", "./none"], "is not a model folder"),
        (["pairs", "--run", "RUN", "--judge-model", "~nobody-at-all/m"], "is not a model folder"),
        (["explore", "--run", "RUN", "--judge-model", "m", "--budget", "1usd", "--update"], "'m' has no price"),
        (["export", "--pairs", "RUN/recipe.yaml", "--out", "x", "--to", "trl", "--stage", "pairs"], "is a file"),
        (["pairs", "--run", "nowhere"], "is not a run"),
    ],
)
def test_mistakes_are_explained(shell: Shell, explored: Path, arguments: list[str], advice: str) -> None:
    given = [each.replace("RUN", str(explored)) for each in arguments]
    assert advice in shell(*given, code=2).replace("\n", " ")
    assert RunFolder.open(explored).done("explore") is not None, "nothing was begun, nothing removed"


def test_a_run_without_trees_says_how_to_get_them(shell: Shell, explored: Path) -> None:
    recipe = explored / "recipe.yaml"
    plain = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump({**plain, "stages": {"after": {"kind": "eval"}}}))
    for more in ((), ("--dry-run", "--judge-model", "m")):
        assert "`stepladder explore --run" in shell("pairs", "--run", explored, *more, code=2).replace("\n", " ")


# --- a judge behind HTTP --------------------------------------------------------------------------------------


def a_choice(body: dict[str, Any], number: int) -> Answer:
    return says(json.dumps({"reason": "so", "best": "A", "worst": "B"}))


def judged(shell: Shell, run: Path, server: Server, *more: object) -> Any:
    order = () if "score" in more else ("--order", "made")
    given = ("--judge-model", "tiny", "--judge-url", server.url, *order, *more)
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
    assert (left["calls"], left["cached"]) == (cost["calls"] - asked, asked)
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
    judged(shell, explored, server, "--set", "twin_overlap=0.5", "--update", "--yes")
    assert len(server.requests) == asked


def by_content(body: dict[str, Any], number: int) -> Answer:
    """The same verdict on the same prompt, after a while that nobody can foresee."""
    time.sleep(random.uniform(0, 0.02))
    letters = re.findall(r'<candidate letter="(\w+)"', body["messages"][0]["content"])
    chooses = random.Random(body["messages"][0]["content"]).sample(letters, 2)
    return says(json.dumps({"reason": "so", "best": chooses[0], "worst": chooses[1]}))


def test_pairs_are_the_same_in_whatever_order_a_judge_answers(shell: Shell, explored: Path, server: Server) -> None:
    server.answer = by_content  # type: ignore[method-assign]
    for name in ("one", "other"):
        judged(shell, explored, server, "--name", name)
    for file in ("train.jsonl", "dev.jsonl"):
        one, other = ((explored / name / "pairs" / file).read_bytes() for name in ("one", "other"))
        assert one == other
        assert one


def test_what_goes_wrong_at_the_server_is_told(shell: Shell, explored: Path, server: Server) -> None:
    """A terminal's markup in it does no harm."""
    server.answer = lambda body, number: fails(400, "no [/such] model")  # type: ignore[method-assign]
    given = ("--judge-model", "tiny", "--judge-url", server.url)
    said = shell("pairs", "--run", explored, *given, code=2).replace("\n", " ")
    assert re.search(r"returned status 400 .*: no \[/such\] model", said)


def test_trees_that_failed_are_told_with_the_reason(
    shell: Shell, tmp_path: Path, questions: Path, server: Server
) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        refused = "Forbidden" in body["messages"][0]["content"]
        return fails(400, "no [/such] question") if refused else says(json.dumps({"score": 50}))

    server.answer = answer  # type: ignore[method-assign]
    questions.write_text(questions.read_text().replace("Where", "Forbidden", 3))
    given = ("--model", "tiny", "--data", questions, "--agent", "prorag-brief", "--simulations", 20)
    judge = ("--judge-model", "tiny", "--judge-url", server.url)
    printed = shell("explore", "--out", tmp_path / "graded", *given, *judge, "--set", "temperature=0")
    assert re.search(r"\d failed: no score for step 1 of 1: .*: no \[/such\] question", printed)
    assert re.search(r"problems: \d+ times .*: no \[/such\] question", printed)


def test_replies_that_had_to_be_repaired_are_counted(shell: Shell, explored: Path, server: Server) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        return says("hm") if len(body["messages"]) == 1 and number % 2 else a_choice(body, number)

    server.answer = answer  # type: ignore[method-assign]
    printed = shell("pairs", "--run", explored, "--judge-model", "m", "--judge-url", server.url, "--order", "made")
    assert re.search(r"judge: asked \d+, repaired \d+, kept \d+\n", printed)
    assert re.search(r"spend: calls \d+, tokens_read [\d,]+, tokens_written [\d,]+\n", printed)


def test_a_dry_run_reckons_with_the_trees_that_the_stage_takes(shell: Shell, explored: Path, server: Server) -> None:
    given = ("--judge-model", "tiny", "--judge-url", server.url, "--dry-run")
    shell("pairs", "--run", explored)
    before = shell.json("pairs", "--run", explored, *given)
    shell("explore", "--run", explored, "--name", "more", "--questions", 2)
    assert shell.json("pairs", "--run", explored, *given) == before, "its place is before the new trees"
    assert 0 < shell.json("pairs", "--run", explored, "--name", "new", *given)["calls"] < before["calls"]
    assert server.requests == []


def test_the_margin_of_scores(shell: Shell, explored: Path, server: Server) -> None:
    def answer(body: dict[str, Any], number: int) -> Answer:
        return says(json.dumps({"score": random.Random(body["messages"][0]["content"]).choice([0, 40, 100])}))

    server.answer = answer  # type: ignore[method-assign]
    judged(shell, explored, server, "--mode", "score", "--margin", "0.5")
    margins = [pair.margin for pair in read_records(explored / "pairs" / "pairs" / "train.jsonl", Pair)]
    assert min(margin for margin in margins if margin is not None) >= 0.5


def test_a_model_may_grade_leaves_while_trees_grow(shell: Shell, explored: Path, server: Server) -> None:
    server.answer = lambda body, number: says(json.dumps({"reason": "so", "score": 80}))  # type: ignore[method-assign]
    judge = ("--judge-model", "tiny", "--judge-url", server.url)
    given = ("explore", "--run", explored, "--name", "graded", *judge, "--simulations", 6, "--questions", 3)
    given = (*given, "--set", "llm.max_tokens=77")
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
    assert {body["max_tokens"] for body in server.requests} == {77}
    assert report["stages"][0]["summary"]["asked"]["asked"] >= len(bodies)
    spend = report["stages"][0]["summary"]["spend"]
    assert spend["calls"] == len(bodies) <= cost["calls"]
    assert spend["tokens_read"] + spend["tokens_written"] <= cost["tokens_at_most"]


def test_a_stage_that_cannot_be_done_does_not_stop_the_others(shell: Shell, explored: Path) -> None:
    shell("pairs", "--run", explored, "--name", "never", "--set", "min_state_visits=999", code=2)
    assert "never: not done, unchanged" in shell("pairs", "--run", explored, "--judge", "mc")
    shell("explore", "--run", explored, "--name", "more", "--questions", 2)


def test_a_budget_that_is_spent_is_not_spent_by_other_stages(shell: Shell, explored: Path, server: Server) -> None:
    server.answer = a_choice  # type: ignore[method-assign]
    given = ("--judge-model", "tiny", "--judge-url", server.url, "--name", "paid")
    shell("pairs", "--run", explored, *given, "--budget", "9ktok", code=2)
    asked = len(server.requests)
    shell("pairs", "--run", explored, "--judge", "mc")
    assert len(server.requests) == asked
