"""A model as judge, as a user names it: at a server, at OpenAI, or in a folder of this machine."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Generate, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.scripted import ScriptedEngine
from stepladder.engines.spend.response_cache import CachedEngine
from stepladder.judges.llm.config import LLMJudgeConfig
from stepladder.models import builtin_folder

ASKED = Generate((Segment(Author.PROMPT, "Which is better?"),), sampling=Sampling(max_tokens=4))


def settings(**given: Any) -> LLMJudgeConfig:
    return LLMJudgeConfig.read(given)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder that is called like a model of OpenAI's, in the folder where the command is typed."""
    (tmp_path / "gpt-4o-mini").mkdir()
    (tmp_path / "gpt-4o-mini" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "gpt-4o-mini"


def test_a_model_folder_is_played_here_and_found_from_elsewhere(folder: Path) -> None:
    judge = settings(model="gpt-4o-mini")
    assert judge.is_local
    assert judge.model == str(folder)


def test_at_a_server_the_name_is_what_the_server_calls_it(folder: Path) -> None:
    judge = settings(model="gpt-4o-mini", url="http://localhost:8000/v1")
    assert not judge.is_local
    assert judge.model == "gpt-4o-mini"


def test_any_other_folder_is_no_model(folder: Path) -> None:
    (folder / "config.json").unlink()
    judge = settings(model="gpt-4o-mini")
    assert (judge.is_local, judge.model) == (False, "gpt-4o-mini")


def test_a_model_of_this_machine_costs_nothing(folder: Path) -> None:
    price = settings(model=str(folder)).price()
    assert price is not None
    assert price.input == price.output == 0
    with pytest.raises(StepladderError, match="costs nothing: remove the budget"):
        settings(model=str(folder), budget="2Mtok").check()


@pytest.mark.parametrize("model", ["./none", "/no/where", "~nobody-at-all/model"])
def test_a_folder_that_is_not_there_is_not_asked_for_at_openai(model: str) -> None:
    with pytest.raises(StepladderError, match="is not a model folder"):
        settings(model=model).check()
    settings(model=model, url="http://localhost:8000/v1").check()  # what a server calls its models is its affair


def test_a_budget_in_dollars_needs_a_price_and_a_judge_at_openai_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StepladderError, match="'mine' has no price"):
        settings(model="mine", budget="1usd").check()
    (tmp_path / "prices.yaml").write_text("models:\n  mine: {input: 1, output: 2}\n")
    monkeypatch.chdir(tmp_path)
    priced = settings(model="mine", budget="1usd", prices="prices.yaml")
    monkeypatch.chdir("/")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(StepladderError, match=r"OPENAI_API_KEY, .* --judge-url URL .eval: --answer-judge-url;"):
        priced.check()
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    priced.check()
    assert priced.prices == tmp_path / "prices.yaml", "a run may go on from elsewhere"


@pytest.mark.parametrize("url", [None, "http://localhost:8000/v1"])
def test_replies_of_a_server_are_known_by_model_and_server(url: str | None, tmp_path: Path) -> None:
    CachedEngine(ScriptedEngine(lambda _: "A"), tmp_path / "replies.jsonl", f"m at {url}").generate([ASKED])
    assert ASKED in settings(model="m", url=url).cached_responses(tmp_path)
    assert ASKED not in settings(model="m", url="http://localhost:9/v1").cached_responses(tmp_path)


def test_replies_of_a_model_of_this_machine_are_known_too(tmp_path: Path) -> None:
    judge = settings(model=str(builtin_folder("nano")))
    with closing(judge.open_engine(tmp_path, device="cpu")) as engine:
        engine.generate([ASKED])
        assert (engine.spend().calls, engine.spend().usd) == (1, 0.0)
    assert ASKED in judge.cached_responses(tmp_path)
    with closing(judge.open_engine(tmp_path, device="cpu")) as engine:
        engine.generate([ASKED])
        assert engine.spend().cached == 1
