"""Comparing runs: shared questions, seeds as one arm, significant differences, training cost."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from stepladder import Pair, Question, Tree
from stepladder.cli.reports import compare_command
from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import write_records
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Action, ActionKind, Author, Node, Segment, Side, StopReason
from stepladder.evaluation.evaluator import Evaluation
from stepladder.explore.tree_store import TreeFile
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe, shipped
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.run_folder import RunFolder, StageRecord, claim
from stepladder.pipeline.stages import STAGES, StageResult, StageSpec, Task
from stepladder.pipeline.stages.eval import EVALUATION, main_numbers
from stepladder.pipeline.stages.prm import run_prm
from stepladder.reporting.compare import RunComparison, compare_arms, group_by_seed, load_sources
from stepladder.reporting.compare.compare_page import render as rendered
from stepladder.reporting.compare.compare_table import print_comparison
from stepladder.reporting.compare.comparison import holm
from stepladder.reporting.compare.provenance import ProvenanceResolver
from stepladder.train.grpo.config import GRPOConfig
from tests.support.html_pages import Page
from tests.support.samples import QUESTION

# --- evaluations and runs, as they would have been left ---------------------------------------------------------


def rows(f1: Sequence[float], *, first: int = 0, read: int = 100, **more: Any) -> tuple[QuestionScore, ...]:
    """One row a score, of the questions q0, q1 ...; even ones need one search, odd ones two."""
    common = {"stop": StopReason.ANSWERED, "prediction": "x", "searches": 2, "tokens_read": read, "tokens_written": 10}
    return tuple(
        QuestionScore(f"q{number}", "bridge", 1 + number % 2, em=float(score == 1), f1=score, **{**common, **more})
        for number, score in enumerate(f1, start=first)
    )


def saved(folder: Path, scores: Sequence[QuestionScore], **described: Any) -> str:
    """An evaluation as `stepladder eval --out` writes it."""
    Evaluation(tuple(scores), ()).save(folder, {"agent": "rag", "model": "m", "seed": 0, **described})
    return str(folder)


def questions_file(path: Path, count: int) -> Path:
    asked = [f"What is {number}?" for number in range(count)]
    lines = [
        {
            "id": f"t{number}",
            "question": text,
            "golden_answers": ["x"],
            "metadata": {"question_decomposition": [{"question": text, "answer": "x"}]},
        }
        for number, text in enumerate(asked)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class NoConfig(Config):
    """Nothing to set."""


class Made:
    """A run's folder, to which stages are added one by one."""

    def __init__(self, path: Path, stages: Mapping[str, Any], **shared: Any) -> None:
        self.path = path
        self.recipe = Recipe.read({"name": "example", "policy": "tiny", **shared, "stages": stages})
        with claim(path) as run:
            run.add_session({})
            run.write_recipe(self.recipe)
        self.run = RunFolder(path)

    def finish(self, name: str, summary: Mapping[str, Any] = {}, output: str | None = None, file: str = "") -> Path:
        stage = next(stage for stage in self.recipe.stages if stage.name == name)
        record = StageRecord(name, stage.kind, "f", {}, dict(stage.inputs), seconds=90.0)
        folder = self.path / name
        if not folder.exists():
            self.run.begin(record)
        if output is not None and not (folder / (file or output)).exists():
            (folder / output).mkdir()
        outputs = {} if output is None else {output: file or output}
        self.run.finish(replace(record, summary=dict(summary), outputs=outputs))
        return folder

    def evaluated(self, name: str, scores: Sequence[QuestionScore]) -> None:
        evaluation = Evaluation(tuple(scores), ())
        evaluation.save(self.finish(name) / EVALUATION, {})
        self.finish(name, main_numbers(evaluation), EVALUATION)

    def explored(self, name: str, ids: Sequence[str], **summary: Any) -> None:
        with TreeFile(self.finish(name) / "trees.jsonl.gz") as file:
            for each in ids:
                file.add(Tree(replace(QUESTION, id=each), "prorag", (Node(0, None, None),)))
        self.finish(name, {"trees": len(ids), **summary}, "trees", "trees.jsonl.gz")


def compared(*texts: str, stage: str | None = None, **options: Any) -> RunComparison:
    return compare_arms(group_by_seed(load_sources(texts, stage)), **options)


def labels(*texts: str) -> list[str]:
    return [group.label for group in group_by_seed(load_sources(texts))]


def render(found: RunComparison) -> str:
    return rendered(found, found.pairwise())


def shown(found: RunComparison, width: int = 120) -> str:
    told = StringIO()
    print_comparison(Console(file=told, width=width), found)
    return told.getvalue()


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(compare_command)
    return CliRunner().invoke(app, list(arguments))


# --- numbers ----------------------------------------------------------------------------------------------------


def test_lines_are_compared_question_by_question_with_the_first(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", rows([0, 0, 0, 0]))
    b = saved(tmp_path / "b", rows([1, 1, 1, 0]))
    found = compared(a, b)
    assert (found.questions, found.reference) == (4, "a")
    assert [line.scores["f1"].mean for line in found.arms] == [0.0, 0.75]
    assert list(found.differences) == ["b"]
    difference = found.differences["b"]
    assert difference.difference.mean == 0.75
    assert difference.p_value == 0.25  # 2 of the 8 sign patterns of three differences reach their sum
    assert not difference.significant
    assert found.arms[1].by_hops == {"1": 1.0, "2": 0.5}
    assert found.hops == {"1": 2, "2": 2}


def test_p_values_are_corrected_over_all_lines_that_are_compared(tmp_path: Path) -> None:
    assert holm([0.04, 0.01, 0.03]) == [0.06, 0.03, 0.06]  # 0.01 x 3, 0.03 x 2, and 0.04 not below the one before it
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([]) == []
    places = [saved(tmp_path / "a", rows([0] * 10))]
    places += [saved(tmp_path / name, rows([1] * count + [0] * (10 - count))) for name, count in (("b", 7), ("c", 8))]
    found = compared(*places)
    # All of n differences are positive: 2 of 2^n sign patterns. The smaller p counts twice.
    assert found.differences["b"].p_value == 2 / 128
    assert found.differences["c"].p_value == 2 / 256
    assert found.differences["b"].corrected == 2 / 128
    assert found.differences["c"].corrected == 2 * 2 / 256
    assert found.differences["c"].significant
    pairwise = {(each.arm, each.against): each for each in found.pairwise()}
    assert pairwise.keys() == {("a", "b"), ("a", "c"), ("b", "c")}
    assert pairwise["a", "c"].corrected == 3 * 2 / 256
    assert pairwise["b", "c"].p_value == 1.0


def test_the_reference_the_metric_and_the_order_can_be_chosen(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", rows([0.5, 0.5], searches=3))
    b = saved(tmp_path / "b", rows([1, 0], searches=1))
    c = saved(tmp_path / "c", rows([1, 1], searches=2))
    found = compared(a, b, c, metric="em", against="c", sort="f1")
    assert [line.label for line in found.arms] == ["c", "a", "b"]  # equals stay in their order
    assert {name: each.difference.mean for name, each in found.differences.items()} == {"a": -1.0, "b": -0.5}
    searches = compared(a, b, metric="searches")
    assert searches.arms[0].scores["searches"].mean == 3
    assert searches.differences["b"].difference.mean == -2
    with pytest.raises(StepladderError, match="Did you mean 'f1'"):
        compared(a, metric="f11")
    with pytest.raises(StepladderError, match=r"unknown arm to compare against: 'd'.* Known: a, b"):
        compared(a, b, against="d")


def test_a_metric_that_the_data_does_not_tell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="'gold_recall' is unknown for all of the 2 compared questions"):
        compared(saved(tmp_path / "a", rows([1, 0])), metric="gold_recall")


# --- questions --------------------------------------------------------------------------------------------------


def test_only_questions_that_all_have_are_compared_and_the_others_are_counted(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", rows([1, 1, 0, 0]))
    cut = replace(rows([0], first=4)[0], stop=StopReason.CANCELLED)
    b = saved(tmp_path / "b", (*rows([0, 1], first=2), cut))
    found = compared(a, b)
    assert found.questions == 2
    assert [line.scores["f1"].mean for line in found.arms] == [0.0, 0.5]
    text = shown(found)
    assert "a: 2 questions excluded, which are not in all evaluations" in text
    assert "b: 1 questions were not evaluated (interrupted)" in text


def test_evaluations_that_share_no_question_are_named(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", rows([1, 0])), saved(tmp_path / "b", rows([1, 0, 1]))
    c = saved(tmp_path / "c", rows([1], first=9))
    with pytest.raises(StepladderError, match=re.escape(f"{a} and {c} share none")):
        compared(a, b, c)


def test_ids_that_name_different_questions_are_noticed(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", rows([1, 0]))
    b = saved(tmp_path / "b", [replace(row, kind="single") for row in rows([1, 0])])
    with pytest.raises(StepladderError, match=r"question q0 differs between .*a .bridge.* and .*b .single, 1 searches"):
        compared(a, b)


def test_episodes_that_failed_count_as_wrong_and_are_told(tmp_path: Path) -> None:
    broken = replace(rows([0])[0], stop=StopReason.FAILED)
    found = compared(saved(tmp_path / "a", [broken, *rows([1], first=1)]))
    assert found.arms[0].scores["f1"].mean == 0.5
    assert "a: 1 episode failed, counted as wrong" in shown(found)


# --- seeds and names --------------------------------------------------------------------------------------------


def test_seeds_are_one_line_whose_questions_are_averaged(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", rows([1, 0, 1, 0]), seed=0)
    two = saved(tmp_path / "two", rows([1, 1, 0, 0]), seed=1)
    base = saved(tmp_path / "base", rows([0, 0, 0, 0]), model="other")
    found = compared(base, one, two)
    line = found.arms[1]
    assert [seed.seed for seed in line.seeds] == [0, 1]
    assert line.values == (1.0, 0.5, 0.5, 0.0)
    assert line.scores["f1"].mean == 0.5
    assert line.range("f1") == (0.5, 0.5)
    assert line.range("em") == (0.5, 0.5)
    assert found.arms[0].range("f1") is None
    # Three differences, all positive: 2 of 8 sign patterns. Six rows that were taken for six questions would give less.
    assert found.differences[line.label].p_value == 0.25
    assert "2 seeds (0, 1), F1 from 0.50 to 0.50" in shown(found)


def test_a_label_makes_one_line_of_whatever_has_it(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", rows([1, 0]), agent="rag")
    two = saved(tmp_path / "two", rows([0, 0]), agent="prorag")
    (line,) = compared(f"both={one}", f"both={two}").arms
    assert (line.label, line.agent, line.scores["f1"].mean, line.range("f1")) == ("both", "rag, prorag", 0.25, (0, 0.5))


def test_runs_that_are_alike_to_the_seed_stay_apart(tmp_path: Path) -> None:
    before = saved(tmp_path / "before" / "x", rows([1, 0]))
    after = saved(tmp_path / "after" / "x", rows([1, 1]))
    assert labels(before, after) == ["before/x", "after/x"]


def test_lines_are_called_by_the_shortest_names_that_tell_them_apart(tmp_path: Path) -> None:
    stages = {"first": {"kind": "eval"}, "last": {"kind": "eval"}}

    def made(folder: str, **shared: Any) -> str:
        run = Made(tmp_path / folder, stages, **shared)
        for stage in stages:
            run.evaluated(stage, rows([1, 0]))
        return str(run.path)

    plain, other, rag = made("a"), made("b", name="other"), made("c", agent="rag")
    k1 = made("d", search={"k": 1})
    assert labels(plain, other) == ["example", "other"]
    assert labels(f"{plain}:*", other) == ["example first", "example last", "other"]
    assert labels(plain, rag, other) == ["example prorag", "example rag", "other"]
    assert labels(plain, k1) == ["a", "d"]
    assert labels(f"{plain}:first", f"{rag}:last") == ["example first", "example last"]
    assert labels(f"example={other}", plain) == ["example", "example last"]
    assert labels(plain, made("e", seed=1)) == ["example"]
    assert labels(f"mine={plain}:*") == ["mine first", "mine last"]


def test_a_name_may_hold_what_separates_labels_and_stages(tmp_path: Path) -> None:
    odd = saved(tmp_path / "lr=1:b", rows([1]))
    (source,) = load_sources([odd])
    assert (source.label, source.name, source.path) == (None, "lr=1:b", odd)
    (labelled,) = load_sources([f"mine={odd}"])
    assert labelled.label == "mine"


# --- runs -------------------------------------------------------------------------------------------------------

RUN_STAGES = {
    "before": {"kind": "eval"},
    "sft": {"questions": 3},
    "after": {"kind": "eval"},
    "oracle": {"kind": "eval", "policy": "oracle"},
}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    file = questions_file(tmp_path / "train.jsonl", 8)
    run = Made(tmp_path / "run", RUN_STAGES, data={"train": str(file), "index": "http://localhost:1"})
    run.evaluated("before", rows([0, 0]))
    run.finish("sft", {"asked": 3}, "policy")
    run.evaluated("after", rows([1, 0]))
    run.evaluated("oracle", rows([1, 1]))
    return run


def test_of_a_run_the_last_evaluation_of_a_policy_counts(made: Made) -> None:
    def f1(*texts: str, stage: str | None = None) -> list[float]:
        return [line.scores["f1"].mean for line in compared(*texts, stage=stage).arms]

    path = str(made.path)
    assert f1(path) == [0.5]
    assert f1(f"{path}:oracle") == [1.0]
    assert f1(path, f"{path}:oracle", stage="before") == [0.0, 1.0]
    assert f1(f"{path}:*") == [0.0, 0.5, 1.0]
    with pytest.raises(StepladderError, match="Did you mean 'after'"):
        compared(f"{path}:aftr")


def test_mistakes_are_explained(made: Made, tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="nothing does not exist; expected a run"):
        compared(str(tmp_path / "nothing"))
    with pytest.raises(StepladderError, match=r"has neither run\.json nor scores\.jsonl"):
        compared(str(tmp_path))
    with pytest.raises(StepladderError, match="is given twice"):
        compared(str(made.path), f"{made.path}:after")
    with pytest.raises(StepladderError, match="is a single evaluation without stages; remove ':after'"):
        compared(f"{saved(tmp_path / 'a', rows([1]))}:after")
    (made.path / "after" / "stage.json").unlink()
    with pytest.raises(StepladderError, match=r"'after' of the run .* is not finished: .*:oracle"):
        compared(str(made.path))


def test_an_evaluation_of_a_runs_policy_knows_how_it_was_trained(made: Made, tmp_path: Path) -> None:
    """`eval --run` writes the policy's folder down: recipe, seed and training follow from it."""
    folder = saved(tmp_path / "mine", rows([1, 0]), model=str(made.path / "sft" / "policy"), seed=5)
    (line,) = compared(folder).arms
    assert (line.label, line.seeds[0].seed, line.training("questions")) == ("example", 0, 3)


# --- what training took -----------------------------------------------------------------------------------------


def test_what_is_not_known_is_a_dash_and_never_0(made: Made) -> None:
    uncounted = Made(made.path.parent / "teacher", {"sft": {"source": "bootstrap"}, "after": {"kind": "eval"}})
    uncounted.finish("sft", {}, "policy")
    uncounted.evaluated("after", rows([1, 1], read=0, tokens_written=0))
    found = compared(f"{made.path}:after", f"{made.path}:before", f"teacher={uncounted.path}")
    trained, untrained, teacher = found.arms
    assert (trained.training("questions"), trained.training("tokens"), trained.training("minutes")) == (3, 0, 1.5)
    assert (untrained.training("questions"), untrained.training("tokens"), untrained.training("minutes")) == (
        None,
        None,
        None,
    )
    assert (teacher.training("tokens"), teacher.tokens, teacher.mean("tokens_read")) == (None, None, None)
    words = shown(found, 140).splitlines()
    assert next(line for line in words if line.startswith("example after")).split()[-3:] == ["3", "0", "1.5"]
    assert next(line for line in words if line.startswith("example before")).split()[-3:] == ["-", "-", "-"]
    assert "Tokens not counted: teacher." in render(found)


def test_questions_are_counted_once_over_all_that_a_policy_descends_from(tmp_path: Path) -> None:
    file = questions_file(tmp_path / "train.jsonl", 8)
    run = Made(
        tmp_path / "run",
        {
            "sft": {"questions": 8},
            "explore": {"questions": 3},
            "unused": {"kind": "explore"},
            "pairs": {"trees": "explore", "judge": "mc"},
            "dpo": {},
            "after": {"kind": "eval"},
        },
        data={"train": str(file), "index": "http://localhost:1"},
    )
    run.finish("sft", {}, "policy")
    run.explored("explore", ["t1", "t2", "elsewhere"], tokens_written=700)
    run.explored("unused", ["u1", "u2"], tokens_written=10_000)
    run.finish("pairs", {}, "pairs")
    run.finish("dpo", {}, "policy")
    run.evaluated("after", rows([1, 0]))
    (line,) = compared(str(run.path)).arms
    assert line.training("questions") == 9  # the eight of the warm-up, two of them explored again, and one more
    assert line.training("tokens") == 700
    assert line.training("minutes") == 4 * 1.5
    (run.path / "explore" / "trees.jsonl.gz").unlink()
    (line,) = compared(str(run.path)).arms
    assert (line.training("questions"), line.training("tokens")) == (None, None)


def test_questions_of_pairs_and_trees_are_read_from_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = StageSpec(NoConfig, lambda *_: StageResult(), inputs=(), outputs=("trees",))
    monkeypatch.setitem(STAGES._targets, "any", kind)  # whatever makes trees, its questions are those of the trees
    (tmp_path / "given.jsonl").touch()
    run = Made(
        tmp_path / "run",
        {
            "any": {},
            "given": {"kind": "pairs-file", "path": str(tmp_path / "given.jsonl")},
            "made": {"kind": "pairs"},
            "dpo": {"pairs": "given"},
            "prm": {"pairs": "made"},
        },
    )
    run.explored("any", ["t1", "t2"])
    side = Side(Segment(Author.POLICY, "x"), Action(ActionKind.ANSWER, "x"), None, 1, {})
    for stage in ("given", "made"):
        folder = run.finish(stage, {}, "pairs") / "pairs"
        for name, ids in (("train.jsonl", ("p1", "p2", "p1")), ("dev.jsonl", ("p3",))):
            write_records(folder / name, [Pair(each, "prorag", (), side, side, 0, "gold") for each in ids])
    run.finish("dpo", {}, "policy")
    run.finish("prm", {}, "reward")
    given, pairs = (ProvenanceResolver().resolve([(run.path, stage)]) for stage in ("dpo", "prm"))
    assert (given.names_in(run.path), given.questions, given.tokens_written) == (["given", "dpo"], 3, 0)
    assert (pairs.questions, pairs.tokens_written) == (3 + 2, None)  # by way of its policy too; one does not tell


def test_a_policy_that_began_with_another_runs_descends_from_that_too(made: Made, tmp_path: Path) -> None:
    file = questions_file(tmp_path / "more.jsonl", 8)
    later = Made(
        tmp_path / "later",
        {"sft": {"questions": 2}, "after": {"kind": "eval"}},
        policy=str(made.path / "sft" / "policy"),
        data={"train": str(file), "index": "http://localhost:1"},
    )
    later.finish("sft", {}, "policy")
    later.evaluated("after", rows([1, 0]))
    (line,) = compared(str(later.path)).arms
    assert (line.training("questions"), line.training("minutes")) == (3 + 2, 2 * 1.5)  # other data: other questions


def used(run: Path, stage: str) -> set[str]:
    (use,) = [use for use in ProvenanceResolver().resolve([(run, stage)]).stages if use.stage == stage]
    assert use.questions is not None, use.problem
    return {question for _, question in use.questions}


@pytest.mark.parametrize("warmup", [0, 9])
def test_the_questions_of_a_warm_up_are_those_that_it_took(tmp_path: Path, warmup: int) -> None:
    recipe = Recipe.read(
        {
            "policy": "tiny",
            "agent": "direct",
            "device": "cpu",
            "seed": 3,
            "data": {"train": str(questions_file(tmp_path / "train.jsonl", 30)), "warmup": warmup},
            "stages": {"sft": {"questions": 7, "num_train_epochs": 1, "batch_size": 8, "dev_questions": 0}},
        }
    )
    run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))
    transcripts = (tmp_path / "run" / "sft" / "transcripts.jsonl").read_text().splitlines()
    taken = {json.loads(line)["question"]["id"] for line in transcripts}
    assert used(tmp_path / "run", "sft") == taken
    if warmup:
        assert taken <= {question.id for question in recipe.shared.data.open().split("warmup")}


def test_a_question_counts_once_however_its_data_is_parted(tmp_path: Path) -> None:
    file = questions_file(tmp_path / "train.jsonl", 12)
    policy = "tiny"
    for name, warmup in (("first", 0), ("second", 5)):
        sft = {"questions": 12, "num_train_epochs": 1, "batch_size": 8, "dev_questions": 0}
        data = {"train": str(file), "warmup": warmup}
        plain = {"policy": policy, "agent": "direct", "device": "cpu", "data": data, "stages": {"sft": sft}}
        run_recipe(Recipe.read(plain), tmp_path / name, console=Console(file=StringIO()))
        policy = str(tmp_path / name / "sft" / "policy")
    training = ProvenanceResolver().resolve([(tmp_path / "second", "sft")])
    assert [len(stage.questions or ()) for stage in training.stages] == [12, 5]
    assert training.questions == 12


def test_the_questions_of_a_refinement_are_those_that_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def cut(folder: Path, driver: object, agent: object, questions: Sequence[Question], *_: Any, **__: Any) -> None:
        folder.mkdir()
        taken.extend(question.id for question in questions)
        raise KeyboardInterrupt

    monkeypatch.setattr("stepladder.train.transcripts.sampled_episodes.sample_episodes", cut)
    recipe = Recipe.read(
        {
            "policy": "tiny",
            "agent": "direct",
            "device": "cpu",
            "data": {"train": str(questions_file(tmp_path / "train.jsonl", 30))},
            "stages": {"rft": {"questions": 7, "balance": True, "threshold": None, "dev_questions": 0}},
        }
    )
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, tmp_path / "run", console=Console(file=StringIO()))
    assert len(taken) == 7
    assert used(tmp_path / "run", "rft") == set(taken)


@pytest.mark.parametrize(("episodes", "count"), [(64, 8), (48, 6), (640, 20)])
def test_the_questions_of_reinforcement_learning_are_those_that_had_their_turn(
    tmp_path: Path, episodes: int, count: int
) -> None:
    from stepladder.train.grpo.trainer import _choose_questions, schedule

    settings = {"mode": "outcome", "questions": 20, "num_generations": 8, "batch_size": 16, "num_train_epochs": 3}
    file = questions_file(tmp_path / "train.jsonl", 30)
    run = Made(tmp_path / "run", {"grpo": settings}, data={"train": str(file), "index": "http://localhost:1"})
    run.finish("grpo", {"episodes": episodes, "tokens_sampled": 5}, "policy")
    seed = seed_of(0, "grpo") % 2**31
    typed = GRPOConfig.read(settings)
    context = SimpleNamespace(questions=run.recipe.shared.data.open().split("train"), seed=seed)
    chosen = _choose_questions(context, typed)  # type: ignore[arg-type]
    order, _ = schedule(len(chosen), typed, seed)
    assert used(run.path, "grpo") == {chosen[place].id for place in order[: episodes // 8]}
    assert len(used(run.path, "grpo")) == count


@pytest.mark.parametrize("episodes", [0, 5])
def test_the_questions_of_a_reward_model_are_those_that_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, episodes: int
) -> None:
    taken: list[str] = []

    def cut_short(questions: Sequence[Question]) -> list[Any]:
        taken.extend(question.id for question in questions)
        return []

    def cut(config: Any, context: Any, questions: Sequence[Question]) -> None:
        taken.extend(question.id for question in questions)
        raise KeyboardInterrupt

    monkeypatch.setattr("stepladder.train.prm.prm_sources._gold_and_corrupted", cut)
    monkeypatch.setattr("stepladder.train.prm.prm_sources._check_tokenizers", lambda *_: None)
    monkeypatch.setattr("stepladder.train.prm.prm_sources.from_trees", lambda *_: [])
    monkeypatch.setattr("stepladder.train.prm.trainer.train_prm", lambda *args: args[3](None))
    monkeypatch.setattr("stepladder.pipeline.stages.prm.sampled_episodes", lambda *args, **_: cut_short(args[2]))
    settings = {"objective": "verdicts", "chains": 6, "episodes": episodes, "dev_share": 0.5, "model": "tiny"}
    stages = {"explore": {}, "prm": settings}
    file = questions_file(tmp_path / "train.jsonl", 24)
    run = Made(tmp_path / "run", stages, data={"train": str(file), "index": "http://localhost:1"})
    run.explored("explore", [f"t{number}" for number in range(8)], tokens_written=1)
    run.finish("prm", {}, "reward")
    inputs = {"policy": "tiny", "trees": str(run.path / "explore" / "trees.jsonl.gz")}
    task = Task("prm", tmp_path, seed_of(0, "prm") % 2**31, inputs)
    with pytest.raises(KeyboardInterrupt):
        run_prm(run.recipe.stages[1].settings, RunContext(run.recipe.shared), task)  # type: ignore[arg-type]
    assert len(taken) == 6 + episodes
    assert used(run.path, "prm") == set(taken)


def test_questions_are_not_guessed_when_their_file_is_gone(made: Made, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").unlink()
    found = compared(str(made.path))
    assert found.arms[0].training("questions") is None
    assert re.search(r"questions of the stage 'sft' are\s+unknown: .*train.jsonl", shown(found, 400))


# --- the table --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> RunComparison:
    folder = tmp_path_factory.mktemp("many")
    places = [
        f"recipe-number{number}={saved(folder / f'{number}-{seed}', rows([1, 0, 1, seed] * 5), seed=seed)}"
        for number in range(15)
        for seed in range(2)
    ]
    return compared(*places)


@pytest.mark.parametrize(
    ("width", "last", "missing"),
    [
        (160, "min", None),
        (120, "min", None),
        (80, "tokens", "searches per question"),
        (60, "F1", "p"),
        (36, "F1", "difference"),
    ],
)
def test_the_table_leaves_out_its_last_columns_where_there_is_no_room(
    many: RunComparison, width: int, last: str, missing: str | None
) -> None:
    text = shown(many, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    (header,) = [line for line in lines if re.match(r"arm +", line)]
    assert header.split()[-1] == last
    body = [line for line in lines if re.match(r"recipe-number\d+ +20 x2 ", line)]
    assert len(body) == 15  # one line of text each, none broken
    assert all("0.62 [" in line for line in body)
    assert (f"columns omitted: {missing}" in " ".join(text.split())) is (missing is not None)


def test_at_80_columns_the_columns_that_matter_are_shown_and_the_rest_is_named(tmp_path: Path) -> None:
    names = ("prorag-nano eval-sft", "reasonrag-smollm2 eval-grpo with a guide")
    found = compared(*(f"{name}={saved(tmp_path / str(n), rows([n] * 200))}" for n, name in enumerate(names)))
    table, _, rest = shown(found, 80).partition("columns omitted: ")
    _, header, first, *others = table.splitlines()
    assert header.split() == ["arm", "n", "F1", "delta", "F1", "p", "EM", "tokens"]
    assert first.split() == ["prorag-nano", "200", "0.00", "[.00", ".00]", "reference", "0.00", "110"]
    assert "200 1.00 [1.00 1.00] +1.000 [+1.000 +1.000]* <.001 1.00 110" in " ".join(others[1].split())
    whole_words = ["eval-sft", "reasonrag-smollm2", "eval-grpo with a", "guide"]
    assert [line[:18].strip() for line in others] == whole_words
    assert "(use a terminal of 125 columns, --json or --html FILE)" in " ".join(rest.split())
    assert "columns omitted" not in shown(found, 125)
    wide = shown(found, 160)
    assert "columns omitted" not in wide
    assert "reasonrag-smollm2 eval-grpo" in wide
    assert wide.count("1.00 [1.00 1.00]") == 2, "EM has its interval, too"


def test_labels_are_text_on_a_terminal_too(tmp_path: Path) -> None:
    text = shown(compared(f"[red]\x1b[2J={saved(tmp_path / 'a', rows([1]))}"))
    assert "[red]·[2J" in text
    assert "\x1b" not in text


# --- the page ---------------------------------------------------------------------------------------------------


def test_the_page_shows_all_lines_and_needs_nothing_else(tmp_path: Path) -> None:
    evil = f"<script>alert(1)</script>={saved(tmp_path / 'a', rows([0] * 10))}"
    better = f'"b" & more={saved(tmp_path / "b", rows([1] * 8 + [0, 0]))}'
    third = saved(tmp_path / "c", rows([1] * 4 + [0] * 6), seed=0), saved(tmp_path / "d", rows([0.5] * 10), seed=1)
    source = render(compared(evil, better, *third))
    page = Page(source)
    assert page.tags.count("svg") == 3
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    for word in ("://", "@import", "url("):
        assert word not in source
    assert "default-src 'none'" in source
    assert "+0.800 [+0.500, +1.000]* 0.008" in page.text  # 2 of 256 sign patterns; the other p is less
    assert "after Holm's correction over all 3 pairs" in page.text
    assert "2 seeds (0, 1), F1 from 0.40 to 0.50" in page.text
    forest = source[source.index('aria-label="F1 of every arm"') :].split("</svg>")[0]
    assert len(re.findall(r'<use [^>]*class="fill-paper stroke-quiet"', forest)) == 3  # two rings, and the reference


def test_one_line_alone_is_a_page_too(tmp_path: Path) -> None:
    found = compared(saved(tmp_path / "a", rows([1, 0], read=0, tokens_written=0)))
    page = Page(render(found))
    assert page.tags.count("svg") == 1
    assert "pairs" not in page.ids
    assert "difference" not in shown(found)


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_or_json_and_writes_a_page(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", rows([0] * 8)), saved(tmp_path / "b", rows([1] * 8))
    plain = run(a, b)
    assert plain.exit_code == 0
    assert "reference" in plain.output
    page = tmp_path / "page.html"
    machine = run(a, b, "--json", "--html", str(page), "--sort", "f1")
    data = json.loads(machine.stdout)
    assert (data["questions"], data["reference"], [arm["label"] for arm in data["arms"]]) == (8, "a", ["b", "a"])
    better, reference = data["arms"]
    assert reference["difference"] is None
    assert better["difference"]["corrected"] == 2 / 256
    assert better["difference"]["significant"] is True
    assert (better["tokens_read"], better["training_questions"], better["seeds"][0]["path"]) == (100, None, b)
    assert data["pairwise"][0]["difference"]["mean"] == 1
    assert "F1 on 8 questions" in Page(page.read_text()).text
    refused = run(a, "--html", str(tmp_path / "no" / "page.html"))
    assert "give a file in an existing folder" in str(refused.exception)


# --- the index of recipes ---------------------------------------------------------------------------------------


def test_every_recipe_has_an_entry_in_the_index_and_every_entry_a_recipe() -> None:
    index = (next(iter(shipped().values())).parent / "README.md").read_text()
    entries = re.split(r"^## ", index, flags=re.MULTILINE)[1:]
    names = [re.match(r"`([\w.-]+)`", entry) for entry in entries]
    assert [name and name[1] for name in names] == sorted(shipped(), key=lambda name: index.index(f"## `{name}`"))
    for entry, name in zip(entries, names, strict=True):
        assert name is not None
        assert f"stepladder run {name[1]} --out" in entry
        for word in ("Paper", "Expect", "Choose it"):
            assert f"**{word}" in entry, f"{name[1]} does not say '{word}'"
