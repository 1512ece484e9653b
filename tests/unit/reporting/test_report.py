"""The report of a run: what it shows, that it needs nothing else, and that nothing in it can act."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from stepladder import Question, Step, Trajectory, Tree
from stepladder.cli.reports import report_command
from stepladder.core.answer_metrics import score
from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Action, ActionKind, Author, Node, Passage, Rollout, Segment, StopReason
from stepladder.evaluation.evaluator import Evaluation
from stepladder.evaluation.prm.plots import reliability_svg
from stepladder.evaluation.prm.tree_scores import write_tree_scores
from stepladder.explore.tree_store import TreeFile
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.run_folder import RunFolder, StageRecord, claim
from stepladder.pipeline.stages import STAGES, StageResult, StageSpec
from stepladder.pipeline.stages.eval import EVALUATION, main_numbers
from stepladder.pipeline.stages.prm_eval import TREE_SCORES
from stepladder.reporting.report import write_report
from stepladder.reporting.report.training_curves import downsampled, smoothed
from stepladder.reporting.report.tree_view import NodeView, most_informative, tree_view
from stepladder.train.grpo.monitors import Alarm, AlarmName, write_alarms
from tests.support.html_pages import Page
from tests.support.samples import PASSAGES, QUESTION

QUERY, FOUND, ANSWER, MALFORMED = (
    ActionKind.QUERY,
    ActionKind.SUB_ANSWER,
    ActionKind.ANSWER,
    ActionKind.MALFORMED,
)
EVIL = Passage("p9", "A <b>bold</b> title", "<script>alert('passage')</script> & more")
RECIPE = {
    "name": "example",
    "seed": 7,
    "policy": "tiny",
    "stages": {
        "before": {"kind": "eval"},
        "sft": {},
        "after": {"kind": "eval"},
        "explore": {},
        "prm": {"objective": "verdicts"},
        "examined": {"kind": "prm-eval", "held_out_pairs": False},
        "rft": {},
        "refined": {"kind": "eval"},
        "oracle": {"kind": "eval", "policy": "oracle"},
    },
}


# --- a run, as its stages would have left it ----------------------------------------------------------------------


def step(
    kind: ActionKind, content: str, passages: Sequence[Passage] = (), thought: str = "", problem: str = ""
) -> Step:
    action = Action(kind, content, thought, problem)
    return Step((), Segment(Author.POLICY, content), action, tuple(passages))


def answered(question: Question, answer: str) -> Trajectory:
    steps = (
        step(QUERY, "Who designed Orm Tower?", (PASSAGES[0], EVIL), thought="First the <i>architect</i>."),
        step(FOUND, "Ada Tarn"),
        step(QUERY, "Where was Ada Tarn born?", PASSAGES[1:2]),
        step(ANSWER, answer),
    )
    return Trajectory(question, "prorag", steps, StopReason.ANSWERED)


def broken(question: Question) -> Trajectory:
    return Trajectory(question, "prorag", (step(MALFORMED, "<step>oh", problem="not closed"),), StopReason.MALFORMED)


def asked(count: int) -> list[Question]:
    return [replace(QUESTION, id=f"q{number}", text=f"{QUESTION.text} ({number})") for number in range(count)]


def small_tree(question: Question = QUESTION) -> Tree:
    nodes = (
        Node(0, None, None, visits=6, value=0.5),
        Node(1, 0, step(QUERY, "Who designed Orm Tower?", (PASSAGES[0], EVIL)), 4, 0.75, rollouts=ROLLOUTS),
        Node(2, 0, step(QUERY, "What is Velm?", PASSAGES[2:]), 2, 0.0, scores={"leaf": 0.25}),
        Node(3, 1, step(ANSWER, "Velm"), 3, 1.0, stop=StopReason.ANSWERED, reward=1.0),
        Node(4, 1, step(ANSWER, "Oss"), 1, 0.0, stop=StopReason.ANSWERED, reward=0.0),
    )
    return Tree(question, "prorag", nodes)


def by_answer(trajectories: Sequence[Trajectory]) -> list[list[float]]:
    """Scores, as a reward model would give them: 1.9 for Velm, 0 for whatever else."""
    return [[1.9 if each.action.content == "Velm" else 0.0 for each in played.steps] for played in trajectories]


ROLLOUTS = (Rollout(1.0, 1, StopReason.ANSWERED, "Velm"),) * 2


class Made:
    """A run's folder, to which stages are added one by one."""

    def __init__(self, path: Path, plain: Mapping[str, Any] = RECIPE) -> None:
        self.path = path
        self.recipe = Recipe.read(plain)
        with claim(path) as run:
            session = {
                "started": "2026-01-02T03:04:05+00:00",
                "command": ["/usr/bin/stepladder", "run", "example", "--set", "seed=7"],
                "versions": {"torch": "9.9"},
            }
            run.add_session(session)
            run.write_recipe(self.recipe)
        self.run = RunFolder(path)

    def _record(self, name: str) -> StageRecord:
        stage = next(stage for stage in self.recipe.stages if stage.name == name)
        return StageRecord(name, stage.kind, "f", {}, dict(stage.inputs), seconds=61.0)

    def begin(self, name: str) -> Path:
        return self.run.begin(self._record(name))

    def finish(self, name: str, summary: Mapping[str, Any] = {}, outputs: Mapping[str, str] = {}) -> Path:
        folder = self.begin(name)
        for path in outputs.values():
            if not (folder / path).exists():
                (folder / path).mkdir()
        self.run.finish(replace(self._record(name), summary=dict(summary), outputs=dict(outputs)))
        return folder

    def evaluated(self, name: str, trajectories: Sequence[Trajectory]) -> None:
        evaluation = Evaluation(tuple(map(score, trajectories)), tuple(trajectories))
        evaluation.save(self.begin(name) / EVALUATION, {})
        self.finish(name, main_numbers(evaluation), {EVALUATION: EVALUATION})

    def learnt(self, name: str, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], output: str) -> None:
        folder = self.finish(name, summary, {output: output})
        (folder / "curves.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def explored(self, trees: Sequence[Tree]) -> None:
        with TreeFile(self.begin("explore") / "trees.jsonl.gz") as file:
            for tree in trees:
                file.add(tree)
        self.finish("explore", EXPLORED, {"trees": "trees.jsonl.gz"})

    def page(self) -> str:
        return write_report(self.path).read_text(encoding="utf-8")


EXPLORED = {
    "trees": 1, "nodes": 5.0, "simulations": 6.0, "mean_f1": 0.5, "solved": 1.0, "failed": 0,
    "tokens_written": 1234, "shared": 0.25,
}  # fmt: skip
TRAINED = {"transcripts": 4, "asked": 5, "tokens": 4321, "steps": 2, "first_loss": 2.0, "last_loss": 1.0}
REFINED = {
    "questions": 3, "sampled": 9, "answered": 8, "right_answer": 7, "good_steps": 6, "distinct": 5, "kept": 4,
    "tokens_sampled": 800, "first_bad_step": {}, "first_bad_kind": {}, "broken": 0, "skipped_too_long": 0,
    "steps": 2, "first_loss": 1.0, "last_loss": 0.5,
}  # fmt: skip
GRADED = {"held_out_loss": 0.5, "scored_steps": 9, "held_out_steps": 2, "steps": 2, "first_loss": 1.0, "last_loss": 0.5}
EXAMINED = {
    "auc": {"mean": 0.71, "low": 0.6, "high": 0.8}, "steps": 20, "questions": 4,
    "by_kind": {
        "sub_answer": {"auc": {"mean": 0.66, "low": 0.5, "high": 0.8}, "steps": 12, "faulty": 4},
        "malformed": {"auc": None, "steps": 8, "faulty": 8},
    },
    "faults": {"premature": {"steps": 3, "below_0": 2 / 3}},
    "calibration": {"raw": {"error": 0.125}},
}  # fmt: skip
CURVE = [{"step": 1, "loss": 2.0, "lr": 0.1}, {"step": 2, "loss": 1.0, "lr": 0.2}]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A whole run of four questions: none, then two, then three of them are answered rightly."""
    run, questions = Made(tmp_path / "run"), asked(4)
    run.evaluated("before", [broken(each) for each in questions])
    run.learnt("sft", [*CURVE, {"step": 2, "dev_f1": 0.5}], TRAINED, "policy")
    run.evaluated("after", [answered(each, answer) for each, answer in zip(questions, ("Velm", "Velm", "Oss", "Oss"))])
    run.explored([small_tree(), small_tree(replace(QUESTION, id="other"))])
    run.learnt("prm", CURVE, GRADED, "reward")
    examination = run.begin("examined") / "examination"
    examination.mkdir()
    picture = reliability_svg("Does a score mean what it says?", {"raw": [0.2, 0.8]}, [False, True])
    (examination / "calibration.svg").write_text(picture)
    run.finish("examined", EXAMINED, {"examination": "examination"})
    run.learnt("rft", CURVE, REFINED, "policy")
    after = [answered(each, answer) for each, answer in zip(questions, ("Velm", "Oss", "Velm", "Velm"))]
    run.evaluated("refined", after)
    run.evaluated("oracle", [answered(each, "Velm") for each in questions])
    return run


# --- the whole page ---------------------------------------------------------------------------------------------


def test_a_finished_run_is_shown_from_results_to_how_it_was_made(made: Made) -> None:
    page = Page(made.page())
    assert page.sections == ["results", "curves", "prm", "trees", "transcripts", "cost", "reproduction"]
    assert [link for link in page.links if link.startswith("#")] == [f"#{each}" for each in page.sections]
    for words in (
        "seed 7",
        "0.50 [0.00, 1.00]",  # F1 of `after`
        "refined after 4 +0.250 [−",  # the paired difference
        "refined before 4 +0.750",
        "trained on 9 steps; held out 2",
        "0.66 [0.50, 0.80] 4 12",  # AUC of sub-answers
        "premature 67% 3",
        "2 of 2 trees",
        "1 right in both, 2 fixed, 1 regressed, 0 wrong in both",
        "total 9 min 09 s",
        "stepladder run example --set seed=7",
        "torch 9.9",
        "objective: verdicts",
    ):
        assert words in page.text
    assert "not finished" not in page.text


def test_the_page_loads_nothing_and_runs_only_its_own_script(made: Made) -> None:
    text = made.page()
    page = Page(text)
    assert all(link.startswith(("#", "data:image/svg+xml;base64,")) for link in page.links)
    assert {"link", "iframe", "object", "embed", "base", "form"}.isdisjoint(page.tags)
    assert "://" not in text
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text


def test_what_documents_and_models_write_is_shown_as_text(made: Made) -> None:
    text = made.page()
    page = Page(text)
    assert page.tags.count("script") == 1
    assert "<script>alert('passage')</script> & more" in page.text
    assert "First the <i>architect</i>." in page.text
    assert {"i", "step"}.isdisjoint(page.tags)
    assert text.count("<b>bold</b>") == 0


def test_the_same_run_gives_the_same_page(made: Made, tmp_path: Path) -> None:
    elsewhere = write_report(made.path, tmp_path / "deep" / "page.html")
    assert elsewhere == tmp_path / "deep" / "page.html"
    assert elsewhere.read_text() == made.page()
    assert (made.path / "report.html").is_file()


# --- runs that are not whole ------------------------------------------------------------------------------------


def test_a_run_that_was_cut_shows_what_there_is(tmp_path: Path) -> None:
    run = Made(tmp_path / "run")
    run.evaluated("before", [broken(each) for each in asked(2)])
    (run.begin("sft") / "curves.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CURVE))
    page = Page(run.page())
    assert page.sections == ["results", "curves", "cost", "reproduction"]
    assert "Interrupted: sft. Pending: after, explore, prm" in page.text
    assert "sft 2 updates, not finished" in page.text


def test_a_run_of_one_evaluation_has_nothing_to_compare(tmp_path: Path) -> None:
    run = Made(tmp_path / "run", {**RECIPE, "stages": {"eval": {}}})
    run.evaluated("eval", [answered(each, "Velm") for each in asked(2)])
    page = Page(run.page())
    assert page.sections == ["results", "cost", "reproduction"]
    assert "Paired differences" not in page.text


def test_a_run_that_has_only_begun_tells_how(tmp_path: Path) -> None:
    assert Page(Made(tmp_path / "run").page()).sections == ["reproduction"]


def test_no_user_code_is_run(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("raise SystemExit('user code was run')")
    run = Made(tmp_path / "run", {**RECIPE, "agent": str(tmp_path / "agent.py")})
    run.evaluated("before", [broken(each) for each in asked(2)])
    assert "agent.py" in Page(run.page()).text


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match=r"is not a run: it has no run\.json"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- learning curves --------------------------------------------------------------------------------------------


def test_whatever_is_a_number_is_drawn(tmp_path: Path) -> None:
    run = Made(tmp_path / "run")
    rows = [
        {"step": n, "loss": 1 / n, "f1": n / 9, "hue_of_the_sky": n % 3, "kl": math.nan if n == 2 else n,
         "tokens": 5000, "note": "text"}
        for n in range(1, 5)
    ]  # fmt: skip
    run.learnt("sft", [*rows, {"step": 4, "dev_f1": 0.25, "dev_failed": 0}], TRAINED, "policy")
    page = Page(run.page())
    assert page.labels == ["loss", "F1", "hue of the sky", "KL from the initial policy"]
    assert "F1 0.111 → 0.444 · dev 0.25" in page.text  # one chart of both
    assert "1 values are not finite and not drawn" in page.text
    assert "tokens 5,000 (constant), failed 0 (one value)." in page.text


def test_the_kind_of_a_stage_is_told_where_its_name_does_not_tell(tmp_path: Path) -> None:
    run = Made(tmp_path / "run", {**RECIPE, "stages": {"sft": {}, "warm-up": {"kind": "sft"}}})
    for stage in run.recipe.stages:
        run.learnt(stage.name, CURVE, TRAINED, "policy")
    text = Page(run.page()).text
    assert "last value of the line. sft 2 updates" in text
    assert "warm-up sft, 2 updates" in text


def test_where_training_and_dev_measure_other_things_the_chart_says_so(tmp_path: Path) -> None:
    rows = [{**row, "error": 1 / row["step"]} for row in CURVE]
    scored = {"step": 2, "dev_loss": 0.5, "dev_error": 0.2}

    def page(name: str, stage: Mapping[str, Any]) -> str:
        run = Made(tmp_path / name, {**RECIPE, "stages": {"sft": {}, "explore": {}, "prm": {**stage}}})
        run.learnt("sft", [*CURVE, {"step": 2, "dev_loss": 0.5}], TRAINED, "policy")
        run.explored([small_tree()])
        run.learnt("prm", [*rows, scored], GRADED, "reward")
        return Page(run.page()).text

    assert "not comparable" not in page("plain", {"objective": "verdicts"})
    dense = page("dense", {"objective": "verdicts", "dense": 0.5})
    assert dense.count("not comparable: the training loss includes every token of a step, not only the last.") == 1
    chains = page("chains", {"objective": "verdicts", "chains": 9})
    assert len(re.findall(r"not comparable: the training \w+ includes gold and corrupted chains\.", chains)) == 2


def test_long_and_noisy_curves_are_thinned_and_smoothed() -> None:
    points = [(n, 1.0 + (-1) ** n) for n in range(1, 10_001)]
    line = downsampled(points)
    smooth = smoothed(line)
    assert len(line) == len(smooth) < 200
    assert [value for _, value in smooth] == pytest.approx([1.0] * len(smooth), abs=0.05)
    assert downsampled(points[:3]) == points[:3]
    assert smoothed(points[:3]) == []


def test_the_oracle_is_drawn_apart_from_the_models(made: Made) -> None:
    page = made.page()
    chart = page[page.index('aria-label="F1 by stage"') :].split("</svg>")[0]
    tips = re.findall(r"<title>(\w+): ([^<]*)</title>.*?<use [^>]*fill-(\w+)", chart)
    assert [(name, fill) for name, _, fill in tips] == [
        ("before", "series1"),
        ("after", "series1"),
        ("refined", "series1"),
        ("oracle", "paper"),
    ]
    assert tips[1][1] == "0.50 [0.00, 1.00]"


# --- trees and transcripts --------------------------------------------------------------------------------------


def faults(*views: NodeView) -> list[str | None]:
    return [view.verdict and view.verdict.fault for view in views]


def contents(views: Sequence[NodeView]) -> list[str]:
    return [view.node.step.action.content for view in views if view.node.step is not None]


def test_a_step_of_a_tree_tells_what_it_is_worth() -> None:
    tree = tree_view(small_tree(), {1: 1.9, 4: -800.0})
    good, bad = tree.children
    assert (good.node.visits, good.node.value, good.best) == (4, 0.75, True)
    assert good.rollouts == ["F1 1.00 after 1 more step: Velm (2 times)"]
    assert good.shortest == pytest.approx((3 * 0.9**2 + 0) / 4)
    assert good.verdict is not None
    assert good.verdict.good
    assert (faults(bad), bad.node.scores) == (["wrong"], {"leaf": 0.25})
    assert [end.node.reward for end in good.children] == [1.0, 0.0]
    assert faults(*good.children) == ["unsupported", "premature"]
    assert good.prm == pytest.approx(1 / (1 + math.exp(-1.9)))
    assert [bad.prm, *(end.prm for end in good.children)] == [None, None, pytest.approx(0.0)]
    assert (tree.answered, tree.right, tree.pruned) == (2, 1, 0)


def test_of_a_large_tree_the_most_visited_steps_are_shown_and_the_others_counted() -> None:
    tree = tree_view(small_tree(), {}, most=2)
    assert contents(tree.children) == ["Who designed Orm Tower?"]
    assert contents(tree.children[0].children) == ["Velm"]
    assert tree.pruned == 2


def test_trees_with_right_and_wrong_answers_are_preferred_of_every_number_of_searches() -> None:
    dull = replace(small_tree(), nodes=small_tree().nodes[:2])
    single = replace(QUESTION, hops=QUESTION.hops[:1])
    trees = [
        replace(dull, question=replace(QUESTION, id="dull")),
        replace(dull, question=replace(single, id="dull, one search")),
        small_tree(replace(QUESTION, id="mixed")),
        small_tree(replace(QUESTION, id="mixed as well")),
    ]
    assert [tree.question.id for tree in most_informative(trees, most=2)] == ["dull, one search", "mixed"]
    assert len(most_informative(trees)) == 4


def test_a_step_of_a_tree_is_shown_with_what_the_reward_model_thinks_of_it(made: Made) -> None:
    assert "PRM" not in made.page()
    trees = made.path / "explore" / "trees.jsonl.gz"
    write_tree_scores(made.path / "examined" / "examination" / TREE_SCORES, trees, by_answer)
    text = made.page()
    page = Page(text)
    assert "search Who designed Orm Tower? N 4 Q 0.75 S 0.61 PRM 0.50" in page.text
    assert "answer Velm unsupported N 3 F1 1.00 S 0.81 PRM 0.87 ≠" in page.text, "the gold judge calls it faulty"
    assert text.count('title="PRM score of this step') == text.count(">PRM 0.") == 8
    assert "PRM: score of the process reward model (stage examined)" in page.text


def test_scores_of_other_trees_are_not_shown(made: Made, tmp_path: Path) -> None:
    others = tmp_path / "others.jsonl.gz"
    with TreeFile(others) as file:
        file.add(replace(small_tree(), seed=1))
    write_tree_scores(made.path / "examined" / "examination" / TREE_SCORES, others, by_answer)
    assert "PRM" not in made.page()


def test_one_episode_that_failed_is_told_as_one(tmp_path: Path) -> None:
    run = Made(tmp_path / "run")
    first, *others = [answered(each, "Velm") for each in asked(4)]
    run.evaluated("after", [replace(first, stop=StopReason.FAILED), *others])
    assert "after: 1 episode failed, counted as wrong." in Page(run.page()).text


def test_before_is_the_first_evaluation_with_a_valid_transcript(made: Made) -> None:
    page = Page(made.page())
    assert "after vs. refined on the same questions" in page.text
    assert page.text.count("fixed Where was") == 2
    assert page.text.count("regressed Where was") == 1


# --- alarms and cost --------------------------------------------------------------------------------------------


def test_alarms_are_listed_with_what_came_of_them(made: Made) -> None:
    alarm = Alarm(40, AlarmName.ENTROPY_COLLAPSE, "it <u>fell</u>", 0.0625, 0.1, since=31, stopped=True)
    write_alarms(made.path / "rft" / "alarms.jsonl", [alarm])
    page = Page(made.page())
    assert "alarms" in page.sections
    assert "40 31 entropy collapse it <u>fell</u> 0.0625 0.1 stopped" in page.text


def test_reinforcement_learning_without_alarms_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = StageSpec(Config, lambda settings, context, task: StageResult(), outputs=("policy",))
    monkeypatch.setitem(STAGES._targets, "grpo", kind)
    run = Made(tmp_path / "run", {**RECIPE, "stages": {"grpo": {}}})
    run.learnt("grpo", [{"step": 1, "loss": 0.1, "reward": 1.0}, {"step": 2, "loss": 0.2, "reward": 2.0}], {}, "policy")
    page = Page(run.page())
    assert page.labels == ["loss", "reward"]
    assert "shows the problem. grpo None." in page.text


def test_cost_counts_what_stages_counted_and_no_more(made: Made) -> None:
    text = Page(made.page()).text
    assert "after eval 1 min 01 s 1 4 8 – – –" in text  # searches of four episodes; nobody counted tokens
    assert "explore explore 1 min 01 s 1 1 – – 1,234 –" in text
    assert "sft sft 1 min 01 s 1 5 – – – 4,321" in text
    assert "total 9 min 09 s 9 24 – 2,034 4,321" in text


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_says_where(made: Made, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(report_command)
    told = CliRunner().invoke(app, ["--run", str(made.path), "--out", str(tmp_path / "page.html")])
    assert told.exit_code == 0
    assert "".join(told.output.split()).startswith(f"{tmp_path}/page.html:")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    refused = CliRunner().invoke(app, ["--run", str(tmp_path / "nowhere")])
    assert isinstance(refused.exception, StepladderError)
