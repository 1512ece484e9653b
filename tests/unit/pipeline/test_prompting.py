"""The settings of prompting: defaults by agent, recipes, command line, Python, and what they leave behind."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import stepladder as sl
from stepladder.agents import AGENTS, Format, Play
from stepladder.cli.agent_options import AgentOptions, AgentSetup, SamplingOptions
from stepladder.core.errors import StepladderError
from stepladder.evaluation.evaluator import load_scores
from stepladder.pipeline.fingerprint import all_ingredients
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import PromptingConfig, RunContext, SharedConfig
from tests.support.shell import Shell, shell

__all__ = ["shell"]

TINY = ["--model", "tiny", "--data", "atlas-small", "--split", "dev", "--limit", "2", "--max-tokens", "4"]


PRIMED = replace(Play.of("lenient"), prime=True)


def recipe(**shared: object) -> Recipe:
    return Recipe.read({"name": "r", **shared, "stages": {"eval": {"kind": "eval", "policy": "base"}}}, "r")


@pytest.mark.parametrize("agent", sorted(AGENTS))
def test_brief_agents_are_strict_and_others_are_prompted(agent: str) -> None:
    play = PromptingConfig().play(agent)
    assert play == (Play() if agent.endswith("-brief") else PRIMED)
    assert PromptingConfig().play(agent, prompted=True) == Play.of("lenient")  # behind a server
    assert PromptingConfig().play(agent, prompted=False) == Play()  # the oracle
    assert PromptingConfig(format="strict").play(agent, prompted=True) == Play()
    assert PromptingConfig(format="constrained").play(agent, remote=True).prime is not agent.endswith("-brief")
    assert RunContext(SharedConfig(agent=agent)).agent.play == play


def test_an_agent_file_stays_strict_unless_it_is_told_otherwise() -> None:
    assert PromptingConfig().play("own.py") == PromptingConfig().play("own.py", prompted=True) == Play()
    assert PromptingConfig(format="lenient").play("own.py").format is Format.LENIENT


def test_single_settings_can_be_changed() -> None:
    given = {"format": "lenient", "max_format_errors": 0, "force_answer": False, "max_searches": 4, "prime": True}
    assert PromptingConfig.read(given).play("prorag") == Play(Format.LENIENT, 0, False, 4, True)
    with pytest.raises(StepladderError, match=r"max_searches: expected greater than or equal to 1, found 0"):
        PromptingConfig.read({"max_searches": 0})
    with pytest.raises(StepladderError, match="lenient"):
        PromptingConfig.read({"format": "lenent"})


def test_recipes_without_prompting_stay_as_they_were() -> None:
    plain = recipe(agent="prorag-brief").plain()
    assert "prompting" not in plain
    (ingredients,) = all_ingredients(recipe(agent="prorag-brief")).values()
    assert not [name for name in ingredients if name.startswith("prompting")]


def test_what_changes_the_text_or_how_it_is_read_makes_a_stage_stale(tmp_path: Path) -> None:
    hint = tmp_path / "hint.txt"
    hint.write_text("Once more.")

    def ingredients(**prompting: object) -> dict[str, object]:
        (found,) = all_ingredients(recipe(agent="prorag-brief", prompting=prompting)).values()
        return {name: value for name, value in found.items() if name.startswith("prompting")}

    assert ingredients(format="lenient")["prompting.format"] == "lenient"
    before = ingredients(format="lenient", hint=str(hint))
    hint.write_text("Again.")
    assert ingredients(format="lenient", hint=str(hint)) != before
    assert ingredients(chat_options={"a": False}) == {"prompting.chat_options": {"a": False}}
    hint.unlink()
    with pytest.raises(StepladderError, match=r"prompting.hint: the file .* does not exist"):
        ingredients(hint=str(hint))


@pytest.mark.parametrize(
    ("agent", "prompting"),
    [("prorag-brief", {"format": "strict"}), ("prorag", {"prime": True}), ("prorag", {"format": "strict"})],
)
@pytest.mark.parametrize("plays", [{"kind": "eval", "policy": "server"}, {"kind": "rft", "sampled_by": "server"}])
def test_what_changes_how_a_server_plays_makes_its_stages_stale(
    agent: str, prompting: dict[str, object], plays: dict[str, str]
) -> None:
    """A model behind a server is prompted otherwise than one in this process, with the same settings."""
    more = {"reencode": True, "policy": "base", "threshold": None} if plays["kind"] == "rft" else {}

    def ingredients(model: str = "m", **prompting: object) -> dict[str, object]:
        shared = {"agent": agent, "server": {"model": model}, "prompting": prompting}
        (found,) = all_ingredients(Recipe.read({"name": "r", **shared, "stages": {"s": {**plays, **more}}})).values()
        return found

    before = ingredients()
    assert ingredients(**prompting) != before
    assert ingredients("other") != before
    assert ingredients(format="auto") == before


def setup(**typed: object) -> AgentSetup:
    port = {"port": 1} if typed.pop("serving", False) else {}
    return AgentSetup.from_options(None, AgentOptions(**typed), SamplingOptions(), {}, **port)  # type: ignore[arg-type]


def test_the_command_line_reaches_the_agent() -> None:
    made = setup(model="tiny", agent="prorag-brief", format="lenient", max_format_errors=1, max_searches=3)
    assert made.context.agent.play == Play(Format.LENIENT, 1, True, 3, True)
    assert setup(model="tiny", agent="prorag-brief").context.agent.play == Play()
    assert setup(model="tiny", agent="prorag-brief", serving=True).context.agent.play == PRIMED
    assert setup(model="m", base_url="http://localhost:1/v1").context.agent.play == Play.of("lenient")
    assert setup(data="atlas-small").context.agent.play == Play()  # the oracle
    options = setup(model="tiny", chat_options='{"enable_thinking": false}').context.settings.prompting.chat_options
    assert options == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("--format lenient", "--format has no effect with the oracle"),
        ("--model tiny --chat-options thinking", "--chat-options: expected a JSON object"),
        ("--model tiny --prompt none.txt", "cannot be read: No such file"),
        ("--model tiny --format lenent", "lenient"),
    ],
)
def test_wrong_options_are_one_line(typed: str, problem: str, shell: Shell) -> None:
    told = shell("eval", "--data", "atlas-small", *typed.split(), code=2)
    assert problem in told


def test_tables_count_slips_and_forced_answers(shell: Shell, tmp_path: Path) -> None:
    out = shell("eval", *TINY, "--agent", "search-r1", "--out", tmp_path / "lenient")
    for label in ("format errors", "forced answers"):
        assert label in out
    summary = json.loads((tmp_path / "lenient" / "summary.json").read_text())
    assert summary["stops"] == {"forced": 2}
    assert (summary["format_errors"]["mean"], summary["forced"]["mean"]) == (3.0, 1.0)
    assert {(row.malformed_steps, row.forced) for row in load_scores(tmp_path / "lenient")} == {(3, 1)}

    out = shell("eval", *TINY, "--agent", "search-r1", "--format", "strict", "--out", tmp_path / "strict")
    assert "forced" not in out
    strict = json.loads((tmp_path / "strict" / "summary.json").read_text())
    assert not {"format_errors", "repaired", "forced"} & set(strict)
    rows = (tmp_path / "strict" / "scores.jsonl").read_text()
    assert "forced" not in rows
    assert "repaired" not in rows


def test_a_policy_in_python_takes_the_same_settings() -> None:
    policy = sl.load_policy("tiny", agent="prorag-brief", format="lenient", max_searches=2, data="atlas-small")
    with policy:
        assert policy.context.agent.play == Play(Format.LENIENT, 2, True, 2, True)
    with pytest.raises(TypeError, match="unexpected setting 'formt'"):
        sl.load_policy("tiny", formt="lenient")
