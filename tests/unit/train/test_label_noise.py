"""Labels of reward models that are wrong on purpose."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stepladder.agents import make_agent
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Pair, Question
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig
from stepladder.judges.prm.prm_inputs import PRMInput
from stepladder.train.loop.context import TrainingContext
from stepladder.train.prm.config import PRMConfig
from stepladder.train.prm.prm_data import PRMExample, with_wrong_labels
from stepladder.train.prm.prm_sources import pair_examples, tree_examples
from tests.support.prm_training import AGENT as PAIR_AGENT, HELD_OUT, PAIRS, builder
from tests.support.samples import WordRetriever
from tests.support.trees import AGENT, many, stroll, tree_of

STEP = PRMInput((1, 2), (0,), (1,), (range(1),))


def questions_of(pairs: Sequence[Pair]) -> tuple[Question, ...]:
    ids = dict.fromkeys(pair.question_id for pair in (*pairs, *HELD_OUT))
    return tuple(Question(each, f"{each}?", ("x",)) for each in ids)


def values(count: int, value: float) -> list[PRMExample]:
    return [PRMExample(f"q{number}", (STEP,), values=(value,)) for number in range(count)]


def test_about_the_given_share_of_the_values_is_reversed() -> None:
    found = with_wrong_labels([*values(1000, 1.0), *values(1000, 0.25)], 0.2, seed=3)
    assert {each.values for each in found} == {(0.0,), (1.0,), (0.25,), (0.75,)}
    assert 150 < sum(each.values == (0.0,) for each in found) < 250
    assert 150 < sum(each.values == (0.75,) for each in found) < 250
    assert [(each.question_id, each.inputs) for each in found[:5]] == [(f"q{n}", (STEP,)) for n in range(5)]


def test_steps_without_a_label_stay_without() -> None:
    examples = [replace(each, values=(None, 1.0)) for each in values(50, 1.0)]
    assert {each.values for each in with_wrong_labels(examples, 0.5, seed=0)} == {(None, 0.0), (None, 1.0)}


def test_pairs_change_sides_and_keep_their_margin() -> None:
    pairs = [PRMExample("q", (STEP, STEP), ((0, 1, 0.5),)) for _ in range(400)]
    found = [each.pairs for each in with_wrong_labels(pairs, 0.5, seed=0)]
    assert set(found) == {((0, 1, 0.5),), ((1, 0, 0.5),)}
    assert 150 < sum(each == ((1, 0, 0.5),) for each in found) < 250


def test_the_seed_decides_which_labels_are_wrong() -> None:
    first, again, other = (with_wrong_labels(values(100, 1.0), 0.3, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert with_wrong_labels(values(100, 1.0), 0.0, 1) == values(100, 1.0)


@pytest.mark.parametrize("share", [-0.1, 0.6])
def test_more_than_half_of_the_labels_cannot_be_wrong(share: float) -> None:
    with pytest.raises(StepladderError, match="label_noise"):
        PRMConfig.read({"label_noise": share})


def test_without_noise_runs_of_earlier_versions_hold() -> None:
    assert "label_noise" in PRMConfig().inert()
    assert "label_noise" not in PRMConfig(label_noise=0.1).inert()


@pytest.mark.parametrize("objective", ["values", "verdicts"])
def test_labels_of_trees_are_reversed_in_training_and_in_held_out_examples(tmp_path: Path, objective: str) -> None:
    trees = [
        outcome.value
        for outcome in Driver(ScriptedEngine(stroll), WordRetriever()).run(
            [partial(tree_of, question, seed=1) for question in many(30)]
        )
        if outcome.value is not None
    ]
    context = TrainingContext(AGENT, (), (), None, EpisodeConfig(), tmp_path)

    def labels(share: float) -> list[list[tuple[float | None, ...]]]:
        config = PRMConfig.read({"objective": objective, "label_noise": share, "dev_share": 0.3})
        train, held_out, _ = tree_examples(config, context, trees, "tiny", lambda _: ())(builder(retokenize=True))
        return [[each.values for each in examples] for examples in (train, held_out)]

    for clean, noisy in zip(labels(0.0), labels(0.25), strict=True):
        reversed_, kept = 0, 0
        for before, after in zip(clean, noisy, strict=True):
            for one, other in zip(before, after, strict=True):
                assert one is not None
                assert other in (one, 1 - one)
                reversed_ += other != one
                kept += other == one
        assert 0.1 < reversed_ / (reversed_ + kept) < 0.4


def test_pairs_of_a_stage_are_reversed_too(tmp_path: Path) -> None:
    context = TrainingContext(make_agent(PAIR_AGENT), questions_of(PAIRS), (), None, EpisodeConfig(), tmp_path)

    def ranks(share: float, seed: int) -> list[tuple[int, int]]:
        config = PRMConfig.read({"label_noise": share})
        train, _, counts = pair_examples(config, replace(context, seed=seed), PAIRS, HELD_OUT)(builder())
        assert counts["pairs"] == len(PAIRS)
        return [pair[:2] for example in train for pair in example.pairs]

    clean = ranks(0.0, 0)
    found = [ranks(0.5, seed) for seed in range(20)]
    assert all(set(pair) == set(other) for each in found for pair, other in zip(clean, each, strict=True))
    assert 0.3 < sum(pair != other for each in found for pair, other in zip(clean, each, strict=True)) / (
        20 * len(clean)
    ) < 0.7  # fmt: skip
