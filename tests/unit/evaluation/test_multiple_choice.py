"""Multiple choice from a file to a table: prompts, episodes, accuracy, and the rewards that training takes from it."""

import json
import re
from itertools import cycle
from pathlib import Path

import pytest
from rich.console import Console

from stepladder import cli
from stepladder.agents import AGENTS, Agent, Play, make_agent
from stepladder.agents.formats.play import Format
from stepladder.core.requests import Generate, Sampling
from stepladder.core.trace import Action, ActionKind, AnswerKind, Question, StopReason, Trajectory, Tree
from stepladder.data import load_dataset
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.evaluation.answer_judge import judge_answers
from stepladder.evaluation.evaluator import Evaluation, evaluate, load_scores
from stepladder.explore.branching import branching
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.mcts import MCTSConfig, mcts_search
from stepladder.gym.episode_slot import Transition
from stepladder.judges.llm.prompts import answer_prompt, score_prompt
from stepladder.oracle.engine import OracleEngine
from stepladder.oracle.step_judge import judge
from stepladder.reporting.eval_table import print_summary
from stepladder.train.grpo.config import RewardConfig
from stepladder.train.grpo.credit.rewards import outcome_reward
from stepladder.train.rft.filters import filter_trajectories
from stepladder.train.transcripts.sample_checks import SampleRules

EXAMPLE = Path(__file__).parents[3] / "examples" / "multiple-choice"
QUESTIONS = load_dataset(str(EXAMPLE)).split("test")
#: Right by letter, by both, by text and in a sentence; wrong in as many ways, and two that choose nothing.
ANSWERS = (
    "C",
    "B. Pancreas",
    "croup",
    "It is option D.",
    "B",
    "(A)",
    "zinc",
    "A. Tibia",
    "Lisinopril or Losartan",
    "?",
)


def answered(agent: Agent, *answers: str) -> Evaluation:
    """The example's questions, each with its scripted answer."""
    texts = dict(zip((question.id for question in QUESTIONS), answers))

    def say(request: Generate) -> str:
        assert request.trajectory is not None
        answer = Action(ActionKind.ANSWER, texts[request.trajectory.question.id], "I know.")
        return agent.write(answer, request.trajectory)

    return evaluate(Driver(ScriptedEngine(say)), agent, QUESTIONS[: len(answers)])


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_shows_the_options_and_may_be_held_to_their_letters(name: str) -> None:
    agent, (question, *_) = make_agent(name), QUESTIONS
    shown = "".join(segment.text for segment in agent.render(Trajectory(question, name)))
    assert "\nA. Vitamin A\nB. Vitamin B12\nC. Vitamin C\nD. Vitamin D\nAnswer with the letter of one option." in shown
    constrained = agent.playing(Play(Format.CONSTRAINED))
    state = Trajectory(question, name)
    grammar = constrained.constraint(state, forced=True)
    assert grammar is not None
    for content, allowed in {"C": True, "E": False, "Vitamin C": False}.items():
        text = agent.write(Action(ActionKind.ANSWER, content, "So." if agent.thinks else ""), state)
        assert bool(re.fullmatch(grammar.regex(), text)) is allowed


def test_the_oracle_answers_with_letters() -> None:
    agent = make_agent("direct")
    result = evaluate(Driver(OracleEngine(agent)), agent, QUESTIONS)
    assert "".join(row.prediction or "" for row in result.scores) == "CBBDACBDAB"
    assert result.summary().metrics["accuracy"].mean == 1


def test_accuracy_is_evaluated_printed_and_saved(tmp_path: Path) -> None:
    result = answered(make_agent("direct"), *ANSWERS)
    assert [row.em for row in result.scores] == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert result.summary().metrics["accuracy"].mean == 0.4
    console = Console(record=True, width=100, quiet=True)
    with console.capture() as printed:
        print_summary(console, result.summary(), "direct")
    assert "F1" not in printed.get()
    result.save(tmp_path / "saved", {})
    assert load_scores(tmp_path / "saved") == result.scores
    assert json.loads((tmp_path / "saved" / "summary.json").read_text())["accuracy"]["mean"] == 0.4


def test_trees_and_rewards_are_graded_by_accuracy() -> None:
    agent, question = make_agent("direct"), QUESTIONS[0]
    letters = cycle("ABCD")
    script, limits = (
        ScriptedEngine(lambda _: f"<answer>{next(letters)}</answer>"),
        EpisodeConfig(k=1, sampling=Sampling(temperature=1)),
    )
    search = MCTSConfig(limits, Sampling(), simulations=8, width=8)
    trees: list[Tree | None] = [
        outcome.value
        for outcome in Driver(script).run(
            [
                lambda: branching(agent, question, limits, 0, stems=8, branches=0),
                lambda: mcts_search(agent, question, search, 0),
            ]
        )
    ]
    for tree in trees:
        assert tree is not None
        ends = {node.step.action.content: node.reward for node in tree.nodes if node.step is not None}
        assert ends == {"A": 0, "B": 0, "C": 1, "D": 0}


def test_training_filters_judges_and_environments_use_the_same_score() -> None:
    played = [each for each in answered(make_agent("direct"), *ANSWERS).trajectories if each is not None]
    right = [True] * 4 + [False] * 6
    settings = RewardConfig(f1_weight=1, format_bonus=0)
    assert [outcome_reward(each, settings) for each in played] == [float(each) for each in right]
    kept = filter_trajectories(played, None, rules=SampleRules(min_f1=0.5), threshold=0).kept
    assert [each.question.id for each in kept] == ["1", "2", "3", "4"]
    verdicts = [judge(each)[-1] for each in played]
    assert [verdict is not None and verdict.fault is None for verdict in verdicts] == right
    scores = [Transition(each, ()).answer_score for each in played]
    assert [found is not None and found.em == 1 for found in scores] == right


def test_the_answer_judge_reads_options_lists_and_numbers() -> None:
    result = answered(make_agent("direct"), *ANSWERS)
    asked: list[str] = []

    def verdict(request: Generate) -> str:
        asked.append(request.context[0].text)
        return json.dumps({"reason": "So.", "correct": "<answer>\nLisinopril or Losartan" in asked[-1]})

    judged, agreement = judge_answers(result, QUESTIONS, ScriptedEngine(verdict, max_batch=1))
    assert "Which bone is the longest of the human body?\nA. Tibia\nB. Humerus\nC. Fibula\nD. Femur\n" in asked[7]
    assert "<accepted_answers>\nD. Femur\n</accepted_answers>" in asked[7]
    assert "The question has options." in asked[7]
    assert (agreement.judge_only, agreement.em_only) == (1, 4)
    assert judged.summary().metrics["judged"].mean == 0.1
    listed = answer_prompt(Question("l", "Which?", ("Rome; Oslo",), items=(("Rome", "Roma"), ("Oslo",))), "Rome")
    assert "<accepted_answers>\nRome / Roma\nOslo\n</accepted_answers>" in listed
    assert "names all of them" in listed
    number = answer_prompt(Question("n", "How far?", ("3 km",), answer_kind=AnswerKind.NUMBER), "3000 m")
    assert "the same amount" in number
    text = answer_prompt(Question("t", "Who?", ("Ada",)), "Ada")
    assert not re.search("options|list|amount", text)
    step = score_prompt(
        Trajectory(QUESTIONS[7], "direct", stop=StopReason.ANSWERED), Action(ActionKind.ANSWER, "D"), 999
    )
    assert "\nD. Femur\n" in step


def test_the_command_line_evaluates_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", "--data", str(EXAMPLE), "--engine", "oracle", "--agent", "rag", "--limit", "4"]) == 0
    assert re.search(r"accuracy +1\.000 ", capsys.readouterr().out)
