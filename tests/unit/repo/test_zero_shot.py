"""The zero-shot table: one row per agent and format, and rows that exist are not computed again."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import zero_shot
from stepladder.agents import Agent, Format
from stepladder.driver import Driver
from stepladder.evaluation.evaluator import Evaluation

OPTIONS = ["--model", "tiny", "--data", "atlas-small", "--limit", "2", "--max-tokens", "4", "--device", "cpu"]


def test_the_table_is_printed_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*OPTIONS, "--agents", "direct,search-r1", "--out", str(tmp_path / "table")]
    zero_shot.main([*options, "--formats", "strict,lenient"])
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[1:4:2] for line in table[2:6]] == [
        ["direct", "strict"],
        ["direct", "lenient"],
        ["search-r1", "strict"],
        ["search-r1", "lenient"],
    ]
    assert max(map(len, table)) <= 120
    assert len({len(line) for line in table[:6]}) == 1  # aligned
    rows = json.loads((tmp_path / "table" / "table.json").read_text())
    assert [row["no_answer"] for row in rows] == [1, 0, 1, 0]
    assert [row["format_errors"] for row in rows] == [1, 0, 1, 3]
    assert [row["forced"] for row in rows] == [0, 0, 0, 1]
    assert rows[0]["f1_95"] == [0, 0]

    computed: list[str] = []
    evaluate = zero_shot.evaluate

    def counted(driver: Driver, agent: Agent, *rest: Any) -> Evaluation:
        computed.append(agent.name)
        return evaluate(driver, agent, *rest)

    monkeypatch.setattr(zero_shot, "evaluate", counted)
    zero_shot.main([*options, "--formats", "lenient"])
    again = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert again[2:4] == [line.split() for line in table[3:6:2]]
    assert computed == []

    hint = tmp_path / "hint.txt"
    hint.write_text("Use the tags.")
    more = ["--formats", "lenient", "--agents", "search-r1", "--hint", str(hint), "--split", "train"]
    zero_shot.main([*options, *more])
    assert computed == ["search-r1"]
    assert "Use the tags." in (tmp_path / "table" / "search-r1-lenient" / "trajectories.jsonl").read_text()


def test_rows_are_keyed_on_everything_that_determines_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("{question}")

    def key(*more: str) -> str:
        options = zero_shot.parsed([*OPTIONS, "--agents", "cot", *more])
        common = zero_shot.common_key(zero_shot.shared_settings(options), options)
        return json.dumps(common | zero_shot.row_key(zero_shot.agent_of("cot", Format.LENIENT, options)))

    own = key()
    assert own == key("--batch-size", "7", "--device", "auto")  # they only round differently
    changes = [
        *(["--no-prime"], ["--prompt", str(prompt)], ["--topk", "5"], ["--max-tokens", "8"], ["--max-steps", "3"]),
        *(["--limit", "3"], ["--split", "train"], ["--data", "atlas-medium"], ["--model", "nano"], ["--dtype", "bf16"]),
        ["--base-url", "http://localhost:1/v1"],
    ]
    keys = [own, *(key(*change) for change in changes)]
    assert len(set(keys)) == len(keys)
    prompt.write_text("Answer: {question}")
    assert key("--prompt", str(prompt)) not in keys
    monkeypatch.setattr(zero_shot.AGENTS.get("cot"), "prompt", "another {question}")
    assert key() not in keys


def test_a_prompt_is_for_one_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        zero_shot.parsed([*OPTIONS, "--prompt", str(tmp_path / "prompt.txt")])
    assert "add --agents NAME" in capsys.readouterr().err
