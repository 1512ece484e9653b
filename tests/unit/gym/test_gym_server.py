"""A model behind a server plays the Gymnasium environment: with the settings of other served policies."""

from pathlib import Path
from typing import Any

import gymnasium
import pytest

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.data import load_dataset
from stepladder.engines.spend.budget import BudgetExhausted
from stepladder.engines.spend.ledger import Ledger
from tests.support import openai_server
from tests.support.openai_server import Server, fails, says
from tests.support.served_policies import Player

server, second_server = openai_server.server, openai_server.second_server
ID = "stepladder.gym:stepladder/Search-v0"
ATLAS = {"agent": "search-r1", "data": "atlas-small", "split": "dev", "k": 1}


@pytest.fixture(scope="module")
def player() -> Player:
    return Player(load_dataset("atlas-small", seed=0).split("dev"))


def settings(*servers: Server, **more: Any) -> dict[str, Any]:
    urls = [each.url for each in servers]
    return {**ATLAS, "server": {"model": "scripted", "base_url": urls, "timeout": 10, "retries": 1, **more}}


def test_a_model_behind_a_server_plays_an_episode(server: Server, player: Player) -> None:
    server.answer = player.reply
    env = gymnasium.make(ID, **settings(server), temperature=0.5, max_tokens=99)
    play: Any = env.unwrapped
    env.reset(seed=1)
    assert play.write() == play.write(), "writing does not act"
    ended, kinds = False, []
    while not ended:
        _, _, terminated, truncated, info = env.step(play.write())
        kinds.append(info["kind"])
        ended = terminated or truncated
    assert (kinds, info["stop"]) == (["query", "answer"], "answered")
    first, last = server.requests[0], server.requests[-1]
    assert (first["temperature"], first["max_tokens"], first["model"]) == (0.5, 99, "scripted")
    assert [message["role"] for message in last["messages"]] == ["user", "assistant", "user"], "turns, not one text"
    with pytest.raises(StepladderError, match=r"no episode is running: call reset\(\) before write"):
        play.write()
    env.close()


def test_the_episodes_of_a_vector_are_written_at_once_and_a_dead_server_is_replaced(
    server: Server, second_server: Server, player: Player
) -> None:
    second_server.answer = player.reply

    def answer(body: dict[str, Any], number: int) -> Any:
        if number == 2:
            server.die()
        return player.reply(body)

    server.answer = answer
    envs: Any = gymnasium.make_vec(
        ID, 6, vectorization_mode="vector_entry_point", **settings(server, second_server)
    ).unwrapped
    envs.reset(seed=3)
    _, _, terminated, _, _ = envs.step(envs.write())
    assert not terminated.any()
    written = envs.write()
    assert all("<answer>" in text for text in written)
    _, _, terminated, _, _ = envs.step(written)
    assert terminated.all()
    assert server.dead
    assert len(server.answered) + len(second_server.answered) == 12
    calls = len(second_server.requests)
    assert envs.write() == ("",) * 6, "the next step starts new episodes, whatever the action"
    assert len(second_server.requests) == calls
    envs.close()


def test_a_full_context_window_of_the_server_truncates_the_episode(server: Server) -> None:
    server.answer = lambda body, number: fails(400, "This model's maximum context length is 99 tokens")  # type: ignore[method-assign]
    env = gymnasium.make(ID, **settings(server))
    env.reset(seed=1)
    play: Any = env.unwrapped
    assert play.write() == ""
    _, _, terminated, truncated, info = env.step("")
    assert (terminated, truncated, info["stop"]) == (False, True, "context_limit")
    env.close()


def test_a_server_is_played_leniently_unless_said_otherwise(server: Server) -> None:
    server.answer = lambda body, n: says("I do not know where to begin.")
    for format_, stop in (("auto", None), ("strict", "malformed")):
        env = gymnasium.make(ID, **settings(server), format=format_)
        env.reset(seed=1)
        play: Any = env.unwrapped
        assert env.step(play.write())[-1]["stop"] == stop
        env.close()
    server.answer = lambda body, n: says("<think>It is so.</think>\n<answer>Rome</answer>")
    env = gymnasium.make(ID, **settings(server, grammar="llama.cpp"), format="constrained")
    env.reset(seed=1)
    play = env.unwrapped
    assert env.step(play.write())[-1]["stop"] == "answered"
    assert "root ::=" in server.requests[-1]["grammar"]
    env.close()


def test_a_spending_limit_holds_over_environments(server: Server, player: Player, tmp_path: Path) -> None:
    server.answer = player.reply
    budget, episodes = 6_000, 0

    def play(limit: int) -> None:
        nonlocal episodes
        env = gymnasium.make(ID, **settings(server, budget=f"{limit}tok"), spend_folder=tmp_path / "paid")
        try:
            for seed in range(40):
                env.reset(seed=seed)
                ended = False
                while not ended:
                    unwrapped: Any = env.unwrapped
                    _, _, terminated, truncated, _ = env.step(unwrapped.write())
                    ended = terminated or truncated
                episodes += 1
        finally:
            env.close()

    with pytest.raises(BudgetExhausted, match="the budget of 6000tok is spent"):
        play(budget)
    first, calls = episodes, len(server.requests)
    assert first > 2
    with pytest.raises(BudgetExhausted, match="is spent"):
        play(budget)
    assert len(server.requests) == calls, "what is paid for is not paid again"
    assert episodes == 2 * first
    ledger = Ledger(tmp_path / "paid" / "policy-spend.jsonl")
    assert sum(usage.read + usage.written for usage in ledger.totals.values()) <= budget
    ledger.close()


def test_what_goes_wrong_is_told_and_the_episode_goes_on(server: Server, player: Player) -> None:
    server.answer = lambda body, n: fails(400, "no, thanks")
    env = gymnasium.make(ID, **settings(server))
    env.reset(seed=1)
    play: Any = env.unwrapped
    with pytest.raises(StepladderError, match=r"returned status 400 .*: no, thanks"):
        play.write()
    server.answer = lambda body, n: fails(401, "who are you?")
    with pytest.raises(BackendDown, match="rejected the key"):
        play.write()
    server.answer = player.reply
    assert env.step(play.write())[-1]["kind"] == "query"
    env.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"server": {"base_url": "http://127.0.0.1:9/v1"}}, "the server needs the name of its model"),
        ({"format": "constrained"}, "format='constrained' needs a server"),
        ({"temperature": 0.5}, "temperature has no effect without a server"),
        ({"server": {"model": "m", "budget": "5 apples"}}, "budget"),
        ({"server": {"model": "m", "budget": "2Mtok"}}, "server.budget and spend_folder.* must be given together"),
        ({"server": {"model": "m", "base_url": "here"}}, "the server's URL is 'here'"),
        ({"server": {"model": "m", "budget": "2usd", "base_url": "http://h/v1"}, "spend_folder": "x"}, "no price"),
        ({"server": {"model": "m", "urls": 1}}, "urls"),
    ],
)
def test_a_wrong_server_is_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(StepladderError, match=said):
        gymnasium.make(ID, **ATLAS, **arguments)
    env = gymnasium.make(ID, **ATLAS)
    env.reset(seed=0)
    play: Any = env.unwrapped
    with pytest.raises(StepladderError, match="make the environment with server="):
        play.write()
    env.close()
