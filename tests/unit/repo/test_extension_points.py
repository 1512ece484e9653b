"""The table "To add X, touch Y" of docs/architecture.md: each row is one file and at most one line of registration."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from rich.console import Console

from stepladder import Driver, Generate, check_agent, check_engine, check_judge
from stepladder.agents import make_agent
from stepladder.core.registry import Registry
from stepladder.core.trace import Tree
from stepladder.engines.registry import ENGINES, make_engine
from stepladder.engines.scripted import ScriptedEngine
from stepladder.judges.registry import judges, make_judge
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.stages import STAGES, scan_stages
from stepladder.reporting.report import write_report
from stepladder.reporting.run_tables import print_report
from stepladder.retrieval.factory import load_retriever
from stepladder.retrieval.index.build import build_index
from stepladder.retrieval.index.registry import INDEX_KINDS
from stepladder.train.grpo.config import ESTIMATORS, GRPOConfig
from stepladder.train.grpo.credit.credit_group import credit_group
from stepladder.train.loop.metrics_log import read_metrics
from stepladder.train.loop.trackers import TRACKERS
from stepladder.train.prm.config import STEP_LOSSES, PRMConfig
from stepladder.train.prm.trainer import batch_loss
from stepladder.train.sft.config import SFTConfig
from tests.support import ROOT, sft_training
from tests.support.samples import QUESTION, WordRetriever
from tests.support.trees import stroll, tree_of

REGISTRIES = (ENGINES, ESTIMATORS, INDEX_KINDS, STAGES, STEP_LOSSES, TRACKERS)
AddFile = Callable[[str, str, str], None]


@pytest.fixture
def add_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddFile]:
    """Add a module to a package as if it lay in its folder; everything is undone afterwards."""
    before = [(registry, dict(registry._targets), dict(registry._descriptions)) for registry in REGISTRIES]
    added: list[str] = []

    def add(package: str, module: str, source: str) -> None:
        folder = tmp_path / package
        folder.mkdir(exist_ok=True)
        (folder / f"{module}.py").write_text(dedent(source))
        path = import_module(package).__path__
        monkeypatch.setattr(import_module(package), "__path__", [*path, str(folder)])
        added.append(f"{package}.{module}")

    import_module("stepladder.agents")._scan.cache_clear()
    judges.cache_clear()
    yield add
    for registry, targets, descriptions in before:
        registry._targets, registry._descriptions = targets, descriptions
    for module in added:
        sys.modules.pop(module, None)
    import_module("stepladder.agents")._scan.cache_clear()
    judges.cache_clear()


def small_tree() -> Tree:
    (outcome,) = Driver(ScriptedEngine(stroll), WordRetriever()).run([lambda: tree_of(QUESTION, 0)])
    assert outcome.value is not None
    return outcome.value


def register(registry: Registry, name: str, target: str) -> None:
    """The one line of registration."""
    registry.register(name, target, "added by a test")


def test_the_documentation_lists_these_eight() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rows = ("agent", "judge", "stage", "advantage", "PRM loss", "retriever", "engine", "tracker")
    assert all(f"| {'an' if name[0] in 'ae' else 'a'} {name} |" in page for name in rows)


def test_an_agent_is_one_file(add_file: AddFile) -> None:
    add_file(
        "stepladder.agents",
        "polite",
        '''
        from stepladder.agents.direct import Direct

        class Polite(Direct):
            """Answers at once, with a politer prompt."""

            name = "polite"
            summary = "direct, politely"

            def render(self, trajectory):
                (prompt,) = super().render(trajectory)
                return (type(prompt)(prompt.author, "Please. " + prompt.text),)
        ''',
    )
    agent = make_agent("polite")
    check_agent(agent)
    recipe = Recipe.read({"agent": "polite", "stages": {"eval": {"policy": "oracle"}}})
    assert recipe.shared.agent == "polite"


def test_a_judge_is_one_file(add_file: AddFile) -> None:
    add_file(
        "stepladder.judges",
        "brevity",
        '''
        from stepladder.judges.base import JudgeSpec, Preference

        class Brevity:
            """Prefers the shortest step."""

            name = "brevity"

            def prefer(self, tree, siblings):
                yield from ()
                ranked = sorted(siblings, key=lambda node: len(node.step.action.content))
                short, long = ranked[0], ranked[-1]
                equal = len(short.step.action.content) == len(long.step.action.content)
                return [] if equal else [Preference(short.id, long.id, reason="shorter")]

        JUDGES = {"brevity": JudgeSpec(lambda options: Brevity(), "the shortest step")}
        ''',
    )
    check_judge(make_judge("brevity"), [small_tree()])
    recipe = Recipe.read({"stages": {"explore": {}, "pairs": {"judge": "brevity"}}})
    assert recipe.stages[1].settings.judge == "brevity"


def test_a_stage_is_one_file_and_appears_in_tables_and_report(add_file: AddFile, tmp_path: Path) -> None:
    add_file(
        "stepladder.pipeline.stages",
        "count_questions",
        """
        from stepladder.core.config import Config
        from stepladder.pipeline.stage import StageResult, StageSpec, never
        from stepladder.pipeline.stage_summary import StageCost

        class CountConfig(Config):
            split: str = "test"

        def run(settings, context, task):
            (task.folder / "count.txt").write_text(str(len(context.split(settings.split))))
            return StageResult({"questions": 7}, {"count": task.folder / "count.txt"})

        STAGE = StageSpec(
            CountConfig,
            run,
            inputs=(),
            outputs=("count",),
            summarize=lambda numbers: (f"{numbers['questions']} questions counted", {}),
            cost=lambda stage: StageCost(questions=7),
            questions=lambda stage: ["q1"],
            generates=never,
        )
        """,
    )
    scan_stages()
    recipe = Recipe.read({"agent": "direct", "stages": {"count": {"kind": "count-questions", "split": "dev"}}})
    report = run_recipe(recipe, tmp_path / "run", console=Console(quiet=True))
    with Console(width=120, quiet=False) as console, console.capture() as captured:
        print_report(console, report)
    assert "count: 7 questions counted" in captured.get()
    write_report(tmp_path / "run", tmp_path / "report.html")
    assert "count-questions" in (tmp_path / "report.html").read_text()


def test_an_advantage_is_one_file_and_one_line(add_file: AddFile) -> None:
    add_file(
        "stepladder.train.grpo.credit",
        "first_step",
        '''
        import numpy as np
        from stepladder.train.grpo.credit.base import AdvantageEstimator

        def advantages(group, settings):
            """The outcome reward, on the first step only."""
            found = [np.zeros(len(episode.steps)) for episode in group.episodes]
            for each, reward in zip(found, group.outcome_rewards):
                each[:1] = reward
            return found

        FIRST_STEP = AdvantageEstimator(advantages)
        ''',
    )
    register(ESTIMATORS, "first-step", "stepladder.train.grpo.credit.first_step:FIRST_STEP")
    settings = GRPOConfig.read({"mode": "first-step"})
    assert not settings.scores_steps
    tree = small_tree()
    episodes = [tree.trajectory(node) for node in tree.nodes if node.stop is not None]
    for episode in credit_group(episodes, settings):
        assert episode.advantages == (episode.reward, *np.zeros(len(episode.trajectory.steps) - 1))


def test_a_prm_loss_is_one_file_and_one_line(add_file: AddFile) -> None:
    add_file(
        "stepladder.train.prm",
        "squared_loss",
        """
        def squared_loss(scores, targets):
            return (scores.sigmoid() - targets) ** 2
        """,
    )
    register(STEP_LOSSES, "squared", "stepladder.train.prm.squared_loss:squared_loss")
    assert PRMConfig.read({"objective": "values", "loss_type": "squared"}).loss_type == "squared"
    none = {"answers": torch.zeros(0, dtype=torch.long), "before_answers": torch.zeros((0, 2), dtype=torch.long)}
    batch = {"better": [], "values": torch.tensor([1.0, 0.0]), "weights": torch.ones(2), "steps": 2, **none}
    loss, _ = batch_loss(torch.zeros(2), batch, 0.0, "squared")
    assert float(loss) == pytest.approx(0.5)


def test_a_retriever_is_one_file_and_one_line(add_file: AddFile, tmp_path: Path) -> None:
    add_file(
        "stepladder.retrieval.index",
        "alphabetical",
        '''
        from stepladder.core.config import Config
        from stepladder.retrieval.base import Retriever
        from stepladder.retrieval.index.registry import IndexKind

        class Alphabetical(Retriever):
            """Returns the first passages by title."""

            def __init__(self, passages):
                self.passages = sorted((passages[i] for i in range(len(passages))), key=lambda each: each.title)

            def search(self, queries, k):
                return [tuple(self.passages[:k]) for _ in queries]

        KIND = IndexKind(
            Config,
            lambda passages, to, settings, memory, progress: {},
            lambda folder, passages, device: Alphabetical(passages),
            dense=False,
            resumable=False,
        )
        ''',
    )
    register(INDEX_KINDS, "alphabetical", "stepladder.retrieval.index.alphabetical:KIND")
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("id\ttext\ttitle\np1\tA river.\tVelm\np2\tA city.\tArn\n")
    build_index(corpus, tmp_path / "index", "alphabetical")
    (found,) = load_retriever(str(tmp_path / "index")).search(["anything"], 1)
    assert [passage.title for passage in found] == ["Arn"]


def test_an_engine_is_one_file_and_one_line(add_file: AddFile) -> None:
    add_file(
        "stepladder.engines",
        "echo",
        """
        from stepladder.engines.scripted import ScriptedEngine

        def build(options):
            return ScriptedEngine(lambda request: f"Velm {request.seed}")
        """,
    )
    register(ENGINES, "echo", "stepladder.engines.echo:build")
    engine = make_engine("echo", make_agent("direct"))
    check_engine(engine)
    assert Recipe.read({"engine": "echo", "stages": {"eval": {}}}).shared.engine == "echo"
    (outcome,) = Driver(engine).run([lambda: _once()])
    assert outcome.value == "Velm 0"


def _once():
    reply = yield Generate(())
    return reply.text


def test_a_tracker_is_one_file_and_one_line(add_file: AddFile, tmp_path: Path) -> None:
    add_file(
        "stepladder.train.loop",
        "list_tracker",
        """
        from transformers import TrainerCallback

        LOSSES = {}

        class ListTracker(TrainerCallback):
            def on_log(self, args, state, control, logs, **_):
                if "loss" in logs:
                    LOSSES[state.global_step] = logs["loss"]
        """,
    )
    register(TRACKERS, "list", "stepladder.train.loop.list_tracker:ListTracker")
    settings = SFTConfig.read({**sft_training.SETTINGS.model_dump(exclude_unset=True), "report_to": ["list"]})
    sft_training.train(tmp_path, settings)
    rows = [row for row in read_metrics(tmp_path / "curves.jsonl") if "loss" in row]
    losses = import_module("stepladder.train.loop.list_tracker").LOSSES
    assert losses == {row["step"]: row["loss"] for row in rows}
