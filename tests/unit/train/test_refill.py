"""Questions without a signal are replaced, the same ones whatever happened before, and all that is written counts."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.requests import Generate
from stepladder.core.trace import Action, ActionKind, Author, Question, Segment, Step, Trajectory
from stepladder.driver import Driver, Outcome
from stepladder.engines.scripted import ScriptedEngine
from stepladder.pipeline.stages.grpo import summarize
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import CreditedEpisode
from stepladder.train.grpo.refill import Refills, further_questions
from stepladder.train.grpo.rollouts import RolloutBatch, Rollouts, joined, loss_shares
from tests.support.grpo_training import QUESTIONS, ROOMY, Taste, train
from tests.support.grpo_updates import PRORAG, changed, say, train_told
from tests.support.samples import WordRetriever
from tests.support.training_runs import plain_rows, same_weights, updates

MANY = [replace(QUESTIONS[0], id=f"q{number}", text=f"Where {number}?") for number in range(12)]
#: Two questions per update: q0 and q1 at first.
REFILLS = Refills(MANY, range(12), 2, seed=0)
RIGHT, WRONG = say("Velm"), say("Oss")

#: (question, seed of the step) -> what to say.
Tell = Callable[[str, int], Any]


def sample(tell: Tell, refills: Refills | None = REFILLS, first: int = 0, count: int = 2, **changes: Any) -> Any:
    """The first update, and the questions that were asked, in order."""
    asked: list[str] = []

    def speak(request: Generate) -> Any:
        state = request.trajectory
        assert state is not None
        asked.append(state.question.id)
        return tell(state.question.id, request.seed)

    settings = changed(**{"mode": "outcome", "refill": 3, "num_generations": 4, **changes})
    rollouts = Rollouts(Driver(ScriptedEngine(speak), WordRetriever()), PRORAG, ROOMY, settings, Taste())  # type: ignore[arg-type]
    further = None if refills is None else refills.of(0)
    found = rollouts.generate(MANY[first : first + count], seed=5, first=first, further=further)
    return found, list(dict.fromkeys(asked))


def questions_of(found: RolloutBatch) -> list[str]:
    return [row.trajectory.question.id for row in found.rows[::4]]


def only(*taught: str) -> Tell:
    """Of these questions some episodes are right; of the others none."""
    return lambda question, seed: random.Random(seed).choice([RIGHT, WRONG]) if question in taught else WRONG


def sequence(place: int) -> list[str]:
    """The questions that the first update asks at a place, if none of them has a signal."""
    next_question = REFILLS.of(0)
    return [MANY[place].id, *(next_question(number, place).id for number in (1, 2, 3))]


# --- which questions ------------------------------------------------------------------------------------------------


def test_further_questions_are_all_questions_and_those_of_the_update_come_last() -> None:
    found = further_questions(6, [4, 1], seed=3)
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    assert set(found[-2:]) == {1, 4}
    assert found == further_questions(6, [1, 4], seed=3) != further_questions(6, [1, 4], seed=4)


def test_places_and_rounds_ask_different_questions_that_depend_on_the_update_alone() -> None:
    asked = sequence(0) + sequence(1)
    assert len(set(asked)) == 8
    assert asked == sequence(0) + sequence(1)
    later = [REFILLS.of(3)(number, place).id for number in (1, 2) for place in (0, 1)]
    assert later != [REFILLS.of(4)(number, place).id for number in (1, 2) for place in (0, 1)]
    assert not {"q6", "q7"} & set(later), "those of the update come last"


# --- one update -----------------------------------------------------------------------------------------------------


def test_questions_are_replaced_until_all_have_a_signal() -> None:
    first, second = sequence(0), sequence(1)
    found, asked = sample(only(first[2], second[0]))
    assert questions_of(found) == [first[2], second[0]]
    assert asked == ["q0", "q1", first[1], first[2]]
    told = joined([found.metrics])
    assert (told["refilled"], told["episodes"], told["dropped_groups"], told["failed"]) == (2, 16, 2 / 4, 0)
    texts = sum(len(row.trajectory.steps[0].written.tokens) for row in found.rows) + 8 * len(WRONG)
    assert told["written"] == texts, "what was discarded was written too"
    right = sum(row.reward > 1 for row in found.rows)
    assert told["f1"] == pytest.approx(right / 16), "a mean of the kept questions alone would be flattering"


def test_at_the_limit_the_update_goes_on_with_what_there_is() -> None:
    found, asked = sample(only(sequence(1)[3]), refill=2)
    assert questions_of(found) == [sequence(0)[2], sequence(1)[2]]
    assert not any(row.has_signal for row in found.rows)
    assert len(found.rows) == 8
    assert len(asked) == 6
    assert found.metrics["dropped_groups"].value == 1
    assert found.metrics["first_step_share"].value == 0, "nothing is in the loss"


def test_by_default_nothing_is_replaced() -> None:
    for options in ({"refill": 0}, {"refills": None}):
        found, asked = sample(only(), **options)  # type: ignore[arg-type]
        assert asked == questions_of(found) == ["q0", "q1"]
        assert (found.metrics["refilled"].value, found.metrics["episodes"].value) == (0, 8)


@pytest.mark.parametrize("mode", ["outcome", "tree", "process"])
def test_processes_refill_their_shares_as_one_would(mode: str) -> None:
    """Places do not depend on each other; and the metrics of two processes are those of one."""
    taught = (sequence(0)[1], sequence(1)[2])
    changes: dict[str, Any] = {"mode": mode}
    tell = only(*taught)
    if mode == "process":  # all steps of a question are scored alike, unless they differ

        def tell(question: str, seed: int) -> str:
            return say("Oss", str(seed)) if question in taught else WRONG

    together, _ = sample(tell, **changes)
    shares = [sample(tell, first=place, count=1, **changes)[0] for place in (0, 1)]
    assert questions_of(together) == list(taught)
    assert together.rows == tuple(row for share in shares for row in share.rows)
    one, two = (
        {name: value for name, value in joined([each.metrics for each in some]).items() if "seconds" not in name}
        for some in ([together], shares)
    )
    assert one == pytest.approx(two)
    assert one["refilled"] == 3


def test_a_question_that_is_asked_again_is_played_anew() -> None:
    """With no more questions than an update has, those of the update are asked again."""
    texts: set[int] = set()

    def tell(question: str, seed: int) -> str:
        texts.add(seed)
        return WRONG

    found, asked = sample(tell, refills=Refills(MANY[:2], range(2), 2, seed=0), refill=2)
    assert set(asked) == {"q0", "q1"}
    assert len(texts) == found.metrics["episodes"].value == 24


def test_a_refill_that_breaks_is_counted_and_replaced() -> None:
    first = sequence(0)

    def tell(question: str, seed: int) -> Any:
        return BackendError("busy") if question == first[1] else only(first[2], "q1")(question, seed)

    found, _ = sample(tell)
    assert questions_of(found) == [first[2], "q1"]
    assert found.metrics["failed"].value == 4
    with pytest.raises(StepladderError, match="every sampled episode failed; the first: busy"):
        sample(lambda question, seed: BackendError("busy"))


def test_the_share_of_first_steps_and_answers_in_the_loss_is_told() -> None:
    def step(kind: ActionKind, tokens: int) -> Step:
        return Step((), Segment(Author.POLICY, "w" * tokens, (7,) * tokens), Action(kind, "x"))

    asked, wrong, right = step(ActionKind.QUERY, 5), step(ActionKind.ANSWER, 3), step(ActionKind.ANSWER, 2)
    shared = Trajectory(QUESTIONS[0], "prorag", (asked, wrong))
    rows = [
        CreditedEpisode(shared, -1.0, (-1.0, -1.0), (True, True)),
        CreditedEpisode(replace(shared, steps=(asked, right)), 3.0, (1.0, 1.0), (False, True)),
        CreditedEpisode(replace(shared, steps=(right,)), 3.0, (1.0,), (True,)),
    ]
    told = loss_shares(rows)
    assert {name: (each.total, each.count) for name, each in told.items()} == {
        "first_step_share": (5 + 2, 5 + 3 + 2 + 2),
        "answer_share": (3 + 2 + 2, 5 + 3 + 2 + 2),
    }


# --- a training -----------------------------------------------------------------------------------------------------

TOLD = {"mode": "outcome", "beta": 0.0, "dev_questions": 0, "eval_steps": 1}


def some_flat(update: int, question: str, number: int) -> str:
    """Of even questions all is the same; in the third update of all."""
    return RIGHT if int(question[1:]) % 2 and update != 3 and number % 2 else WRONG


def test_a_training_counts_all_that_it_sampled(tmp_path: Path) -> None:
    settings = changed(**TOLD, questions=12, num_train_epochs=0.5, refill=4)
    report, made = train_told(tmp_path, settings, some_flat, questions=MANY)
    rows = updates(tmp_path)
    assert made == [1, 2, 3]
    assert rows[2]["refilled"] == 2 * 4, "the limit"
    assert (rows[2]["dropped_groups"], rows[2]["grad_norm"]) == (1, 0)
    for row in rows[:2]:
        assert row["refilled"] == pytest.approx(row["dropped_groups"] * row["episodes"] / 4), "all places were filled"
        assert row["policy_tokens"] == 4 * (len(WRONG) + len(RIGHT))
    groups = 3 * 2 + sum(row["refilled"] for row in rows)
    assert report.numbers["episodes"] == 4 * groups == sum(row["episodes"] for row in rows)
    assert report.numbers["refilled_groups"] == groups - 6 > 8
    assert report.numbers["questions"] == min(groups, 12)
    assert report.numbers["tokens_sampled"] == sum(row["written"] for row in rows)
    assert rows[2]["written"] == 10 * 4 * len(WRONG)
    headline, lines = summarize(report.numbers)
    assert f"{4 * groups} episodes" in headline
    assert lines["groups replaced"] == str(groups - 6)


def cut_and_resumed(folder: Path, settings: GRPOConfig, questions: Sequence[Question], update: int) -> Any:
    """A training that ends at this update, before its checkpoint is written, and is called again."""

    class Stop(Exception):
        """Ends a run."""

    def watch(outcome: Outcome[Any]) -> None:
        if outcome.index + 1 == update:
            raise Stop

    with pytest.raises(Stop):
        train(folder, settings, watch=watch, questions=questions)
    return train(folder, settings, questions=questions)


def test_a_resumed_training_with_a_budget_equals_one_that_was_not_cut(tmp_path: Path) -> None:
    """It ends at the first update at which the budget is used up, and is not trained on."""
    settings = changed(
        mode="outcome", refill=2, questions=12, num_train_epochs=3, eval_steps=3, dev_questions=0,
        monitors={"window": 9}, token_budget=600,
    )  # fmt: skip
    whole = train(tmp_path / "whole", settings, questions=MANY)
    rows = updates(tmp_path / "whole")
    written = [row["written"] for row in rows]
    assert sum(row["refilled"] for row in rows) > 0
    assert sum(written[:-1]) < 600 <= sum(written) == whole.numbers["tokens_sampled"]
    assert 4 < len(rows) < 18, "before the schedule ends"
    assert whole.numbers["out_of_tokens"]
    assert "stopped by the token budget" in summarize(whole.numbers)[0]
    cut = cut_and_resumed(tmp_path / "cut", settings, MANY, update=len(rows))
    assert plain_rows(tmp_path / "cut") == plain_rows(tmp_path / "whole")
    assert same_weights(cut.policy, whole.policy)
    again = train(tmp_path / "cut", settings, watch=lambda _: pytest.fail("nothing is left to do"), questions=MANY)
    assert again.numbers == cut.numbers


def test_the_budget_is_checked_after_all_passes_of_a_batch(tmp_path: Path) -> None:
    settings = changed(**{**TOLD, "num_iterations": 3, "num_train_epochs": 4, "token_budget": 1})
    report, made = train_told(tmp_path, settings, some_flat)
    assert made == [1, 2, 3]
    assert report.numbers["out_of_tokens"]
    assert report.numbers["episodes"] == 8
    longer, _ = train_told(tmp_path / "longer", changed(**TOLD, num_train_epochs=1, token_budget=10**9), some_flat)
    assert not longer.numbers["out_of_tokens"]
    assert longer.numbers["steps"] == 2


def test_settings_that_are_off_do_not_change_a_fingerprint() -> None:
    assert {"refill", "token_budget"} <= GRPOConfig().inert()
    assert not {"refill", "token_budget"} & GRPOConfig(refill=1, token_budget=1000).inert()
    for name in ("refill", "token_budget"):
        with pytest.raises(StepladderError, match=f"{name}: "):
            GRPOConfig.read({name: -1})
