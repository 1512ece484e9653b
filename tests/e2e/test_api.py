"""The Python API: the example of the package docstring, with small sizes."""

import subprocess
import sys
from pathlib import Path

import pytest

import stepladder as sl
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Sampling
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.guided import Guide
from stepladder.explore.mcts import MCTSConfig
from tests.support.samples import QUESTION, WordRetriever

SMALL = {
    "name": "small",
    "policy": "nano",
    "agent": "prorag-brief",
    "data": {"name": "atlas"},
    "search": {"k": 1},
    "episode": {"max_steps": 6, "max_tokens": 64},
    "stages": {
        "explore": {"policy": "oracle", "questions": 2, "simulations": 2, "width": 2},
        "prm": {"model": "nano-critic", "objective": "verdicts", "chains": 4, "num_train_epochs": 1},
        "sft": {"questions": 8, "num_train_epochs": 1, "dev_questions": 0, "learning_rate": 5e-4},
        "eval-sft": {"kind": "eval", "limit": 3},
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> sl.Run:
    return sl.run(SMALL, tmp_path_factory.mktemp("api") / "small", {"stages.sft.questions": 4})


def test_a_run_has_scores_trees_a_policy_and_a_reward_model(
    run: sl.Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert repr(run).startswith("Run(")
    assert "done=['explore', 'prm', 'sft', 'eval-sft']" in repr(run)
    assert run.recipe.stages[2].settings.questions == 4
    scores = run.scores()
    assert list(scores) == ["eval-sft"]
    assert scores["eval-sft"]["questions"] == 3
    scores.show()
    assert "eval-sft" in capsys.readouterr().out
    assert len(run.trees) == 2
    tree = run.trees[0]
    tree.show()
    assert tree.question.text.split()[0] in capsys.readouterr().out
    assert "<svg" in tree._repr_html_()
    assert repr(tree).startswith("Tree(")
    episode = run.trees[1].trajectory(run.trees[1].nodes[-1])
    (scored,) = run.prm.score([episode])
    assert len(scored) == len(episode.steps)
    assert all(0 <= each <= 1 for each in scored)


def test_the_agent_of_a_run_is_asked(run: sl.Run, capsys: pytest.CaptureFixture[str]) -> None:
    with run.agent as agent:
        trajectory = agent.ask("Who designed the tower?")
    assert trajectory.stop is not None
    trajectory.show()
    assert "Who designed the tower?" in capsys.readouterr().out
    assert "<pre" in trajectory._repr_html_()
    assert "Trajectory('Who designed the tower?'" in repr(trajectory)


def test_policies_are_evaluated_and_runs_compared(
    run: sl.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = sl.evaluate(run.policy, "atlas", split="test", limit=3)
    assert len(evaluation.scores) == 3
    assert repr(evaluation).startswith("Evaluation(3 questions, F1 ")
    upper_bound = sl.evaluate("oracle", "atlas", limit=3, agent="prorag-brief", topk=1)
    assert upper_bound.summary().metrics["f1"].mean > evaluation.summary().metrics["f1"].mean
    upper_bound.show()
    assert "exact match" in capsys.readouterr().out
    other = sl.run(SMALL, tmp_path / "other", {"stages.sft.questions": 4, "stages.sft.learning_rate": 1e-5})
    comparison = sl.compare(run, other)
    comparison.show()
    assert "small" in capsys.readouterr().out
    assert repr(comparison).startswith("RunComparison(")


def test_a_built_in_recipe_takes_overrides_and_a_stale_stage_is_an_error(tmp_path: Path) -> None:
    small = {"stages.sft.questions": 2, "stages.sft.num_train_epochs": 1, "stages.sft.dev_questions": 0}
    small |= {"stages.eval-sft.limit": 2, "policy": "tiny"}
    run = sl.run("warmup-nano", tmp_path / "run", small)
    assert sl.load_run(tmp_path / "run").scores()["eval-sft"] == run.scores()["eval-sft"]
    with pytest.raises(StepladderError, match=r"is stale: stages.sft.questions: 2 -> 3"):
        sl.run("warmup-nano", tmp_path / "run", {**small, "stages.sft.questions": 3})


def test_a_trainer_runs_one_stage(run: sl.Run, tmp_path: Path) -> None:
    args = sl.GRPOConfig(num_generations=2, batch_size=4, questions=2, dev_questions=0)
    trainer = sl.GRPOTrainer(
        run.policy, agent="prorag-brief", data="atlas", scorer=run.prm, args=args, output_dir=tmp_path / "grpo"
    )
    report = trainer.train()
    assert (report.policy / "config.json").is_file()
    assert sl.load_policy(report.policy, agent="prorag-brief").model == str(report.policy)


def test_search_algorithms_run_in_a_driver() -> None:
    oracle = sl.load_policy("oracle", agent="prorag-brief", data="atlas")
    agent, engine = oracle.context.agent, oracle.driver.engine
    episode = EpisodeConfig(6, 1, Sampling(1.0))
    driver = sl.Driver(engine, WordRetriever())
    settings = MCTSConfig(episode, Sampling(), simulations=2, width=2)
    jobs = [
        lambda: sl.mcts_search(agent, QUESTION, settings, 0),
        lambda: sl.guided_search(agent, QUESTION, episode, Guide("vote", 2), 0),
    ]
    tree, trajectory = (outcome.value for outcome in driver.run(jobs))
    assert isinstance(tree, sl.Tree)
    assert isinstance(trajectory, sl.Trajectory)


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = ("torch", "pydantic", "rich", "numpy")
    program = f"import sys, stepladder; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    assert {"run", "evaluate", "compare", "GRPOTrainer", "check_agent"} <= set(dir(sl))
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        sl.runn  # noqa: B018
