"""The pairs of a run in the studio: a list, one pair in detail, marks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.trace import Pair
from stepladder.pipeline.recipe import Recipe
from stepladder.preferences.marks import marks_file, pair_id, read_marks
from stepladder.serve.studio.pairs.pair_index import PairIndexes
from tests.support.http_servers import RunningServer
from tests.support.pair_runs import HOSTILE, PAIRS, make_pair_run
from tests.support.studios import running_studio

DPO = {"kind": "dpo", "exclude_marked": True}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_pair_run(tmp_path / "runs" / "study" / "seed0", dpo=DPO)
    return tmp_path / "runs"


@pytest.fixture
def studio(runs: Path) -> Iterator[RunningServer]:
    with running_studio(runs) as server:
        yield server


RUN = {"run": "study/seed0", "stage": "pairs"}


def listed(studio: RunningServer, **wanted: str) -> dict[str, Any]:
    response = studio.client.get("/pairs/list.json", params={**RUN, **wanted})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def change(studio: RunningServer, what: str, *pairs: Pair, **more: object) -> Any:
    return studio.client.post(f"/pairs/{what}", json={**RUN, "ids": [pair_id(pair) for pair in pairs], **more})


def test_all_pairs_are_listed_with_what_they_can_be_filtered_by(studio: RunningServer) -> None:
    found = listed(studio)
    assert (found["total"], found["matching"], found["marked"]) == (12, 12, 0)
    assert {row["id"] for row in found["rows"]} == {pair_id(pair) for pair in PAIRS}
    assert found["facets"]["kind"] == {"query": 6, "answer": 6}
    assert found["facets"]["judge"] == {"spre": 6, "llm": 6}
    assert found["facets"]["gold"] == {"agrees": 8, "disagrees": 4}
    assert found["facets"]["split"] == {"train": 10, "dev": 2}
    assert found["rows"][0]["margin"] == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"kind": "answer"}, 6),
        ({"judge": "spre", "gold": "disagrees"}, 2),
        ({"split": "dev"}, 2),
        ({"text": "WORSE ONE 11"}, 1),
        ({"text": "q03"}, 1),
        ({"marks": "marked"}, 0),
        ({"marks": "unmarked"}, 12),
        ({"kind": "no such kind"}, 0),
    ],
)
def test_filters(studio: RunningServer, wanted: dict[str, str], count: int) -> None:
    found = listed(studio, **wanted)
    assert (found["matching"], len(found["rows"]), found["total"]) == (count, count, 12)


def test_the_page_leads_back_to_its_run_and_to_all_runs(studio: RunningServer) -> None:
    page = studio.client.get("/runs/study/seed0/pairs", headers={"accept": "text/html"}).text
    assert '<a href="/">Runs</a> / <a href="/runs/study/seed0">study/seed0</a>' in page
    assert '<a href="/" aria-current="page">Runs</a>' in page


def test_one_pair_shows_its_state_both_steps_and_the_judge(studio: RunningServer) -> None:
    found = studio.client.get("/pairs/one.json", params={**RUN, "id": pair_id(PAIRS[1])}).json()
    assert [segment["author"] for segment in found["context"]] == ["prompt", "environment"]
    assert HOSTILE in found["context"][1]["text"]
    chosen, rejected = found["sides"]
    assert (chosen["content"], chosen["value"], chosen["visits"]) == ("the better one 1", 0.9, 3)
    assert [score["name"] for score in chosen["scores"]] == ["gold", "mc"]
    assert (rejected["content"], found["judge"], found["reason"], found["gold"]) == (
        "the worse one 1", "llm", "says so", "agrees",
    )  # fmt: skip
    assert found["mark"] is None


def test_a_pair_is_marked_noted_and_unmarked(studio: RunningServer, runs: Path) -> None:
    pairs = runs / "study" / "seed0" / "pairs" / "pairs"
    before = [path.read_bytes() for path in sorted(pairs.iterdir())]
    changed = change(studio, "mark", PAIRS[0], note="the query is fine").json()
    assert changed["marked"] == 1
    assert read_marks(pairs)[pair_id(PAIRS[0])].note == "the query is fine"
    assert listed(studio, marks="marked")["rows"][0]["mark"]["note"] == "the query is fine"
    change(studio, "mark", PAIRS[0], note="worse: both are wrong")
    assert read_marks(pairs)[pair_id(PAIRS[0])].note == "worse: both are wrong"
    assert change(studio, "unmark", PAIRS[0]).json()["marked"] == 0
    assert read_marks(pairs) == {}
    assert [path.read_bytes() for path in sorted(pairs.iterdir())] == before


def test_the_page_says_what_training_does_with_the_marks(studio: RunningServer) -> None:
    (reader,) = change(studio, "mark", PAIRS[0]).json()["readers"]
    assert reader == {
        "stage": "dpo", "kind": "dpo", "excludes": True, "done": False, "stale": False, "left_out": 0,
    }  # fmt: skip


def test_marks_of_pairs_that_are_gone_are_counted_apart(studio: RunningServer, runs: Path) -> None:
    change(studio, "mark", *PAIRS[:2])
    file = marks_file(runs / "study" / "seed0" / "pairs" / "pairs")
    file.write_text(file.read_text().replace(pair_id(PAIRS[0]), "0" * 16))
    found = listed(studio)
    assert (found["marked"], found["marks_of_others"]) == (1, 1)


def test_what_is_not_there_is_404(studio: RunningServer) -> None:
    get, post = studio.client.get, studio.client.post
    assert "no finished stage 'x'" in get("/pairs/list.json", params={**RUN, "stage": "x"}).json()["detail"]
    assert "there is no run 'y'" in get("/pairs/list.json", params={**RUN, "run": "y"}).json()["detail"]
    assert "no pair 'z'" in get("/pairs/one.json", params={**RUN, "id": "z"}).json()["detail"]
    assert "no pair 'z'" in post("/pairs/mark", json={**RUN, "ids": ["z"]}).json()["detail"]
    assert "there is no run" in get("/pairs/list.json", params={**RUN, "run": "../../etc"}).json()["detail"]
    assert get("/runs/nobody/pairs", headers={"accept": "text/html"}).status_code == 404


@pytest.mark.parametrize("ids", [[], ["a"] * 1001, "a"])
def test_a_request_that_is_wrong_is_422(studio: RunningServer, ids: object) -> None:
    assert studio.client.post("/pairs/mark", json={**RUN, "ids": ids}).status_code == 422


def test_a_note_that_is_too_long_is_422(studio: RunningServer) -> None:
    assert change(studio, "mark", PAIRS[0], note="x" * 2001).status_code == 422


def test_damaged_files_are_an_error_on_the_page(studio: RunningServer, runs: Path) -> None:
    pairs = runs / "study" / "seed0" / "pairs" / "pairs"
    marks_file(pairs).write_text("{")
    response = studio.client.get("/pairs/list.json", params=RUN)
    assert (response.status_code, "marks.json is damaged" in response.json()["detail"]) == (409, True)
    marks_file(pairs).unlink()
    (pairs / "dev.jsonl").write_text('{"record": "pair"}\n')
    response = studio.client.get("/pairs/list.json", params=RUN)
    assert response.status_code == 409
    assert "dev.jsonl:1" in response.json()["detail"]
    (pairs.parent / "stage.json").write_text("{")
    assert studio.client.get("/runs/study/seed0/pairs").status_code == 409


def test_a_run_without_pairs_says_how_to_make_them(tmp_path: Path) -> None:
    from stepladder.pipeline.runner import run_recipe

    stages = {"oracle": {"kind": "eval", "policy": "oracle", "limit": 2}}
    shared = {"policy": "tiny", "agent": "direct", "device": "cpu", "data": {"name": "atlas-small"}}
    run_recipe(Recipe.read({**shared, "stages": stages}), tmp_path / "runs" / "none")
    with running_studio(tmp_path / "runs") as server:
        page = server.client.get("/runs/none/pairs", headers={"accept": "text/html"})
    assert "stepladder pairs --run" in page.text


def test_an_index_is_made_again_when_the_pairs_are(runs: Path) -> None:
    indexes, pairs = PairIndexes(), runs / "study" / "seed0" / "pairs" / "pairs"
    first = indexes.of(pairs)
    assert indexes.of(pairs) is first
    lines = (pairs / "train.jsonl").read_text().splitlines(keepends=True)
    (pairs / "train.jsonl").write_text("".join(lines[:3]))
    assert len(indexes.of(pairs).rows) == 5
    for row in indexes.of(pairs).rows:
        found = indexes.of(pairs).pair(row.id)
        assert found is not None
        assert pair_id(found[1]) == row.id
