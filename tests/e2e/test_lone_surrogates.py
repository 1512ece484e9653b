"""Lone surrogates, which no file can hold, are replaced at every door: files, servers, programs, the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.io.records import read_records
from stepladder.core.trace import Passage, Trajectory
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.index.build import build_index, open_index
from tests.support.openai_server import (
    Server,
    fails,
    says,
    server as server,  # a fixture
)
from tests.support.search_servers import running
from tests.support.shell import (
    Shell,
    shell as shell,  # a fixture
)

QUESTION = '{"id": "q\\ud800", "question": "Who designed Orm \\udfffTower?", "golden_answers": ["Ada \\ud800"]}\n'


class Broken(Retriever):
    """Finds a passage whose text holds half a character."""

    def search(self, queries: Any, k: int) -> list[tuple[Passage, ...]]:
        found = Passage("p", "Orm Tower", "It was designed by Ada Tarn.", 1.0)
        object.__setattr__(found, "text", found.text + "\ud800")  # past the record's own door
        return [(found,) for _ in queries]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text(QUESTION)
    return path


def test_a_search_server_cannot_make_an_evaluation_unwritable(
    tmp_path: Path, questions: Path, shell: Shell, server: Server
) -> None:
    server.answer = lambda body, n: says("<answer>Ada Tarn</answer>")
    engine = ("--engine", "openai", "--model", "m", "--base-url", server.url, "--agent", "rag")
    with running(Broken()) as search:
        result = shell.json("eval", *engine, "--data", questions, "--index", search.url, "--out", tmp_path / "eval")
    assert result["failures"] == {}
    (episode,) = read_records(next((tmp_path / "eval").glob("traj*")), Trajectory)
    assert "\ufffd" in episode.question.text
    assert [passage.text for passage in episode.found] == ["It was designed by Ada Tarn.\ufffd"]


def test_a_model_server_cannot_either(tmp_path: Path, questions: Path, shell: Shell, server: Server) -> None:
    engine = ("--engine", "openai", "--model", "m", "--base-url", server.url, "--agent", "direct")
    server.answer = lambda body, n: says("<answer>Ada \ud800</answer>")
    shell("eval", *engine, "--data", questions, "--out", tmp_path / "eval")
    (episode,) = read_records(next((tmp_path / "eval").glob("traj*")), Trajectory)
    assert episode.answer == "Ada \ufffd"
    server.answer = lambda body, n: fails(400, "no \ud800 here")
    shell("eval", *engine, "--data", questions, "--out", tmp_path / "failed", code=2)
    failures = json.loads((tmp_path / "failed" / "summary.json").read_text())["failures"]
    assert [reason.endswith("no \ufffd here") for reason in failures] == [True]


def test_a_program_and_the_command_line_cannot_either(tmp_path: Path, shell: Shell, server: Server) -> None:
    index = tmp_path / "index"
    build_index([Passage("p\ud800", "Orm", "a tower \udcff")], index)
    (found,) = open_index(index).search(["tower \ud800"], 1)
    assert (found[0].id, found[0].text) == ("p\ufffd", "a tower \ufffd")
    assert "a tower \ufffd" in shell("index", "search", index, "tower \udcff")
    server.answer = lambda body, n: says("<answer>Ada Tarn</answer>")
    engine = ("--engine", "openai", "--model", "m", "--base-url", server.url, "--agent", "rag")
    asked = shell.json("ask", "Who built the tower \udcff?", "--index", index, *engine)
    assert asked["question"]["text"] == "Who built the tower \ufffd?"


def test_settings_cannot_either(tmp_path: Path, shell: Shell) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text('agent: "prorag\\ud800"\n')
    assert "unknown agent 'prorag\ufffd'" in shell("run", recipe, "--out", tmp_path / "run", code=2)
    assert "unknown agent 'x\ufffd'" in shell("eval", "--agent", "x\udcff", code=2)
