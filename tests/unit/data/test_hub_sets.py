"""`stepladder data get`: complete or nothing, checked, and continued after a download that breaks off."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepladder import cli
from stepladder.data import PUBLISHED, load_dataset
from stepladder.data.hub_sets import HUB_SETS
from tests.support.hub_server import Hub, hub_server

ROW = {"question": "Capital?", "options": {"A": "Paris", "B": "Rome"}, "answer": "Rome", "answer_idx": "B"}
ROWS = {"train": [ROW] * 500, "test": [{**ROW, "question": "Which?"}]}
TRAIN, TEST = (f"/datasets/GBaker/MedQA-USMLE-4-options/resolve/main/phrases_no_exclude_{each}.jsonl" for each in ROWS)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPLADDER_DATA", raising=False)
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for path, rows in zip((TRAIN, TEST), ROWS.values()):
            server.files[path] = "".join(json.dumps(row) + "\n" for row in rows).encode()
        yield server


def test_a_set_is_downloaded_checked_and_used_by_its_name(hub: Hub, capsys: Any) -> None:
    assert cli.main(["data", "get", "medqa"]) == 0
    assert "data/medqa: complete; use it with --data medqa" in capsys.readouterr().out
    assert sorted(path.name for path in Path("data").iterdir()) == ["medqa"]
    assert Path("data/medqa/phrases_no_exclude_train.jsonl").read_bytes() == hub.files[TRAIN]
    source = json.loads(Path("data/medqa/source.json").read_text())
    assert source["commit"] == "c" * 40
    assert source["files"]["phrases_no_exclude_test.jsonl"] == {"size": len(hub.files[TEST]), "etag": hub.etag(TEST)}
    data = load_dataset("medqa")
    assert (len(data.split("train")), data.split("test")[0].written_answer) == (500, "B")
    assert cli.main(["data", "get", "medqa"]) == 0
    assert "already there" in capsys.readouterr().out
    assert len(hub.downloads) == 2


def test_a_download_that_breaks_off_is_an_error_and_the_same_command_continues_it(hub: Hub, capsys: Any) -> None:
    hub.breaks_after = 20_000
    assert cli.main(["data", "get", "medqa"]) == 2
    message = capsys.readouterr().err
    assert "the download broke off after 20.0 KB of 51.0 KB" in " ".join(message.split())
    assert "run the same command again to continue" in message
    assert not Path("data/medqa").exists()
    (kept,) = Path("data").iterdir()
    arrived = (kept / "unfinished" / "phrases_no_exclude_train.jsonl").stat().st_size
    assert arrived == 20_000
    hub.breaks_after, before = None, len(hub.downloads)
    assert cli.main(["data", "get", "medqa"]) == 0
    assert hub.downloads[before:] == [(TRAIN, arrived), (TEST, 0)]
    assert Path("data/medqa/phrases_no_exclude_train.jsonl").read_bytes() == hub.files[TRAIN]
    assert sorted(path.name for path in Path("data").iterdir()) == ["medqa"]


def test_a_file_with_another_hash_is_not_kept(hub: Hub, capsys: Any) -> None:
    hub.claimed = "0" * 64
    assert cli.main(["data", "get", "medqa", "--to", "mine"]) == 2
    assert "is damaged: its hash is not 000" in capsys.readouterr().err
    assert not Path("mine").exists()
    hub.claimed = ""
    assert cli.main(["data", "get", "medqa", "--to", "mine"]) == 0


def test_a_server_that_sends_another_page_is_an_error_after_one_more_attempt(hub: Hub, capsys: Any) -> None:
    hub.page = b"<html>Log in</html>"
    assert cli.main(["data", "get", "medqa"]) == 2
    assert "the download broke off after 19 B" in " ".join(capsys.readouterr().err.split())
    assert len(hub.downloads) == 2
    hub.page = b"<html>" * 100_000
    assert cli.main(["data", "get", "medqa"]) == 2
    assert "is damaged" in capsys.readouterr().err
    hub.page = b""
    assert cli.main(["data", "get", "medqa"]) == 0


def test_a_file_that_changed_meanwhile_is_downloaded_anew(hub: Hub) -> None:
    hub.claimed = "1" * 64
    assert cli.main(["data", "get", "medqa"]) == 2
    hub.claimed, hub.files[TRAIN] = "", hub.files[TRAIN][:-1] + b" \n"
    assert cli.main(["data", "get", "medqa"]) == 0
    assert Path("data/medqa/phrases_no_exclude_train.jsonl").read_bytes() == hub.files[TRAIN]


def test_without_a_network_it_says_what_to_download_and_where_to_put_it(
    hub: Hub, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert cli.main(["data", "get", "bamboogle"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    address = "http://127.0.0.1:9/datasets/RUC-NLPIR/FlashRAG_datasets/resolve/main/bamboogle/test.jsonl"
    assert f"download {address} on a machine with a network, and put the files into data/bamboogle" in message
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert cli.main(["data", "get", "bamboogle"]) == 2  # the server has no such file
    assert "answered 404 for a file of RUC-NLPIR/FlashRAG_datasets" in capsys.readouterr().err
    assert not Path("data").exists()


def test_a_folder_of_the_user_is_not_touched(hub: Hub, capsys: Any) -> None:
    Path("data/medqa").mkdir(parents=True)
    Path("data/medqa/phrases_no_exclude_test.jsonl").write_text("mine")
    assert cli.main(["data", "get", "medqa"]) == 2
    assert "exists and has no phrases_no_exclude_train.jsonl" in capsys.readouterr().err
    assert Path("data/medqa/phrases_no_exclude_test.jsonl").read_text() == "mine"
    assert not hub.downloads
    assert cli.main(["data", "get", "medqua"]) == 2
    assert "medqa" in capsys.readouterr().err


def test_the_list_shows_every_set_and_every_set_can_be_downloaded(hub: Hub, capsys: Any) -> None:
    assert set(HUB_SETS) == set(PUBLISHED)
    assert cli.main(["data", "list"]) == 0
    assert "stepladder data get medqa" in capsys.readouterr().out
