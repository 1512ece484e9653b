"""The process reward model: its losses, one pass against one text a call, what it learns, and what it refuses."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from stepladder import Pair, Step, Trajectory, Tree
from stepladder.agents import make_agent
from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.io.records import write_records
from stepladder.core.requests import Algorithm, Score
from stepladder.core.trace import Action, ActionKind, Author, Node, Rollout, Segment, Side, StopReason
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.tree_store import TreeFile
from stepladder.explore.values import monte_carlo
from stepladder.judges.prm.reward_model import ProcessRewardModel, with_scalar_head
from stepladder.models.loading import load_model, quiet_libraries
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.pipeline.fingerprint import all_ingredients
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import RunContext, SharedConfig
from stepladder.pipeline.stages import Task
from stepladder.pipeline.stages.prm import STAGE, PRMStageConfig, run_prm
from stepladder.preferences.pair_checks import PairCheck
from stepladder.preferences.pairs import dev_questions
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.metrics_log import read_metrics
from stepladder.train.prm import prm_sources, trainer as prm_training
from stepladder.train.prm.prm_data import collate_examples, from_pairs, from_trees, gold_verdicts, outcomes
from stepladder.train.prm.prm_sources import choose_questions
from stepladder.train.prm.trainer import (
    PRMReport,
    batch_loss,
    centering_loss,
    count_targets,
    ranking_loss,
    value_loss,
)
from stepladder.train.sft.demonstrations import gold_demonstrations
from tests.support.prm_training import (
    AGENT,
    END,
    HELD_OUT,
    PAIRS,
    SETTINGS,
    TOKENIZER,
    builder,
    pair,
    prompt,
    said,
    train,
)
from tests.support.samples import QUESTION, WordRetriever
from tests.support.training_runs import losses, weights


def text_of(tokens: Iterable[int]) -> str:
    return str(TOKENIZER.decode(list(tokens)))


# --- losses -------------------------------------------------------------------------------------------------


def plain_ranking(better: Any, worse: Any, margin: Any) -> Any:
    return np.log(1 + np.exp(-(better - worse - margin)))


def plain_value(score: Any, target: Any) -> Any:
    worth = 1 / (1 + np.exp(-score))
    return -(target * np.log(worth) + (1 - target) * np.log(1 - worth))


def test_losses_are_those_of_another_implementation() -> None:
    rng = np.random.default_rng(0)
    better, worse, margin = rng.normal(size=(3, 50)) * 3
    target = rng.uniform(size=50)
    ours = [torch.tensor(each) for each in (better, worse, margin, target)]
    assert ranking_loss(ours[0], ours[1], ours[2]).numpy() == pytest.approx(plain_ranking(better, worse, margin))
    assert centering_loss(ours[0], ours[1]).numpy() == pytest.approx((better + worse) ** 2)
    assert value_loss(ours[0], ours[3]).numpy() == pytest.approx(plain_value(better, target))


#: Three steps of one state in all their pairs, two of another; the same words to another question, and later on.
SEVERAL = [
    pair("a", "best", "worst", high=0.9, low=0.1),
    pair("a", "best", "middling", high=0.9, low=0.4),
    pair("b", "yes", "no", high=0.6, low=0.5),
    pair("a", "middling", "worst", high=0.4, low=0.1),
    pair("c", "best", "worst"),
    pair("a", "best", "worst", context=(prompt("a"), said("a step"))),
]


def test_pairs_of_a_state_share_what_is_read_and_every_pair_counts() -> None:
    examples = from_pairs(SEVERAL, builder(), margin=2.0)
    assert [len(example.inputs) for example in examples] == [3, 2, 2, 2]
    assert [len(example.pairs) for example in examples] == [3, 1, 1, 1]
    batch = collate_examples(examples)
    texts = [text_of(batch["input_ids"][row, : column + 1]) for row, column in zip(batch["rows"], batch["columns"])]
    assert len(texts) == len(set(texts)) == 9
    score_of = dict(zip(texts, np.random.default_rng(0).normal(size=9)))

    expected, right, gaps = 0.0, 0, 0.0
    for each in SEVERAL:
        state = "".join(segment.text for segment in each.context)
        better, worse = (score_of[state + side.written.text] for side in (each.chosen, each.rejected))
        margin = 2.0 * ((each.chosen.value or 0.0) - (each.rejected.value or 0.0))
        expected += plain_ranking(better, worse, margin) + 0.1 * (better + worse) ** 2
        right += better > worse
        gaps += better - worse
    loss, seen = batch_loss(torch.tensor([score_of[text] for text in texts]), batch, centering=0.1)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert seen == {"accuracy": right, "margin": pytest.approx(gaps, rel=1e-5)}
    assert count_targets(batch) == 6


# --- trees as examples --------------------------------------------------------------------------------------


def step(text: str, before: str = "", *, restarts: bool = False) -> Step:
    read = (prompt(before),) if before else (Segment(Author.ENVIRONMENT, "[found]"),)
    return Step(read, said(text), Action(ActionKind.QUERY, text), restarts=restarts)


def small_tree(question: str = "q") -> Tree:
    """A step that leads to a right and a wrong end, and one that was only played on from."""
    answered = StopReason.ANSWERED
    nodes = (
        Node(0, None, None, visits=6),
        Node(1, 0, step("search", question), visits=3),
        Node(2, 1, step("yes"), visits=2, stop=answered, reward=1.0),
        Node(3, 1, step("no"), visits=1, stop=answered, reward=0.0),
        Node(4, 0, step("wander", question), visits=2, rollouts=(Rollout(0.0, 2, answered), Rollout(0.5, 3, answered))),
        Node(5, 0, step("unseen", question)),
    )
    return Tree(replace(QUESTION, id=question), AGENT, nodes)


def values_read(examples: Iterable[Any]) -> list[tuple[str, float]]:
    """What is read up to the end of every step, with the value it is to have."""
    found: list[tuple[str, float]] = []
    for example in examples:
        ends = [text_of(reading.tokens[: end + 1]) for reading in example.inputs for end in reading.ends]
        found += zip(ends, example.values, strict=True)
    return found


def test_a_tree_gives_every_step_once_with_its_value() -> None:
    assert values_read(from_trees([small_tree()], builder(), monte_carlo)) == [
        ("Question: q?\nsearch", pytest.approx(2 / 3)),
        ("Question: q?\nsearch[found]yes", 1.0),
        ("Question: q?\nsearch[found]no", 0.0),
        ("Question: q?\nwander", 0.25),
    ]


def test_an_outcome_model_reads_nothing_but_ends() -> None:
    assert values_read(from_trees([small_tree()], builder(), outcomes)) == [
        ("Question: q?\nsearch[found]yes", 1.0),
        ("Question: q?\nsearch[found]no", 0.0),
    ]


def chain(trajectory: Trajectory) -> Tree:
    """A tree of a single branch."""
    nodes = [Node(number, number - 1, each) for number, each in enumerate(trajectory.steps, start=1)]
    return Tree(trajectory.question, trajectory.agent, (Node(0, None, None), *nodes))


def test_verdicts_are_those_of_the_gold_judge() -> None:
    (trajectory,) = played(AGENT, QUESTION.text)
    asked, *_ = trajectory.steps
    useless = replace(asked, action=replace(asked.action, content="Where is the river Oss?"), passages=())
    assert gold_verdicts(chain(trajectory))[1:] == [1.0] * 5
    assert gold_verdicts(chain(replace(trajectory, steps=(useless,))))[1:] == [0.0]


@pytest.mark.parametrize("dense", [0.5, 3.0])
def test_the_other_tokens_of_a_step_may_count_together(dense: float) -> None:
    (*examples,) = from_trees([small_tree()], builder(), monte_carlo)
    batch = collate_examples(examples, dense=dense)
    texts = [text_of(batch["input_ids"][row, : column + 1]) for row, column in zip(batch["rows"], batch["columns"])]
    score_of = dict(zip(texts, np.random.default_rng(0).normal(size=len(texts)), strict=True))
    expected, error = 0.0, 0.0
    for (text, value), written in zip(values_read(examples), ("search", "yes", "no", "wander"), strict=True):
        inside = [score_of.pop(text[:-behind]) for behind in range(1, len(written))]
        end = score_of.pop(text)
        expected += plain_value(end, value) + dense * np.mean([plain_value(score, value) for score in inside])
        error += abs(1 / (1 + np.exp(-end)) - value)
    assert score_of == {}  # nothing is read that is no part of a step
    scores = np.random.default_rng(0).normal(size=len(texts))
    loss, seen = batch_loss(torch.tensor(scores, dtype=torch.float32), batch, centering=0.1)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert seen == {"error": pytest.approx(error, rel=1e-5)}
    assert count_targets(batch) == 4


def test_the_loss_of_values_is_that_of_another_implementation() -> None:
    batch = collate_examples(list(from_trees([small_tree("a"), small_tree("b")], builder(), monte_carlo)))
    scores = np.random.default_rng(0).normal(size=8)
    loss, seen = batch_loss(torch.tensor(scores, dtype=torch.float32), batch, centering=0.1)
    targets = np.array([2 / 3, 1.0, 0.0, 0.25] * 2)
    assert count_targets(batch) == 8
    assert loss.item() == pytest.approx(plain_value(scores, targets).sum(), rel=1e-5)
    assert seen["error"] == pytest.approx(np.abs(1 / (1 + np.exp(-scores)) - targets).sum(), rel=1e-5)


# --- one pass and one text a call ---------------------------------------------------------------------------


def random_reward(folder: Path, name: str = "tiny") -> Path:
    """A reward model whose head is drawn at random, so that no two texts have the same score."""
    causal, tokenizer = load_model(name, None, torch.float32)
    scoring: Any = with_scalar_head(causal, tokenizer, name)
    torch.nn.init.normal_(scoring.score.weight, generator=torch.Generator().manual_seed(0))
    with quiet_libraries():
        ProcessRewardModel(scoring, tokenizer).save(folder)
    return folder


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_reward(tmp_path_factory.mktemp("reward") / "tiny")


def load(folder: Path, **options: Any) -> ProcessRewardModel:
    return ProcessRewardModel.load(folder, device="cpu", **options)


def plain_model(folder: Path) -> Any:
    with quiet_libraries():
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    assert model.config.num_labels == 1
    return model


@torch.no_grad()
def one_by_one(model: Any, encoding: Encoding, trajectory: Trajectory, window: int | None = None) -> list[float]:
    """The reference way: for every step one call, on the text from the start of its context to its last token."""
    scores = []
    for place, each in enumerate(trajectory.steps):
        segments = (*trajectory.consumed(place), each.written)
        ids = [token for segment in segments for token in encoding.encode(segment).tokens]
        while window is not None and ids[-1] == model.config.pad_token_id:
            ids.pop()
        scores.append(model(torch.tensor([ids if window is None else ids[-window:]])).logits[0, 0].item())
    return scores


def played(agent: str, *texts: str) -> list[Trajectory]:
    """Gold episodes of several steps, of questions of several lengths."""
    questions = [replace(QUESTION, id=text, text=text) for text in texts or ("Where?", QUESTION.text, "In which town?")]
    settings = EpisodeConfig(max_steps=6, k=2)
    return list(gold_demonstrations(make_agent(agent), questions, WordRetriever(), settings, seed=0).kept)


@pytest.mark.parametrize("agent", ["prorag-brief", "reasonrag-brief"])
@pytest.mark.parametrize("max_batch", [1, 2, 32])
def test_one_pass_gives_the_scores_of_one_text_a_call(reward: Path, agent: str, max_batch: int) -> None:
    ours, plain = load(reward, max_batch=max_batch), plain_model(reward)
    trajectories = played(agent)
    assert {len(trajectory.steps) for trajectory in trajectories} == {5}
    assert any(each.restarts for each in trajectories[0].steps) == (agent == "reasonrag-brief")
    found = ours.score_logits(trajectories)
    for scores, trajectory in zip(found, trajectories, strict=True):
        assert scores == pytest.approx(one_by_one(plain, Encoding(TOKENIZER), trajectory), abs=1e-4)
    assert np.std([score for scores in found for score in scores]) > 0.1
    assert ours.builder.truncated == 0


@pytest.fixture(scope="module")
def both(reward: Path) -> tuple[ProcessRewardModel, Any]:
    return load(reward), plain_model(reward)


def test_a_pass_takes_so_many_at_most_and_no_more_tokens_than_suits_a_cpu(
    both: tuple[ProcessRewardModel, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ProcessRewardModel(both[0].model, TOKENIZER, max_batch=3)
    passes: list[list[int]] = []

    def noted(readings: Sequence[Any]) -> list[tuple[float, ...]]:
        passes.append([len(reading.tokens) for reading in readings])
        return [(0.0,) * len(reading.ends) for reading in readings]

    monkeypatch.setattr(model, "score_batch", noted)
    lengths = [100] * 4 + [700] * 3 + [3000]
    model.score_logits(
        [Trajectory(QUESTION, AGENT, (Step((), said("x" * n), Action(ActionKind.QUERY, "")),)) for n in lengths]
    )
    assert passes == [[100, 100, 100], [100, 700], [700, 700], [3000]]


def test_nano_too(tmp_path: Path) -> None:
    folder = random_reward(tmp_path / "nano", "nano")
    ours = load(folder)
    for scores, trajectory in zip(ours.score_logits(played(AGENT)), played(AGENT), strict=True):
        assert scores == pytest.approx(one_by_one(plain_model(folder), ours.builder.encoding, trajectory), abs=1e-4)


def encoded(segment: Segment, *behind: int) -> Segment:
    known = Encoding(TOKENIZER).encode(segment)
    return replace(known, tokens=(*known.tokens, *behind), vocabulary=Encoding(TOKENIZER).vocabulary)


def test_a_step_that_ends_its_turn_is_scored_at_its_last_word(reward: Path) -> None:
    """Models of this kind take the last token that is no padding, and the end of a turn often is the padding."""
    (trajectory,) = played(AGENT, "Where?")
    ended = replace(
        trajectory, steps=tuple(replace(each, written=encoded(each.written, END)) for each in trajectory.steps)
    )
    model = load(reward)
    (scores,), (plain,) = model.score_logits([ended]), model.score_logits([trajectory])
    assert scores == pytest.approx(one_by_one(plain_model(reward), Encoding(TOKENIZER), ended), abs=1e-4)
    assert scores[0] == pytest.approx(plain[0], abs=1e-4)
    assert scores[1] != pytest.approx(plain[1], abs=1e-3)  # the end of the first turn is part of what comes before


words = st.text("abc xyz.", min_size=1, max_size=30)
steps = st.builds(
    lambda read, written, ends, restarts: Step(
        (Segment(Author.ENVIRONMENT, read),),
        encoded(said(written), *[END] * ends),
        Action(ActionKind.QUERY, written),
        restarts=restarts,
    ),
    words,
    st.just("") | words,
    st.integers(0, 2),
    st.booleans(),
)
trajectories = st.builds(lambda each: Trajectory(QUESTION, AGENT, tuple(each)), st.lists(steps, max_size=5))


@settings(max_examples=40)
@given(st.lists(trajectories, max_size=4), st.integers(1, 5), st.sampled_from([5, 20, 60, 4096]))
def test_whatever_is_scored_in_whatever_batches(
    both: tuple[ProcessRewardModel, Any], given: list[Trajectory], max_batch: int, window: int
) -> None:
    ours, plain = both
    ours = ProcessRewardModel(ours.model, TOKENIZER, max_batch=max_batch, window=window)
    for scores, trajectory in zip(ours.score_logits(given), given, strict=True):
        assert scores == pytest.approx(one_by_one(plain, Encoding(TOKENIZER), trajectory, window), abs=1e-4)


# --- long histories -----------------------------------------------------------------------------------------


def test_histories_beyond_the_window_are_cut_at_the_left_and_counted(reward: Path) -> None:
    (trajectory,) = played(AGENT)[:1]
    lengths = []
    for place, each in enumerate(trajectory.steps):
        lengths.append(sum(len(segment.text) for segment in (*trajectory.consumed(place), each.written)))
    window = lengths[2]
    ours, plain = load(reward, window=window), plain_model(reward)
    (scores,) = ours.score_logits([trajectory])
    whole = one_by_one(plain, Encoding(TOKENIZER), trajectory)
    assert ours.builder.truncated == 2
    assert scores[:3] == pytest.approx(whole[:3], abs=1e-4)
    assert scores[3:] != pytest.approx(whole[3:], abs=1e-3)
    assert scores == pytest.approx(one_by_one(plain, Encoding(TOKENIZER), trajectory, window), abs=1e-4)


def test_the_newest_words_are_never_cut() -> None:
    (trajectory,) = played(AGENT)[:1]
    short = builder(window=60)
    cut = short.trajectory(trajectory)
    assert short.truncated == len(cut) == 5
    for reading, each in zip(cut, trajectory.steps):
        assert len(reading.tokens) == 60
        assert text_of(reading.tokens).endswith(each.written.text[-60:])
    alone = short.step(trajectory.consumed(1), trajectory.steps[1].written)
    assert (alone.tokens, alone.ends, short.truncated) == (cut[1].tokens, (59,), 6)


# --- training -----------------------------------------------------------------------------------------------


def changed(**changes: Any) -> PRMStageConfig:
    return PRMStageConfig(**{**SETTINGS.model_dump(exclude_unset=True), **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> PRMReport:
    return train(tmp_path_factory.mktemp("prm"))


def pair_scores(reward: Path, pairs: Sequence[Pair]) -> list[tuple[float, float]]:
    """Of the better and the worse step, by the plain model in the folder."""
    model, encoding = plain_model(reward), Encoding(TOKENIZER)

    def one(each: Pair, side: Side) -> float:
        step = Step(each.context, side.written, side.action)
        return one_by_one(model, encoding, Trajectory(QUESTION, AGENT, (step,)))[0]

    return [(one(each, each.chosen), one(each, each.rejected)) for each in pairs]


def mean_loss(scores: Iterable[tuple[float, float]], centre: float = SETTINGS.center_rewards_coefficient) -> float:
    return float(np.mean([plain_ranking(a, b, 0.0) + centre * (a + b) ** 2 for a, b in scores]))


@pytest.mark.parametrize("lora", [None, LoraConfig(r=4)], ids=["full", "lora"])
def test_what_was_learnt_holds_for_other_questions(
    finished: PRMReport, tmp_path: Path, lora: LoraConfig | None
) -> None:
    """The folder is an ordinary model, LoRA merged, and gives the numbers of the report."""
    report = finished if lora is None else train(tmp_path, changed(lora=lora, learning_rate=2e-2))
    numbers = report.numbers
    assert numbers["held_out_accuracy"] == 1.0
    scores = pair_scores(report.reward, HELD_OUT)
    assert all(better > 0 > worse for better, worse in scores)
    assert numbers["held_out_loss"] == numbers["best_dev_loss"] == pytest.approx(mean_loss(scores), rel=1e-3)
    assert numbers["held_out_margin"] == pytest.approx(np.mean([a - b for a, b in scores]), rel=1e-3)
    assert (numbers["steps"], numbers["histories_cut"], numbers["segments_retokenized"]) == (16, 0, 0)

    assert not list(report.reward.glob("*adapter*"))
    learnt, before = weights(report.reward), tiny_model().state_dict()
    assert learnt["score.weight"].abs().max() > 0
    assert not torch.equal(
        learnt["model.layers.0.self_attn.q_proj.weight"], before["model.layers.0.self_attn.q_proj.weight"]
    )
    (trajectory,) = played(AGENT, "Where?")
    (ours,) = load(report.reward).score_logits([trajectory])
    assert ours == pytest.approx(one_by_one(plain_model(report.reward), Encoding(TOKENIZER), trajectory), abs=1e-4)


def test_a_new_head_prefers_nothing_and_a_reward_model_goes_on(
    finished: PRMReport, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert losses(finished.reward.parent)[0] == pytest.approx(math.log(2))
    train(tmp_path, changed(num_train_epochs=1), finished.reward)
    assert losses(tmp_path)[0] < 0.1
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    assert all(line.startswith(f"{tmp_path.name}: ") for line in stderr.splitlines())


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_loss_is_the_mean_over_the_pairs_of_an_update(reward: Path, tmp_path: Path, accumulate: int) -> None:
    """One update of all pairs, in one part or in parts of one state, of which one has two pairs."""
    train(tmp_path, changed(batch_size=4, num_train_epochs=1, gradient_accumulation_steps=accumulate), reward)
    scores = pair_scores(reward, PAIRS)
    (row,) = [row for row in read_metrics(tmp_path / "curves.jsonl") if "loss" in row]
    assert row["loss"] == pytest.approx(mean_loss(scores), rel=1e-4)
    assert row["accuracy"] == np.mean([better > worse for better, worse in scores])
    assert row["margin"] == pytest.approx(np.mean([better - worse for better, worse in scores]), rel=1e-3)


def test_an_update_in_parts_is_the_same_update(
    finished: PRMReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for models that are not small; a reward model's batches are never split.
    monkeypatch.setattr("stepladder.train.loop.base_trainer.max_microbatch_tokens", lambda *_, **__: 100)
    train(tmp_path, changed(gradient_accumulation_steps=2, num_train_epochs=2))
    for name in ("loss", "grad_norm", "tokens", "policy_tokens"):
        whole = losses(finished.reward.parent, name)
        assert losses(tmp_path, name)[:2] == pytest.approx(whole[:2], rel=1e-3)


def test_the_same_seed_gives_the_same_numbers(finished: PRMReport, tmp_path: Path) -> None:
    again = train(tmp_path)
    assert losses(tmp_path) == losses(finished.reward.parent)
    assert all(torch.equal(tensor, weights(finished.reward)[name]) for name, tensor in weights(again.reward).items())


def test_the_best_by_held_out_loss_is_the_reward_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter((0.5, 0.2, 0.9))
    monkeypatch.setattr(prm_training, "_dev_evaluator", lambda *_: lambda: {"loss": next(given)})
    report = train(tmp_path, changed(num_train_epochs=3))
    assert report.numbers["best_step"] == 4
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.complete == [4, 6]
    for name, tensor in weights(checkpoints.at(4)).items():
        assert torch.equal(tensor, weights(report.reward)[name])


# --- the stage ----------------------------------------------------------------------------------------------


def stage(folder: Path, inputs: dict[str, Path | str], **changes: Any) -> dict[str, Any]:
    """Run the stage with the questions of the pairs above as data; what it tells."""
    folder.mkdir(exist_ok=True)
    data = folder / "questions.jsonl"
    data.write_text(
        "".join(
            json.dumps({"id": each.question_id, "question": f"{each.question_id}?", "golden_answers": ["x"]}) + "\n"
            for each in (*PAIRS[1:], *HELD_OUT)
        )
    )
    shared = SharedConfig.read({"policy": "tiny", "agent": AGENT, "device": "cpu", "data": {"name": str(data)}})
    task = Task("prm", folder, 0, {"policy": "tiny", **{role: str(where) for role, where in inputs.items()}})
    result = run_prm(changed(**changes), RunContext(shared), task)
    assert result.outputs == {"reward": folder / "reward"}
    return dict(result.summary)


def pair_folder(folder: Path, train: Sequence[Pair], dev: Sequence[Pair] = ()) -> Path:
    folder.mkdir()
    write_records(folder / "train.jsonl", train)
    write_records(folder / "dev.jsonl", dev)
    return folder


def test_the_stage_trains_on_pairs_and_holds_out_those_it_is_told_to(tmp_path: Path) -> None:
    numbers = stage(tmp_path / "prm", {"pairs": pair_folder(tmp_path / "pairs", PAIRS, HELD_OUT)})
    assert (numbers["pairs"], numbers["held_out_pairs"], numbers["refused"]) == (5, 2, {})
    assert numbers["held_out_accuracy"] == 1.0


@pytest.mark.parametrize(("objective", "dense", "scored", "held_out"), [("values", 0.5, 16, 4), ("outcome", 0.0, 8, 2)])
def test_the_stage_learns_values_from_trees(
    tmp_path: Path, objective: str, dense: float, scored: int, held_out: int
) -> None:
    with TreeFile(tmp_path / "trees.jsonl.gz") as trees:
        for question in ("who", "where", "when", "how", "why"):
            trees.add(small_tree(question))
    changes = {"objective": objective, "dense": dense, "dev_share": 0.2, "num_train_epochs": 10, "learning_rate": 1e-2}
    numbers = stage(tmp_path / "prm", {"trees": tmp_path / "trees.jsonl.gz"}, **changes)
    assert (numbers["scored_steps"], numbers["held_out_steps"]) == (scored, held_out)
    assert numbers["held_out_error"] < 0.1
    ends = [Trajectory(QUESTION, AGENT, (step("search", "what"), step(answer))) for answer in ("yes", "no")]
    (*_, right), (*_, wrong) = load(tmp_path / "prm" / "reward").score_logits(ends)
    assert right > 0 > wrong


def test_the_stage_learns_from_what_the_policy_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = tuple(replace(QUESTION, id=f"q{number}") for number in range(10))
    calls: list[str] = []

    def writes(request: Any) -> str:
        calls.append(request.trajectory.question.id)
        return "<step>So.</step><answer>Orm</answer>"  # at once, and wrong

    @contextmanager
    def engine(*_: object, **__: object) -> Iterator[ScriptedEngine]:
        yield ScriptedEngine(writes)

    monkeypatch.setattr(RunContext, "engine", engine)
    monkeypatch.setattr(RunContext, "split", lambda *_: questions)
    monkeypatch.setattr(RunContext, "retriever", WordRetriever())
    with TreeFile(tmp_path / "trees.jsonl.gz") as trees:
        trees.add(replace(small_tree("q0"), question=replace(QUESTION, id="q0", hops=(), gold_passages=(), answers=())))
    shared = SharedConfig.read({"policy": "tiny", "agent": AGENT, "device": "cpu"})
    task = Task("prm", tmp_path / "prm", 0, {"policy": "tiny", "trees": str(tmp_path / "trees.jsonl.gz")})
    settings = changed(
        objective="verdicts", episodes=8, num_generations=3, dev_share=0.25, num_train_epochs=1, retokenize=True
    )
    for _ in range(2):  # what is there is not played again, and nobody is loaded to play
        numbers = run_prm(settings, RunContext(shared), task).summary
        assert (numbers["episodes"], numbers["scored_steps"], numbers["held_out_steps"]) == (24, 18, 6)
        assert len(calls) == 24
        assert len(set(calls)) == 8


def test_a_reward_model_of_another_tokenizer_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    with TreeFile(tmp_path / "trees.jsonl.gz") as trees:
        trees.add(small_tree("q0"))
    task = Task("prm", tmp_path / "prm", 0, {"policy": "tiny", "trees": str(tmp_path / "trees.jsonl.gz")})
    shared = SharedConfig.read({"policy": "tiny", "agent": AGENT, "device": "cpu"})
    with pytest.raises(StepladderError, match="nano has another tokenizer than the policy"):
        run_prm(changed(objective="verdicts", episodes=2, model="nano"), RunContext(shared), task)
    assert not (tmp_path / "prm" / "episodes").exists()


@pytest.mark.parametrize(("more", "said"), [({"episodes": 4}, "set episodes to 0"), ({"chains": 4}, "set chains and")])
def test_what_the_gold_judge_knows_nothing_of_is_refused_before_anything_begins(
    tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text(json.dumps({"id": "1", "question": "Why?", "golden_answers": ["x"]}) + "\n")
    shared = SharedConfig.read({"policy": "tiny", "agent": AGENT, "data": {"train": str(data)}})
    STAGE.check(changed(objective="verdicts"), RunContext(shared))
    with pytest.raises(StepladderError, match=said):
        STAGE.check(changed(objective="verdicts", **more), RunContext(shared))


def test_runs_from_before_there_were_episodes_hold() -> None:
    def made_of(**more: Any) -> Any:
        stages = {"explore": {}, "prm": {"objective": "verdicts", **more}}
        return all_ingredients(Recipe.read({"policy": "tiny", "stages": stages}))["prm"]

    assert not {"stages.prm.episodes", "stages.prm.num_generations", "stages.prm.temperature"} & set(made_of())
    assert made_of(episodes=4)["stages.prm.num_generations"] == 2


def test_played_questions_that_are_held_out_teach_nothing_whatever_is_made_of_them() -> None:
    questions = [replace(QUESTION, id=f"q{number}") for number in range(40)]
    explored = [question.id for question in questions[:20]]
    unjudged = [
        replace(question, id=f"u{number}", hops=(), gold_passages=()) for number, question in enumerate(questions)
    ]
    settings = changed(objective="verdicts", episodes=20, chains=30, dev_share=0.2)
    chosen = choose_questions(settings, [*unjudged, *questions], explored, 3)
    assert {question.id[0] for question in chosen.sampled} == {"q"}
    assert dev_questions(explored, 0.2) < chosen.held_out
    assert len(chosen.held_out & {question.id for question in chosen.sampled}) >= 4
    assert not chosen.held_out & {question.id for question in chosen.gold}
    plain = choose_questions(changed(objective="verdicts", chains=30, dev_share=0.2), questions, explored, 3)
    assert (plain.held_out, plain.sampled) == (dev_questions(explored, 0.2), ())


def test_kinds_of_mistakes_can_be_left_out_of_the_chains(tmp_path: Path) -> None:
    context = TrainingContext(make_agent(AGENT), (), (), WordRetriever(), EpisodeConfig(max_steps=6, k=1), tmp_path)

    def chains(*leave_out: str) -> list[tuple[int, str | None]]:
        settings = changed(objective="verdicts", chains=1, corruptions=8, leave_out=leave_out)
        return [
            (len(each.steps), each.answer) for each in prm_sources._gold_and_corrupted(settings, context, [QUESTION])
        ]

    everything, without = chains(), chains("answer_first", "truncated", "early_answer", "misread", "wrong_answer")
    assert (1, "Velm") in everything
    assert len({answer for _, answer in everything}) > 1
    assert all(steps >= 5 and answer == "Velm" for steps, answer in without)
    assert len(everything) - len(without) == 2  # two control chains; of the others there are as many
    assert len(everything) - len(chains("answer_first")) == 1


def test_what_is_left_out_must_be_a_kind_and_be_there() -> None:
    with pytest.raises(ValueError, match="leave_out"):
        changed(objective="verdicts", chains=1, leave_out=("typo",))
    with pytest.raises(ValueError, match="leave_out has no effect with chains: 0"):
        changed(objective="verdicts", leave_out=("misread",))
    with pytest.raises(ValueError, match="leave_out has no effect with objective: pairs"):
        changed(leave_out=("misread",))
    assert "leave_out" not in changed(objective="verdicts", chains=1, leave_out=("misread",)).inert()
    assert "leave_out" in changed(objective="verdicts", chains=1).inert()


def test_trees_without_what_is_to_be_learnt_are_refused(tmp_path: Path) -> None:
    unjudged = replace(small_tree(), question=replace(QUESTION, hops=(), gold_passages=(), answers=()))
    with TreeFile(tmp_path / "trees.jsonl.gz") as trees:
        trees.add(unjudged)
    with pytest.raises(StepladderError, match=r"no step of the trees has a value for the objective 'verdicts'"):
        stage(tmp_path / "prm", {"trees": tmp_path / "trees.jsonl.gz"}, objective="verdicts")


def test_the_stage_begins_with_the_policy_or_with_another_model(tmp_path: Path) -> None:
    pairs = pair_folder(tmp_path / "pairs", PAIRS)
    with quiet_libraries():
        tiny_model(seed=7).save_pretrained(tmp_path / "other")
        TOKENIZER.save_pretrained(tmp_path / "other")
    for name, model, seed in (("policy", None, 0), ("other", str(tmp_path / "other"), 7)):
        stage(tmp_path / name, {"pairs": pairs}, model=model, num_train_epochs=0.5, learning_rate=1e-6)
        learnt = weights(tmp_path / name / "reward")["model.embed_tokens.weight"]
        torch.testing.assert_close(
            learnt, tiny_model(seed=seed).state_dict()["model.embed_tokens.weight"], atol=1e-4, rtol=0
        )
    assert STAGE.unused_inputs(changed(model="other")) == {"policy", "trees"}
    assert STAGE.unused_inputs(changed(model="other", objective="verdicts", episodes=1)) == {"pairs"}
    assert STAGE.unused_inputs(changed(objective="values")) == {"pairs"}


# --- pairs that cannot be used ------------------------------------------------------------------------------


def with_template(text: str) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = text
    return tokenizer


def foreign(each: Pair) -> Pair:
    """The same pair with ids of another vocabulary."""
    ids = {"tokens": (1, 2, 3), "vocabulary": "elsewhere"}
    return replace(each, context=(replace(each.context[0], **ids),))


def in_chat(each: Pair) -> Pair:
    """The same pair, read by the same model when it had a chat template."""
    chat = Encoding(with_template("{% for m in messages %}[{{ m.content }}]{% endfor %}"))
    return replace(each, context=tuple(map(chat.encode, each.context)))


BAD_PAIRS: dict[str, Pair] = {
    "other agent": replace(PAIRS[0], agent="prorag"),
    "other vocabulary": foreign(PAIRS[0]),
    "other prompt": replace(PAIRS[0], context=(Segment(Author.PROMPT, "You are asked: who?\n"),)),
    "other tokens": in_chat(PAIRS[0]),
}


def test_pairs_that_the_policy_would_not_see_today_are_refused_and_counted(tmp_path: Path) -> None:
    refused = [*BAD_PAIRS.values(), BAD_PAIRS["other agent"]]
    pairs = pair_folder(tmp_path / "pairs", [*PAIRS[1:], *refused], [*HELD_OUT, BAD_PAIRS["other agent"]])
    numbers = stage(tmp_path / "prm", {"pairs": pairs}, num_train_epochs=1)
    assert (numbers["pairs"], numbers["held_out_pairs"]) == (4, 2)
    assert numbers["refused"] == {"other agent": 3, "other vocabulary": 1, "other prompt": 1, "other tokens": 1}


@pytest.mark.parametrize("reason", BAD_PAIRS)
def test_where_no_pair_is_left_the_reasons_are_named(tmp_path: Path, reason: str) -> None:
    pairs = pair_folder(tmp_path / "pairs", [BAD_PAIRS[reason]] * 2)
    with pytest.raises(StepladderError, match=rf"no pair of .* can be used \({reason} 2\)\. Make pairs with"):
        stage(tmp_path / "prm", {"pairs": pairs})


def test_pairs_whose_ids_are_still_those_of_today_are_taken_as_they_are() -> None:
    questions = [replace(QUESTION, id="who", text="who?")]
    check = PairCheck(make_agent(AGENT), questions, Encoding(TOKENIZER), None)
    ended = replace(PAIRS[0].chosen, written=encoded(PAIRS[0].chosen.written, END))
    known = replace(PAIRS[0], context=tuple(map(encoded, PAIRS[0].context)), chosen=ended)
    (kept,) = check.check([known]).pairs
    assert (kept.context, kept.chosen) == (known.context, known.chosen)
    assert kept.rejected.written == encoded(PAIRS[0].rejected.written)


def test_pairs_beyond_a_window_are_refused_where_nothing_may_be_cut() -> None:
    room = len("Question: who?\nyes")
    for window, left in ((room, 1), (room - 1, 0)):
        found = PairCheck(make_agent(AGENT), [], Encoding(TOKENIZER), window).check([PAIRS[0]])
        assert (len(found.pairs), dict(found.refused)) == (left, {} if left else {"too long": 1})


def test_pairs_of_another_tokenizer_can_be_read_as_text(tmp_path: Path) -> None:
    pairs = pair_folder(tmp_path / "pairs", list(map(foreign, PAIRS)), list(map(foreign, HELD_OUT)))
    numbers = stage(tmp_path / "prm", {"pairs": pairs}, retokenize=True)
    assert (numbers["pairs"], numbers["refused"], numbers["held_out_accuracy"]) == (5, {}, 1.0)
    assert numbers["segments_retokenized"] == 14  # the prompt, before every step that is read


# --- what it is asked by others -----------------------------------------------------------------------------


def graded(trajectory: Trajectory) -> Algorithm[tuple[float, ...]]:
    scores: tuple[float, ...] = yield Score(trajectory)
    return scores


def misread(trajectory: Trajectory) -> Trajectory:
    """The same with ids of another vocabulary in one of its steps."""
    first, *rest = trajectory.steps
    written = replace(first.written, tokens=(1, 2), vocabulary="elsewhere")
    return replace(trajectory, steps=(replace(first, written=written), *rest))


def test_it_answers_the_driver_and_a_broken_trajectory_fails_alone(reward: Path) -> None:
    model = load(reward)
    good = played(AGENT)
    asked = [good[0], Trajectory(QUESTION, AGENT), misread(good[1]), good[2]]
    outcomes = Driver(scorer=model).run([lambda each=each: graded(each) for each in asked])  # type: ignore[misc]
    expected = model.score(good)
    assert outcomes[0].value == pytest.approx(expected[0], abs=1e-4)
    assert outcomes[1].value == ()
    assert outcomes[2].failure is not None
    assert "another vocabulary (elsewhere)" in outcomes[2].failure.reason
    assert outcomes[3].value == pytest.approx(expected[2], abs=1e-4)


def test_transcripts_of_another_tokenizer_are_refused_or_read_as_text(reward: Path) -> None:
    (trajectory,) = played(AGENT, "Where?")
    with pytest.raises(
        BackendError, match=r"another vocabulary \(elsewhere\).* trained from this policy, or set retokenize"
    ):
        load(reward).score_logits([misread(trajectory)])
    willing = load(reward, retokenize=True)
    (found,), (expected,) = willing.score_logits([misread(trajectory)]), load(reward).score_logits([trajectory])
    assert found == pytest.approx(expected, abs=1e-4)
    assert willing.builder.retokenized == 1


def test_scores_that_are_no_numbers_are_not_handed_out(reward: Path) -> None:
    model = load(reward)
    model.model.score.weight.data.fill_(float("nan"))
    with pytest.raises(BackendError, match="weights are damaged"):
        model.score_logits(played(AGENT))


def test_a_step_without_any_token_is_refused(reward: Path) -> None:
    nothing = Trajectory(QUESTION, AGENT, (Step((), said(""), Action(ActionKind.MALFORMED, "")),))
    with pytest.raises(BackendError, match="a step without a single token"):
        load(reward).score_logits([nothing])


# --- folders that hold no reward model ----------------------------------------------------------------------


def labelled(count: int) -> Any:
    config = tiny_model().config
    config.num_labels = count
    return AutoModelForSequenceClassification.from_config(config)


def bert() -> Any:
    small = {"vocab_size": 257, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(num_hidden_layers=1, num_labels=1, **small))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (tiny_model, "is a LlamaForCausalLM; expected a reward model"),
        (lambda: labelled(2), "is a LlamaForSequenceClassification with 2 labels; expected a reward model"),
        (bert, "is a BertForSequenceClassification.* expected a reward model"),
    ],
    ids=["causal", "two labels", "encoder"],
)
def test_other_models_are_refused(tmp_path: Path, make: Callable[[], Any], said: str) -> None:
    with quiet_libraries():
        make().save_pretrained(tmp_path / "model")
        TOKENIZER.save_pretrained(tmp_path / "model")
    with pytest.raises(StepladderError, match=said):
        load(tmp_path / "model")


def test_a_reward_model_of_two_labels_is_not_trained_either(tmp_path: Path) -> None:
    with quiet_libraries():
        labelled(2).save_pretrained(tmp_path / "model")
        TOKENIZER.save_pretrained(tmp_path / "model")
    with pytest.raises(StepladderError, match="with 2 labels; expected a reward model"):
        train(tmp_path / "prm", model=tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "said"),
    [("tiny", "'tiny' is a causal language model; expected a reward model"), ("/no/such", "does not exist")],
)
def test_names_that_are_no_reward_model(name: str, said: str) -> None:
    with pytest.raises(StepladderError, match=said):
        ProcessRewardModel.load(name, device="cpu")
