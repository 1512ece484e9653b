"""The work of workers, here threads: what they open, and that results are those of one process."""

import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stepladder.driver import Driver
from stepladder.driver.cluster import RayConfig
from stepladder.driver.cluster.remote_driver import RemoteDriver
from stepladder.evaluation.evaluator import evaluate
from stepladder.explore.tree_store import explore
from stepladder.judges.llm.config import LLMJudgeConfig
from stepladder.pipeline.guide_config import GuideConfig
from stepladder.pipeline.resources import ORACLE, SERVER, RunContext, SharedConfig
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.pipeline.stages.explore import mcts_tree
from stepladder.pipeline.stages.rank import ranked_tree
from stepladder.pipeline.workers.encoding import encoding_on_workers
from stepladder.pipeline.workers.rollout_workers import Scoring, open_driver, uses_workers
from stepladder.pipeline.workers.scoring import step_scores
from stepladder.retrieval.index.build import build_index
from tests.support.encoders import TOWNS, save_encoder
from tests.support.thread_workers import ThreadCluster

WORKER = "stepladder.pipeline.workers.rollout_workers:RolloutWorker"


def opened(ray: bool) -> RunContext:
    context = RunContext(SharedConfig.read({"ray": {"workers": 2} if ray else None}), Console(file=io.StringIO()))
    context.cluster = ThreadCluster() if ray else None  # type: ignore[assignment]
    return context


@pytest.mark.parametrize("guide", [None, GuideConfig(by="gold", n=2), GuideConfig(by="vote", n=2)])
def test_an_evaluation_is_that_of_one_process(guide: GuideConfig | None) -> None:
    results = []
    for ray in (False, True):
        context = opened(ray)
        scoring = None if guide is None else guide.scoring(None)
        with open_driver(context, ORACLE, scoring=scoring) as driver:
            assert isinstance(driver, RemoteDriver) == ray
            questions, limits = context.split("test")[:9], context.episode(0.5)
            choose = None if guide is None else guide.guide()
            results.append(evaluate(driver, context.agent, questions, limits, guide=choose, seed=2))
            assert driver.counts.asked["Generate"] > 9
    assert results[0] == results[1]
    assert results[1].upper_bound


def test_trees_are_the_same_file(tmp_path: Path) -> None:
    rules = ExploreConfig(simulations=6, width=2)
    for name, ray in (("one", False), ("two", True)):
        context = opened(ray)
        grow = partial(mcts_tree, context.agent, rules.search(context.episode()))
        rank = partial(ranked_tree, context.agent, context.episode(1.0), 3, False)
        questions = context.split("train")[:7]
        with open_driver(context, ORACLE, in_flight=3) as driver:
            assert explore(driver, questions, grow, tmp_path / f"{name}.gz", seed=1).made == 7
        with open_driver(context, ORACLE, scoring=Scoring("gold")) as driver:
            assert explore(driver, questions, rank, tmp_path / f"{name}-ranked.gz", seed=1).made == 7
    for kind in ("", "-ranked"):
        assert (tmp_path / f"two{kind}.gz").read_bytes() == (tmp_path / f"one{kind}.gz").read_bytes()


def test_servers_and_paid_judges_stay_with_this_process() -> None:
    context = opened(True)
    assert uses_workers(context, "nano", None, None)
    assert uses_workers(context, "nano", None, Scoring("gold", None, {"llm": None}))
    assert not uses_workers(context, SERVER, None, None)
    assert not uses_workers(context, "gpt", "openai", None)
    assert not uses_workers(context, "nano", None, Scoring("llm", None, {"llm": LLMJudgeConfig(model="judge")}))
    notes = context.console.file.getvalue()  # type: ignore[attr-defined]
    assert notes.count("a server generates: this stage runs in one process") == 2
    assert notes.count("a language model judges") == 1
    assert not uses_workers(opened(False), SERVER, None, None)


def test_a_job_that_cannot_travel_is_refused() -> None:
    context = opened(True)
    with open_driver(context, ORACLE) as driver, pytest.raises(TypeError, match=r"partial\(function, agent, ...\)"):
        driver.run([lambda: (yield None)])


class Lengths:
    """In place of a reward model: a logit per step."""

    class builder:
        retokenize = False
        truncated = 0

    def __init__(self) -> None:
        self.builder.truncated = 0

    @classmethod
    def load(cls, folder: str, **options: Any) -> "Lengths":
        assert (folder, options["retokenize"]) == ("prm", False)
        return cls()

    def score_logits(self, trajectories: Any) -> list[tuple[float, ...]]:
        return [tuple(float(len(step.written.text)) for step in each.steps) for each in trajectories]


def test_step_scores_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepladder.judges.prm.reward_model.ProcessRewardModel", Lengths)
    context = opened(False)
    with open_driver(context, ORACLE) as driver:
        assert type(driver) is Driver
        questions = context.split("test")[:9]
        episodes = evaluate(driver, context.agent, questions, context.episode()).trajectories
    model: Any = Lengths()
    with step_scores(context, model, "prm") as own, step_scores(opened(True), model, "prm") as workers:
        assert workers(episodes) == own(episodes)  # type: ignore[arg-type]
        assert len({len(scores) for scores in workers(episodes)}) > 1  # type: ignore[arg-type]
        assert workers([]) == []


def test_an_index_encoded_by_workers_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepladder.driver.cluster.ray_cluster.RayCluster", lambda *given: ThreadCluster())
    monkeypatch.setattr("stepladder.retrieval.index.vectors.SHARD", 16)
    monkeypatch.setattr("stepladder.retrieval.index.vectors._BATCHES", 2)
    model = save_encoder(tmp_path / "model")
    for name, config in (("one", None), ("two", RayConfig(workers=2))):
        with encoding_on_workers(config):
            build_index(TOWNS, tmp_path / name, "flat", encoder=str(model), device="cpu", batch=4)
    assert (tmp_path / "two/vectors.npy").read_bytes() == (tmp_path / "one/vectors.npy").read_bytes()
