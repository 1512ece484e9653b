"""The zero-shot table: one row per agent and format, and rows that exist are not computed again."""

import json
from pathlib import Path

import pytest

from benchmarks import zero_shot


@pytest.mark.slow
def test_the_table_is_printed_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--model", "tiny", "--data", "atlas-small", "--limit", "2", "--max-tokens", "4", "--device", "cpu"]
    options += ["--agents", "direct,search-r1", "--out", str(tmp_path / "table")]
    zero_shot.main([*options, "--formats", "strict,lenient"])
    table = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in table[2:]] == [
        ["| direct", "strict"],
        ["| direct", "lenient"],
        ["| search-r1", "strict"],
        ["| search-r1", "lenient"],
    ]
    rows = json.loads((tmp_path / "table" / "table.json").read_text())
    assert [row["no_answer"] for row in rows] == [1, 0, 1, 0]
    assert [row["format_errors"] for row in rows] == [1, 0, 1, 3]
    assert [row["forced"] for row in rows] == [0, 0, 0, 1]

    monkeypatch.setattr(zero_shot, "evaluate", None)  # nothing is evaluated again
    zero_shot.main([*options, "--formats", "lenient"])
    assert capsys.readouterr().out.splitlines()[2:] == table[3::2]
