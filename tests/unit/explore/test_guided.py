"""Guided inference: what is sampled, who chooses, what it costs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from stepladder.cli import main
from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import ActionKind, Author, Question, Segment, StopReason, Trajectory, Usage
from stepladder.driver import Driver, Outcome
from stepladder.engines.base import Engine
from stepladder.evaluation.evaluator import evaluate
from stepladder.explore.episode import Cost, EpisodeConfig, metered
from stepladder.explore.guided import Guide, guided_search
from stepladder.oracle.step_judge import GoldScorer
from stepladder.pipeline.guide_config import GuideConfig
from tests.support.sampled_steps import AGENT, BAD, GOOD, OTHER, Likes, Sampled
from tests.support.samples import QUESTION, WordRetriever

WARM = EpisodeConfig(max_steps=6, k=1, sampling=Sampling(temperature=1.0))


KNOWS = {"designed": 0.9, "born": 0.8, "Velm": 0.7, "Oss": 0.2}


def play(
    guide: Guide, engine: Engine, scorer: object = None, seed: int = 0, question: Question = QUESTION
) -> tuple[Outcome[Trajectory], Cost, WordRetriever]:
    retriever, cost = WordRetriever(), Cost()
    driver = Driver(engine, retriever, scorer)  # type: ignore[arg-type]
    job = partial(metered, guided_search(AGENT, question, WARM, guide, seed), cost)
    (outcome,) = driver.run([job])
    return outcome, cost, retriever


def texts(outcome: Outcome[Trajectory]) -> list[str]:
    assert outcome.value is not None, outcome.failure
    return [step.action.content for step in outcome.value.steps]


def test_the_best_of_every_steps_samples_is_taken() -> None:
    outcome, cost, retriever = play(Guide(n=16), Sampled([GOOD, OTHER, OTHER, BAD]), Likes(**KNOWS))
    assert texts(outcome) == ["Who designed Orm Tower?", "Where was Ada Tarn born?", "Velm"]
    # Everything that was sampled is counted; of the queries only those that were chosen were searched for.
    assert cost.usage == Usage(16 * 3 * 10, 16 * 3)
    assert cost.searches == 2
    assert [query for call in retriever.calls for query in call] == texts(outcome)[:2]


def test_a_judge_that_looks_at_results_gets_them() -> None:
    outcome, cost, _ = play(Guide(n=16, retrieve_first=True), Sampled([GOOD, OTHER]), GoldScorer())
    assert texts(outcome) == ["Who designed Orm Tower?", "Where was Ada Tarn born?", "Velm"]
    assert cost.searches > 2


def test_one_sample_needs_no_scorer_and_equal_samples_neither() -> None:
    scorer = Likes()
    outcome, _, _ = play(Guide(n=1), Sampled([OTHER]), scorer)
    assert texts(outcome) == ["Orm River", "Ada", "Oss"]
    play(Guide(n=5), Sampled([GOOD]), scorer)
    assert scorer.asked == []


def test_what_breaks_the_grammar_is_taken_only_when_there_is_nothing_else() -> None:
    outcome, _, _ = play(Guide(n=16), Sampled([OTHER, BAD]), Likes(nonsense=1.0))
    assert outcome.value is not None
    assert outcome.value.stop is StopReason.ANSWERED
    outcome, _, _ = play(Guide(n=4), Sampled([BAD]), Likes())
    assert outcome.value is not None
    assert outcome.value.stop is StopReason.MALFORMED


def test_of_equal_scores_the_most_frequent_goes_first() -> None:
    outcome, _, _ = play(Guide(n=33), Sampled([GOOD, *[OTHER] * 6]), Likes())
    assert texts(outcome) == ["Orm River", "Ada", "Oss"]


def test_what_the_policy_says_often_can_count_beside_the_score() -> None:
    """The other way scores a little higher; the good one is sampled three times as often."""
    scorer = Likes(designed=0.6, born=0.6, Velm=0.6, River=0.7, Ada=0.7, Oss=0.7)
    engine = Sampled([GOOD, GOOD, GOOD, OTHER])
    for strategy in ("actions", "beam", "trajectories"):
        alone = Guide(strategy, n=24, aggregate="last")  # type: ignore[arg-type]
        found = [play(guide, engine, scorer)[0] for guide in (alone, replace(alone, weighted=True))]
        assert [texts(each)[-1] for each in found] == ["Oss", "Velm"], strategy


@pytest.mark.parametrize("strategy", ["actions", "beam", "trajectories", "vote", "mcts"])
def test_the_same_seed_gives_the_same_choice(strategy: str) -> None:
    guide = Guide(strategy, n=6)  # type: ignore[arg-type]
    found = [texts(play(guide, Sampled([GOOD, OTHER, BAD]), Likes(**KNOWS), seed=3)[0]) for _ in range(2)]
    assert found[0] == found[1]


def test_a_beam_sees_what_a_greedy_choice_overlooks() -> None:
    """The first step of the right way scores less than the other's; what follows makes up for it."""
    worth = {"designed": 0.5, "born": 0.9, "Velm": 0.9, "River": 0.6, "Ada</search>": 0.1, "Oss": 0.1}

    class Committed(Sampled):
        """Whoever began one way goes on so."""

        def _one(self, request: Generate) -> Generation:
            assert request.trajectory is not None
            began = [step.action.content for step in request.trajectory.steps][:1]
            if began:
                self.lines = [GOOD] if "designed" in began[0] else [OTHER]
            else:
                self.lines = [GOOD, OTHER]
            return super()._one(request)

    greedy, _, _ = play(Guide("actions", n=8), Committed([GOOD]), Likes(**worth))
    beam, _, _ = play(Guide("beam", n=8, beams=2, aggregate="mean"), Committed([GOOD]), Likes(**worth))
    assert (texts(greedy)[-1], texts(beam)[-1]) == ("Oss", "Velm")


@pytest.mark.parametrize(("aggregate", "expected"), [("min", "even"), ("mean", "uneven"), ("last", "late")])
def test_whole_episodes_are_chosen_by_what_their_steps_make_of_them(aggregate: str, expected: str) -> None:
    def line(name: str) -> dict[int, str]:
        return {
            0: f"<think>x</think><search>{name} one</search>",
            1: f"<think>x</think><search>{name} two</search>",
            2: f"<think>x</think><answer>{name}</answer>",
        }

    class Scores(Likes):
        known: ClassVar = {"even": (0.6, 0.5, 0.5), "uneven": (0.9, 0.9, 0.4), "late": (0.1, 0.1, 0.9)}

        def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
            return [self.known[each.answer or ""] for each in trajectories]

    class ByEpisode(Sampled):
        """One line an episode, whatever the step."""

        def _one(self, request: Generate) -> Generation:
            assert request.trajectory is not None
            self.lines = [line(("even", "uneven", "late")[request.trajectory.seed % 3])]
            return super()._one(request)

    outcome, cost, _ = play(Guide("trajectories", n=12, aggregate=aggregate), ByEpisode([]), Scores())  # type: ignore[arg-type]
    assert texts(outcome)[-1] == expected
    assert cost.usage.written == 36


def test_the_most_common_answer_wins_whatever_its_spelling() -> None:
    answers = ["the Velm.", "Oss", "velm", "Ada", "Velm"]
    lines = [f"<think>x</think><answer>{answer}</answer>" for answer in answers]
    outcome, _, _ = play(Guide("vote", n=40), Sampled([*lines, BAD, BAD, BAD, BAD]))
    assert outcome.value is not None
    assert (outcome.value.answer or "").lower().strip(".").removeprefix("the ") == "velm"


def test_a_vote_without_any_answer_still_has_an_outcome() -> None:
    outcome, _, _ = play(Guide("vote", n=3), Sampled([BAD]))
    assert outcome.value is not None
    assert outcome.value.stop is StopReason.MALFORMED


def test_a_search_tree_needs_no_right_answers() -> None:
    unknown = Question("q", "Where was the architect of Orm Tower born?", ())
    guide = Guide("mcts", n=4, simulations=24)
    outcome, cost, _ = play(guide, Sampled([GOOD, OTHER, BAD]), Likes(**KNOWS), question=unknown)
    assert texts(outcome) == ["Who designed Orm Tower?", "Where was Ada Tarn born?", "Velm"]
    assert cost.usage.written > 12


def test_a_search_that_ends_early_is_played_on() -> None:
    outcome, _, _ = play(Guide("mcts", n=2, simulations=1), Sampled([GOOD]), Likes(**KNOWS))
    assert texts(outcome)[-1] == "Velm"


def test_failed_samples_are_left_out_and_if_all_fail_it_is_said() -> None:
    class Shaky(Sampled):
        def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
            return [BackendError("lost") if request.seed % 2 else self._one(request) for request in requests]

    outcome, _, _ = play(Guide(n=12), Shaky([GOOD]), Likes(**KNOWS))
    assert texts(outcome)[-1] == "Velm"

    class Dead(Sampled):
        def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
            return [BackendError("lost") for _ in requests]

    for strategy in ("actions", "beam", "trajectories", "vote", "mcts"):
        outcome, _, _ = play(Guide(strategy, n=3), Dead([GOOD]), Likes())  # type: ignore[arg-type]
        assert outcome.failure is not None
        assert "lost" in outcome.failure.reason


def test_more_samples_help_an_evaluation_and_cost_is_told() -> None:
    engine = Sampled([GOOD, OTHER, OTHER, OTHER])
    driver = Driver(engine, WordRetriever(), Likes(**KNOWS))
    questions = [Question(f"q{number}", QUESTION.text, QUESTION.answers, QUESTION.hops) for number in range(30)]
    f1 = {}
    for n in (1, 4, 16):
        result = evaluate(driver, AGENT, questions, WARM, guide=Guide(n=n))
        f1[n] = result.summary().metrics["f1"].mean
        assert result.summary().metrics["tokens_written"].mean == 3 * n
    assert f1[1] < f1[4] < f1[16] == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "vote", "strategy": "beam"}, "strategy has no effect with by: vote"),
        ({"n": 0}, "n: expected"),
        ({"beams": 3}, r"beams has no effect with the strategy actions \(it is for beam\)"),
        (
            {"by": "vote", "aggregate": "mean"},
            r"aggregate has no effect with the strategy vote \(it is for beam or trajectories\)",
        ),
        ({"temperature": 0}, "temperature: expected"),
        ({"strategy": "beams"}, "strategy: expected"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], message: str) -> None:
    with pytest.raises(StepladderError, match=message):
        GuideConfig.read(settings)


def test_settings_in_full_can_be_read_again() -> None:
    for settings in ({"by": "vote"}, {"strategy": "beam", "beams": 3}, {"strategy": "mcts"}):
        chosen = GuideConfig.read(settings)
        assert GuideConfig.read(chosen.effective()) == chosen
    assert GuideConfig.read({"by": "vote"}).describe()["strategy"] == "vote"


def test_ask_and_eval_take_a_guide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", "atlas-small", "--agent", "search-r1"]
    assert main(["eval", *data, "--limit", "4", "--guide", "gold", "--n", "2", "--json"]) == 0
    assert '"by": "gold"' in capsys.readouterr().out
    assert main(["ask", *data, "--guide", "vote", "--n", "3"]) == 0
    assert "answered after" in capsys.readouterr().out
    for arguments, message in (
        (["--n", "4"], "--n needs --guide"),
        (["--guide", "prm"], "add --run DIR, or give --guide FOLDER"),
        (["--guide", "gold", "--temperature", "0"], "makes all candidates equal"),
        (
            ["What is love?", "--guide", "gold", "--model", "tiny"],
            "--guide gold can only judge questions of the data set",
        ),
        (["--guide", str(tmp_path)], "expected prm, gold, vote or a reward model folder"),
    ):
        assert main(["ask", *data, *arguments]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_candidates_of_a_state_without_room(tmp_path: Path) -> None:
    """A model whose window is full writes nothing: the episode ends at that limit, whoever chooses."""

    class Full(Sampled):
        def _one(self, request: Generate) -> Generation:
            return Generation(request.context, Segment(Author.POLICY, ""), "", Finish.CONTEXT_FULL)

    outcome, _, _ = play(Guide(n=3), Full([GOOD]), Likes())
    assert outcome.value is not None
    assert outcome.value.stop is StopReason.CONTEXT_LIMIT
    assert all(step.action.kind is not ActionKind.MALFORMED for step in outcome.value.steps)
