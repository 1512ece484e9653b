"""Reward models in other domains: another world of Atlas, and relations that they were not trained on."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.errors import StepladderError
from stepladder.data import load_dataset, questions_with_relations
from stepladder.data.atlas import generate_atlas
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.tree_store import TreeFile
from stepladder.pipeline.fingerprint import all_ingredients
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import RunContext, SharedConfig
from stepladder.pipeline.stage import FinishedStage, Task
from stepladder.pipeline.stages import prm as prm_stage, prm_eval
from stepladder.pipeline.stages.prm import PRMStageConfig
from stepladder.pipeline.stages.prm_eval import PRMEvalConfig
from tests.support.samples import QUESTION, WordRetriever
from tests.support.trees import stroll, tree_of

RELATIONS = ("spouse", "rector")


def shared(**changes: Any) -> RunContext:
    return RunContext(SharedConfig.read({"policy": "tiny", "agent": "prorag-brief", "device": "cpu", **changes}))


def test_questions_are_found_by_the_relations_of_their_facts() -> None:
    found = questions_with_relations("atlas", RELATIONS)
    atlas = generate_atlas("small", 0)
    texts = {question.id: question.text for split in atlas.questions.values() for question in split}
    assert 60 < len(found) < 200
    with_word = [key for key in found if "rector" in texts[key] or "married" in texts[key] or "spouse" in texts[key]]
    assert len(with_word) > len(found) / 2, "most wordings have a word of the relation"
    assert found == {key for key, chain in atlas.chains.items() if {"spouse", "rector"} & {name for _, name in chain}}
    assert not found & questions_with_relations("atlas", RELATIONS, seed=1)
    with pytest.raises(StepladderError, match="relations are known of Atlas only, and the data is musique"):
        questions_with_relations("musique", RELATIONS)


@pytest.mark.parametrize(("config", "key"), [(PRMStageConfig, "leave_out_relations"), (PRMEvalConfig, "relations")])
def test_relations_are_named_as_atlas_does(config: Any, key: str) -> None:
    with pytest.raises(StepladderError, match=r"unknown relation of Atlas 'spuose'. Did you mean 'spouse'"):
        config.read({key: ["spuose"]})
    assert key in config().inert()
    assert key not in config.read({key: ["spouse"]}).inert()


def test_runs_of_earlier_versions_hold() -> None:
    stages = {"explore": {}, "prm": {"objective": "verdicts"}}
    ingredients = all_ingredients(Recipe.read({"policy": "tiny", "stages": stages}))["prm"]
    assert not [name for name in ingredients if "relations" in name or "label_noise" in name]


def test_an_examination_can_be_in_another_world() -> None:
    settings = PRMEvalConfig(world_seed=7, split="test")
    with prm_eval._domain(settings, shared()) as (context, questions):
        assert {question.id.split("-test-")[0] for question in questions} == {"atlas-2000-7"}
        assert context.retriever is not None
        assert context.retriever.search([questions[0].text], 1)[0], "an index of that world"
        gold = {passage for question in questions for hop in question.gold_passages for passage in hop}
        assert gold <= {passage.id for passage in context.data.passages or ()}
    for changes in ({"data": {"name": "musique"}}, {"data": {"index": "http://localhost:1"}}):
        expected = pytest.raises(StepladderError, match="world_seed of a prm-eval stage needs the data atlas")
        with expected, prm_eval._domain(settings, shared(**changes)):
            pass


def test_an_examination_can_be_of_some_relations() -> None:
    with prm_eval._domain(PRMEvalConfig(relations=RELATIONS, split="test"), shared()) as (_, questions):
        ids = {question.id for question in questions}
    tests = {question.id for question in load_dataset("atlas").split("test")}
    assert ids == questions_with_relations("atlas", RELATIONS) & tests
    assert 20 < len(ids) < 60


def test_a_reward_model_trains_without_questions_that_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four trees and eight questions, those of `q0`, `q1` and `q6` are left out."""
    questions = [replace(QUESTION, id=f"q{number}") for number in range(8)]
    monkeypatch.setattr(prm_stage, "questions_with_relations", lambda *_, **__: frozenset({"q0", "q1", "q6"}))
    monkeypatch.setattr(RunContext, "split", lambda *_: tuple(questions))
    path = tmp_path / "trees.jsonl.gz"
    seen: dict[str, Any] = {}
    grow = [partial(tree_of, question, seed=0) for question in questions[:4]]
    with TreeFile(path) as trees:
        for outcome in Driver(ScriptedEngine(stroll), WordRetriever()).run(grow):
            assert outcome.value is not None
            trees.add(outcome.value)

    def sources(settings: Any, training: Any, trees: Any, policy: Any, sample: Any, left_out: Any) -> Any:
        seen.update(questions=[each.id for each in training.questions], left_out=left_out)
        raise StepladderError("seen")

    monkeypatch.setattr("stepladder.train.prm.prm_sources.tree_examples", sources)
    settings = PRMStageConfig(objective="verdicts", chains=8, leave_out_relations=RELATIONS, dev_share=0)
    task = Task("prm", tmp_path / "prm", 0, {"policy": "tiny", "trees": str(path)})
    with pytest.raises(StepladderError, match="seen"):
        prm_stage.run_prm(settings, shared(), task)
    assert seen == {"questions": ["q2", "q3", "q4", "q5", "q7"], "left_out": {"q0", "q1", "q6"}}

    stage = FinishedStage(settings, shared(), {}, 0, {"trees": path}, {})
    assert set(prm_stage.questions_used(stage)) == {"q2", "q3", "q4", "q5", "q7"}
    assert prm_stage.labels_used(stage).decompositions == {"q2", "q3", "q4", "q5", "q7"}
