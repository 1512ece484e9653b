"""Refinement by rejection sampling: what survives which filter, that it can be cut, and what is learnt from."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from stepladder.agents import make_agent
from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.io.records import read_records
from stepladder.core.requests import Generate, Sampling
from stepladder.core.trace import Action, ActionKind, Author, Question, Segment, Step, StopReason, Trajectory
from stepladder.driver import Outcome
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.explore.episode import EpisodeConfig
from stepladder.judges.prm.reward_model import ProcessRewardModel, with_scalar_head
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe
from stepladder.reporting.run_tables import stage_summary
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.metrics_log import read_metrics
from stepladder.train.rft.config import RFTConfig
from stepladder.train.rft.filters import FilterResult, filter_trajectories
from stepladder.train.rft.trainer import TrainingReport, train_rft
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.trainer import train_sft
from stepladder.train.transcripts import sampled_episodes as sampling
from stepladder.train.transcripts.sample_checks import SampleRules
from tests.support.sampled_answers import by_seed, sample
from tests.support.samples import QUESTION
from tests.support.training_runs import same_weights, weights

# --- which transcripts are good enough ----------------------------------------------------------------------------

QUERY, ANSWER = ActionKind.QUERY, ActionKind.ANSWER


def played(answer: str | None, words: str = "", question: Question = QUESTION) -> Trajectory:
    """A search, a sub-answer, and an answer; without one the steps ran out. `words` make transcripts differ."""
    actions = [Action(QUERY, f"Who {words}?"), Action(ActionKind.SUB_ANSWER, "Ada Tarn")]
    actions += [] if answer is None else [Action(ANSWER, answer)]
    steps = [Step((), Segment(Author.POLICY, f"{action.kind}: {action.content}"), action) for action in actions]
    stop = StopReason.STEP_LIMIT if answer is None else StopReason.ANSWERED
    return Trajectory(question, "prorag", tuple(steps), stop)


def sifted(
    trajectories: Sequence[Trajectory], scores: Sequence[Sequence[float]] | None = None, **changes: Any
) -> FilterResult:
    threshold = changes.pop("threshold", 0.0)
    return filter_trajectories(trajectories, scores, rules=SampleRules(**{"keep": 2, **changes}), threshold=threshold)


def test_every_filter_takes_its_own_and_the_counts_tell_how_many_were_left() -> None:
    rows: list[tuple[Trajectory, tuple[float, ...], str]] = [
        (played(None), (1, -1), "answered"),
        (played("Oss"), (1, 1, 1), "right_answer"),
        (played("Velm", "a"), (1, -0.1, -3), "good_steps"),
        (played("Velm", "a"), (1, 1, 1), ""),
        (played("Velm", "a"), (2, 2, 2), "distinct"),
        (played("Velm City", "b"), (0, 0, 0), ""),  # an alias; and a score at the threshold is enough
        (played("Velm", "c"), (1, 1, 1), "kept"),
        (played("Velm", "c"), (1, 1, 1), "distinct"),  # like one that is not kept either
        (played("Velm", "a", replace(QUESTION, id="q2")), (1, 1, 1), ""),  # another question counts by itself
    ]
    found = sifted([trajectory for trajectory, _, _ in rows], [scores for _, scores, _ in rows])
    assert found.rejected_by == [failed for _, _, failed in rows]
    assert found.kept == [trajectory for trajectory, _, failed in rows if not failed], "in their order"
    assert found.solved == {QUESTION.id, "q2"}
    assert found.passed() == {
        "sampled": 9, "answered": 8, "right_answer": 7, "solved_share": 7, "supported": 7,
        "good_steps": 6, "distinct": 4, "kept": 3,
    }  # fmt: skip


@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_at_most_so_many_different_ones_of_a_question_are_kept_and_the_first_of_them(keep: int) -> None:
    different = [played("Velm", word) for word in "aabbccd"]
    assert sifted(different, keep=keep).kept == [played("Velm", word) for word in "abcd"[:keep]]


def test_where_the_others_fail_is_told_by_the_first_step_below_the_threshold() -> None:
    answers = ("Velm", "Velm", "Oss", None, "Oss", "Velm")
    trajectories = [played(answer, str(number)) for number, answer in enumerate(answers)]
    scores = [(1, 0.4, -1), (0.4, 1, 1), (1, 1, 0.4), (1, 0.4), (1, 1, 1), (1, 1, 1)]
    found = sifted(trajectories, scores, threshold=0.5)
    assert dict(found.first_bad_step) == {1: 1, 2: 2, 3: 1}
    assert dict(found.first_bad_kind) == {"query": 1, "sub_answer": 2, "answer": 1}
    assert found.no_bad_step == 1, "a wrong answer in which every step looks good"
    assert len(found.kept) == 1, "what is kept has no bad step, and is in none of these counts"


def test_without_scores_nothing_is_asked_of_the_steps() -> None:
    found = sifted([played("Velm"), played("Oss")], None, threshold=100.0)
    assert (found.rejected_by, found.no_bad_step, dict(found.first_bad_step)) == (["", "right_answer"], 1, {})


@pytest.mark.parametrize(("min_f1", "right"), [(0.5, True), (2 / 3, True), (0.67, False), (1.0, False)])
def test_an_answer_is_right_from_some_f1_on(min_f1: float, right: bool) -> None:
    question = replace(QUESTION, answers=("Velm City",))  # of two words one is there: an F1 of 2/3
    assert bool(sifted([played("Velm", question=question)], min_f1=min_f1).kept) is right


def test_an_exact_match_always_counts() -> None:
    question = replace(QUESTION, answers=("The The",))  # articles do not count, so the F1 is 0
    assert sifted([played("the the", question=question)], min_f1=1.0).kept


@pytest.mark.parametrize(
    ("trajectory", "scores", "said"),
    [
        (played(None), (1, 1), r"'answered' .*answered 0.*train sft longer, or raise episode\.max_steps"),
        (
            played("Oss"),
            (1, 1, 1),
            r"'right_answer' .*answered 2, right_answer 0.*higher num_generations.*lower min_f1",
        ),
        (
            played("Velm"),
            (1, 1, -1),
            r"'good_steps' .*right_answer 2, .*good_steps 0.*at 0\.5 or above: lower the thresh",
        ),
    ],
)
def test_where_nothing_is_left_the_error_names_the_filter_and_what_to_change(
    trajectory: Trajectory, scores: tuple[float, ...], said: str
) -> None:
    found = sifted([trajectory] * 2, [scores] * 2, threshold=0.5)
    with pytest.raises(StepladderError, match=rf"no transcripts left: the filter {said}"):
        found.expect_some(0.5)
    sifted([played("Velm"), trajectory]).expect_some(0.5)


# --- sampling -----------------------------------------------------------------------------------------------------


@pytest.fixture
def _parts_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_CHUNK", 2)


@pytest.mark.usefixtures("_parts_of_two")
def test_samples_are_kept_in_parts_and_those_of_a_question_stand_together(tmp_path: Path) -> None:
    found = sample(tmp_path, by_seed)
    assert [trajectory.question.id for trajectory in found] == [f"q{number}" for number in range(5) for _ in range(3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000.jsonl", "00001.jsonl", "00002.jsonl"]
    assert len({trajectory.seed for trajectory in found}) == 15, "every sample has a seed of its own"


@pytest.mark.usefixtures("_parts_of_two")
def test_a_part_that_is_there_is_not_played_again(tmp_path: Path) -> None:
    def breaks(request: Generate) -> str:
        if "Which 3?" in request.context[0].text:
            raise KeyboardInterrupt
        return by_seed(request)

    with pytest.raises(KeyboardInterrupt):
        sample(tmp_path, breaks)
    assert [path.name for path in tmp_path.iterdir()] == ["00000.jsonl"], "a part is there whole or not at all"
    asked: set[str] = set()

    def notes(request: Generate) -> str:
        asked.add(request.context[0].text[-9:-1])
        return by_seed(request)

    found = sample(tmp_path, notes)
    assert asked == {"Which 2?", "Which 3?", "Which 4?"}
    whole = sample(tmp_path / "whole", by_seed)
    assert found == whole
    asked.clear()
    assert sample(tmp_path, notes) == whole
    assert not asked


def test_episodes_that_fail_are_counted_and_if_all_do_it_is_an_error(tmp_path: Path) -> None:
    def breaks(request: Generate) -> str:
        if "Which 1?" in request.context[0].text:
            raise BackendError("the model is asleep")
        return by_seed(request)

    assert len(sample(tmp_path / "some", breaks)) == 12

    def always(request: Generate) -> str:
        raise BackendError("the model is asleep")

    with pytest.raises(StepladderError, match=r"every sampled episode failed; the first: .*asleep"):
        sample(tmp_path / "all", always)
    assert not list((tmp_path / "all").iterdir())


# --- the whole of it ----------------------------------------------------------------------------------------------

#: Learnt by heart, all but the last.
QUESTIONS = [Question(name, name, (name * 3,)) for name in ("Orm", "Tarn", "Velm")]
SETTINGS = RFTConfig(
    num_generations=4, threshold=None, batch_size=2, learning_rate=1e-4, dev_questions=2, num_train_epochs=2
)
EPISODE = EpisodeConfig(sampling=Sampling(max_tokens=40))


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = SFTConfig(num_train_epochs=60, batch_size=2, learning_rate=1e-2, dev_questions=0)
    folder = tmp_path_factory.mktemp("sft")
    context = TrainingContext(
        make_agent("direct"), QUESTIONS[:2], (), None, EPISODE, folder, device="cpu", watch=lambda _: None
    )
    return train_sft("tiny", context, settings).policy


def refine(
    learnt: Path,
    folder: Path,
    reward: Any = None,
    settings: RFTConfig = SETTINGS,
    watch: Callable[[Outcome[Any]], None] = lambda _: None,
    questions: Sequence[Question] = QUESTIONS,
) -> TrainingReport:
    context = TrainingContext(
        make_agent("direct"), questions, QUESTIONS[:2], None, EPISODE, folder, device="cpu", watch=watch
    )
    return train_rft(learnt, context, settings, reward)


def changed(**changes: Any) -> RFTConfig:
    return RFTConfig(**{**SETTINGS.model_dump(exclude_unset=True), **changes})


class Likes:
    """In place of a reward model: likes the steps of some questions."""

    def __init__(self, *questions: str, vocabulary: str | None = None) -> None:
        self.questions = questions
        vocabulary = vocabulary or Encoding(tiny_tokenizer()).vocabulary
        self.builder = SimpleNamespace(encoding=SimpleNamespace(vocabulary=vocabulary), retokenize=False)

    def score_logits(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        return [
            tuple(1.0 if trajectory.question.id in self.questions else -1.0 for _ in trajectory.steps)
            for trajectory in trajectories
        ]


@pytest.fixture(scope="module")
def finished(learnt: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingReport:
    return refine(learnt, tmp_path_factory.mktemp("rft"))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_refinement_leaves_what_it_sampled_what_survived_and_a_policy(finished: TrainingReport, learnt: Path) -> None:
    folder, numbers = finished.policy.parent, finished.numbers
    samples = list(read_records(folder / "samples" / "00000.jsonl", Trajectory))
    assert (numbers["questions"], numbers["sampled"], len(samples), numbers["broken"]) == (3, 12, 12, 0)
    assert numbers["tokens_sampled"] == sum(len(step.written.tokens) for each in samples for step in each.steps)

    survivors = json.loads((folder / "survivors.json").read_text())
    assert survivors.items() <= numbers.items()
    kept = list(read_records(folder / "transcripts.jsonl", Trajectory))
    assert 0 < survivors["kept"] == len(kept) == numbers["examples"] < survivors["right_answer"] < 12
    assert survivors["good_steps"] == survivors["right_answer"], "nobody was asked about the steps"
    assert all(each.answer == each.question.answers[0] for each in kept)
    assert {each.question.id for each in kept} == {"Orm", "Tarn"}
    assert all(each in samples for each in kept)

    scores = rows(folder / "scores.jsonl")
    assert [(row["question"], row["answer"]) for row in scores] == [(each.question.id, each.answer) for each in samples]
    assert [row["failed"] for row in scores].count(None) == len(kept)
    assert all(row["scores"] is None for row in scores)
    assert not same_weights(finished.policy, learnt)
    assert numbers["best_dev_f1"] == 1.0
    assert len([row for row in read_metrics(folder / "curves.jsonl") if "loss" in row]) == numbers["steps"]
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]


def test_a_reward_model_decides_which_of_the_right_answers_are_learnt_from(learnt: Path, tmp_path: Path) -> None:
    numbers = refine(learnt, tmp_path, Likes("Orm"), changed(threshold=0.0)).numbers
    survivors = json.loads((tmp_path / "survivors.json").read_text())
    assert 0 < survivors["good_steps"] < survivors["right_answer"]
    assert {each.question.id for each in read_records(tmp_path / "transcripts.jsonl", Trajectory)} == {"Orm"}
    scores = rows(tmp_path / "scores.jsonl")
    assert all(row["scores"] == [1.0 if row["question"] == "Orm" else -1.0] for row in scores)
    assert {row["failed"] for row in scores if row["question"] == "Tarn"} >= {"good_steps"}
    assert survivors["first_bad_step"] == {"1": sum(row["question"] != "Orm" for row in scores)}
    assert sum(survivors["first_bad_kind"].values()) == sum(survivors["first_bad_step"].values())
    assert survivors["no_bad_step"] == sum(row["question"] == "Orm" and bool(row["failed"]) for row in scores) - (
        survivors["good_steps"] - survivors["kept"]
    )
    assert numbers["first_bad_step"] == survivors["first_bad_step"]


def test_samples_are_drawn_as_the_settings_say(learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        """Ends a run."""

    def instead(folder: Path, driver: Any, agent: Any, asked: Any, settings: EpisodeConfig, **options: Any) -> None:
        assert settings.sampling == Sampling(temperature=0.7, top_p=0.9, max_tokens=40)
        assert (len(asked), options["num_generations"]) == (2, 5)
        raise Stop

    monkeypatch.setattr("stepladder.train.transcripts.sampled_episodes.sample_episodes", instead)
    with pytest.raises(Stop):
        refine(learnt, tmp_path, settings=changed(temperature=0.7, top_p=0.9, questions=2, num_generations=5))


def test_the_same_seed_gives_the_same_result(finished: TrainingReport, learnt: Path, tmp_path: Path) -> None:
    again = refine(learnt, tmp_path)
    for name in ("samples/00000.jsonl", "transcripts.jsonl", "scores.jsonl", "survivors.json"):
        assert (tmp_path / name).read_bytes() == (finished.policy.parent / name).read_bytes()
    assert same_weights(again.policy, finished.policy)


#: Scored before the first update, and after the second, which ruins the policy.
HARMFUL = changed(learning_rate=1.0, eval_steps=2, eval_on_start=True)


def test_a_refinement_that_does_harm_leaves_the_policy_as_it_came(learnt: Path, tmp_path: Path) -> None:
    report = refine(learnt, tmp_path, settings=HARMFUL)
    scores = [(row["step"], row["dev_f1"]) for row in read_metrics(tmp_path / "curves.jsonl") if "dev_f1" in row]
    assert scores[0] == (0, 1.0)
    assert all(score < 1.0 for _, score in scores[1:])
    assert report.numbers["best_step"] == 0
    stage: Any = SimpleNamespace(kind="rft", summary=report.numbers)
    assert "the initial policy was best" in str(stage_summary(stage))
    assert same_weights(report.policy, learnt)
    again = refine(learnt, tmp_path, settings=HARMFUL)
    assert again.numbers == report.numbers
    assert same_weights(again.policy, learnt)


def test_a_run_that_begins_again_scores_the_policy_that_came_once(learnt: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        """Ends a run."""

    def watch(outcome: Outcome[Any]) -> None:
        if isinstance(outcome.value, float):
            save(tmp_path / "curves.jsonl")
            raise Stop

    def save(curves: Path) -> None:
        curves.write_text(json.dumps({"step": 0, "dev_f1": 0.25, "dev_em": 0.0, "dev_failed": 0}) + "\n")

    with pytest.raises(Stop):
        refine(learnt, tmp_path, settings=changed(eval_on_start=True), watch=watch)
    refine(learnt, tmp_path, settings=changed(eval_on_start=True))
    found = read_metrics(tmp_path / "curves.jsonl")
    assert [row["dev_f1"] for row in found if row["step"] == 0] == [1.0]


def test_a_finished_run_is_not_trained_again(finished: TrainingReport, learnt: Path) -> None:
    def never(outcome: Outcome[Any]) -> None:
        pytest.fail("there was nothing left to do")

    before = {path: path.stat().st_mtime_ns for path in (finished.policy.parent / "samples").iterdir()}
    assert refine(learnt, finished.policy.parent, watch=never).numbers == finished.numbers
    assert {path: path.stat().st_mtime_ns for path in before} == before


#: Four updates, with a checkpoint in the middle.
IN_PARTS = changed(lora=LoraConfig(r=2, lora_dropout=0.3), batch_size=1, dev_questions=0, eval_steps=2)


@pytest.fixture(scope="module")
def whole(learnt: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainingReport:
    return refine(learnt, tmp_path_factory.mktemp("whole"), settings=IN_PARTS)


@pytest.mark.parametrize("update", [1, 3], ids=["before any checkpoint", "after one"])
def test_a_training_that_was_cut_goes_on_without_sampling_again(
    learnt: Path, whole: TrainingReport, tmp_path: Path, update: int
) -> None:
    class Stop(Exception):
        """Ends a run."""

    def watch(outcome: Outcome[Any]) -> None:
        if isinstance(outcome.value, float) and outcome.index + 1 == update:
            raise Stop

    with pytest.raises(Stop):
        refine(learnt, tmp_path, settings=IN_PARTS, watch=watch)
    made = (tmp_path / "samples" / "00000.jsonl").stat().st_mtime_ns
    resumed = refine(learnt, tmp_path, settings=IN_PARTS)
    assert (tmp_path / "samples" / "00000.jsonl").stat().st_mtime_ns == made
    assert resumed.numbers["steps"] == whole.numbers["steps"] == 4
    for name, tensor in weights(resumed.policy).items():
        torch.testing.assert_close(tensor, weights(whole.policy)[name], rtol=1e-4, atol=1e-5)


# --- reward models that do not fit --------------------------------------------------------------------------------


def reward_model(tokenizer: PreTrainedTokenizerBase, **options: Any) -> ProcessRewardModel:
    """One that finds every step neither good nor bad: all its scores are 0."""
    return ProcessRewardModel(with_scalar_head(tiny_model(vocab_size=258), tokenizer, "tiny"), tokenizer, **options)


def other_tokenizer() -> PreTrainedTokenizerBase:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["answer"])
    return tokenizer


def test_a_real_reward_model_and_its_threshold(learnt: Path, tmp_path: Path) -> None:
    numbers = refine(learnt, tmp_path / "enough", reward_model(tiny_tokenizer()), changed(threshold=0.0)).numbers
    assert numbers["good_steps"] == numbers["right_answer"]
    assert all(row["scores"] == [0.0] for row in rows(tmp_path / "enough" / "scores.jsonl"))
    with pytest.raises(StepladderError, match=r"the filter 'good_steps' .* all scores at 0\.1 or above"):
        refine(learnt, tmp_path / "more", reward_model(tiny_tokenizer()), changed(threshold=0.1))
    assert json.loads((tmp_path / "more" / "survivors.json").read_text())["good_steps"] == 0, "to see what happened"


def test_a_reward_model_of_another_tokenizer_is_refused_before_anything_is_sampled(
    learnt: Path, tmp_path: Path
) -> None:
    with pytest.raises(StepladderError, match=r"another tokenizer .* than the policy .*set retokenize to true"):
        refine(learnt, tmp_path / "run", reward_model(other_tokenizer()), changed(threshold=0.0))
    assert not (tmp_path / "run" / "samples").exists()
    reward = reward_model(other_tokenizer(), retokenize=True)
    refine(learnt, tmp_path / "run", reward, changed(threshold=0.0))
    assert reward.builder.retokenized > 0


def test_a_threshold_and_a_reward_model_belong_together(learnt: Path, tmp_path: Path) -> None:
    for reward, threshold in ((Likes("Orm"), None), (None, 0.0)):
        with pytest.raises(StepladderError, match="a threshold needs a step scorer"):
            refine(learnt, tmp_path / "run", reward, changed(threshold=threshold))
    assert not (tmp_path / "run").exists()


def test_questions_without_answers_cannot_be_refined_on(learnt: Path, tmp_path: Path) -> None:
    nobody_knows = [replace(question, answers=()) for question in QUESTIONS]
    with pytest.raises(StepladderError, match="none of 3 questions has an answer"):
        refine(learnt, tmp_path, questions=nobody_knows)
    numbers = refine(learnt, tmp_path, questions=[*QUESTIONS[:2], nobody_knows[2]]).numbers
    assert numbers["questions"] == 2


# --- in a recipe --------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "questions.jsonl"
    lines = [{"id": each.id, "question": each.text, "golden_answers": list(each.answers)} for each in QUESTIONS[:2]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"train": str(path), "dev": str(path)}


def recipe(stages: dict[str, Any], **more: Any) -> Recipe:
    shared = {"policy": "tiny", "agent": "direct", "device": "cpu", "episode": {"max_tokens": 40}}
    return Recipe.read({**shared, **more, "stages": stages})


def test_a_warm_up_and_a_refinement_are_a_recipe(learnt: Path, tmp_path: Path, files: dict[str, str]) -> None:
    stages = {
        "sft": {"num_train_epochs": 1, "learning_rate": 1e-5, "dev_questions": 0},
        "rft": {"threshold": None, "num_generations": 2, "dev_questions": 2},
    }
    made = recipe(stages, policy=str(learnt), data=files)
    assert dict(made.stages[1].inputs) == {"policy": "sft"}
    report = run_recipe(made, tmp_path / "run", console=Console(file=StringIO()))
    numbers = report.stages[1].summary
    assert (numbers["sampled"], numbers["best_dev_f1"]) == (4, 1.0)
    assert report.policy == tmp_path / "run" / "rft" / "policy"
    assert run_recipe(made, tmp_path / "run", console=Console(file=StringIO())).skipped == ("sft", "rft")


def test_a_recipe_says_what_is_missing_or_too_much() -> None:
    with pytest.raises(StepladderError, match=r"stages\.rft: needs reward, and no earlier stage writes any"):
        recipe({"sft": {}, "rft": {}})
    before = {"sft": {}, "explore": {}, "pairs": {}, "prm": {}}
    assert dict(recipe({**before, "rft": {}}).stages[-1].inputs) == {"policy": "sft", "reward": "prm"}
    with pytest.raises(StepladderError, match=r"stages\.rft\.reward: these settings take no reward; found 'prm'"):
        recipe({**before, "rft": {"threshold": None, "reward": "prm"}})
    with pytest.raises(StepladderError, match=r"stages\.rft\.reward: expected prm .* found 'pairs'"):
        recipe({**before, "rft": {"reward": "pairs"}})


def test_a_missing_split_is_noticed_before_the_first_stage_begins(tmp_path: Path, files: dict[str, str]) -> None:
    made = recipe({"sft": {"dev_questions": 0}, "rft": {"threshold": None}}, data={"train": files["train"]})
    with pytest.raises(StepladderError, match="rft evaluates checkpoints on 60 dev questions, but the data has no dev"):
        run_recipe(made, tmp_path / "run", console=Console(file=StringIO()))
    assert not (tmp_path / "run" / "sft").exists()
