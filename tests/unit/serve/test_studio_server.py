"""The studio over HTTP: its pages, who may open them, and what they say when something is wrong."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from stepladder import cli
from stepladder.core.trace import Node, Tree
from stepladder.pipeline.run_folder import claim
from tests.support.http_servers import RunningServer
from tests.support.made_runs import HOSTILE, MadeRun, add_trees, grown_trees, made_run
from tests.support.samples import PASSAGES, QUESTION
from tests.support.studios import running_studio

PAGE = {"accept": "text/html"}
TOKEN = "open-sesame"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, one of them in a study, and a damaged one."""
    folder = tmp_path_factory.mktemp("studio") / "runs"
    made_run(folder / "one")
    made_run(folder / "study" / "arm")
    (made_run(folder / "broken", trees=1).path / "recipe.yaml").write_text("stages: [")
    return folder


@pytest.fixture(scope="module")
def studio(runs: Path) -> Iterator[RunningServer]:
    with running_studio(runs) as server:
        yield server


def events(server: RunningServer, path: str, count: int) -> list[tuple[str, Any]]:
    """The first events of a stream."""
    found: list[tuple[str, Any]] = []
    with server.client.stream("GET", path, timeout=20) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: "))))
                if len(found) == count:
                    return found
    return found


def test_every_run_is_listed_with_its_state_and_score(studio: RunningServer) -> None:
    page = studio.client.get("/", headers=PAGE).text
    for words in ('href="/runs/one"', 'href="/runs/study/arm"', "0.50 [0.00, 1.00]", "after, n 4", "finished"):
        assert words in page
    assert "not YAML" in page, "what is wrong with the damaged one"


def test_no_page_runs_or_loads_anything_of_others(studio: RunningServer) -> None:
    for path in ("/", "/runs/one", "/runs/one/trees", "/compare?runs=one&runs=study/arm", "/nothing"):
        response = studio.client.get(path, headers=PAGE)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "://" not in response.text
        assert not re.search(r"<script(?![^>]* src=\"/static/)|<style| on\w+=", response.text), path


def test_every_file_that_a_page_names_is_served(studio: RunningServer) -> None:
    pages = [studio.client.get(path, headers=PAGE).text for path in ("/", "/runs/one", "/runs/one/trees")]
    pages.append(studio.client.get("/compare?runs=one&runs=study/arm", headers=PAGE).text)
    files = {name for page in pages for name in re.findall(r'(?:src|href)="(/static/[^"]+)"', page)}
    scripts = {name for name in files if name.endswith(".js")}
    for name in scripts:
        files |= set(re.findall(r'from "(/static/[^"]+)"', studio.client.get(name).text))
    assert {"/static/studio.css", "/static/live.js", "/static/tree_view.js", "/static/chart.js"} <= files
    for name in files:
        response = studio.client.get(name)
        assert response.status_code == 200, name
        again = studio.client.get(name, headers={"if-none-match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for name in ("site.html", "../site.py", "..%2Fsite.py", ".hidden.js", "none.js"):
        assert studio.client.get(f"/static/{name}").status_code == 404


def test_the_page_of_a_run_is_filled_by_events(studio: RunningServer) -> None:
    page = studio.client.get("/runs/study/arm", headers=PAGE).text
    assert 'href="/runs/study/arm/trees"' in page
    found = events(studio, "/runs/study/arm/events", 8)
    parts = {data["id"]: data["html"] for name, data in found if name == "part"}
    assert {"state", "results", "alarms", "cost", "reproduction"} <= set(parts)
    assert "0.50 [0.00, 1.00]" in parts["results"]
    assert parts["alarms"].startswith('<section id="alarms" hidden>'), "it has none"
    ((_, curves),) = [each for each in found if each[0] == "curves"]
    assert (curves["stage"], curves["updates"]) == ("sft", 40)
    assert {"loss", "kl", "f1"} <= {metric["id"] for metric in curves["metrics"]}


def test_a_part_of_a_report_that_is_damaged_does_not_hide_the_others(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", trees=1)
    run.path.joinpath("after", "evaluation", "trajectories.jsonl").write_text("no record\n")
    evaluation = run.path / "after" / "evaluation"
    rows = (evaluation / "scores.jsonl").read_text()
    with running_studio(tmp_path) as studio:
        assert "0.50 [0.00, 1.00]" in studio.client.get("/", headers=PAGE).text
        parts = {data["id"]: data["html"] for name, data in events(studio, "/runs/run/events", 8) if name == "part"}
        assert "0.50 [0.00, 1.00]" in parts["results"]
        (evaluation / "scores.jsonl").write_text(rows.replace('"em"', '"me"'))
        (run.path / "after" / "stage.json").touch()
        parts = {data["id"]: data["html"] for name, data in events(studio, "/runs/run/events", 1) if name == "part"}
        assert "damaged" in parts["state"]


def test_trees_are_listed_filtered_and_shown(studio: RunningServer) -> None:
    page = studio.client.get("/runs/one/trees", headers=PAGE).text
    assert "disputed" in page
    assert "Differences below 0.1 do not count" in page
    listed = studio.client.get("/runs/one/trees/list?stage=explore").json()
    assert listed["ids"] == [f"q{number}" for number in range(6)]
    assert (listed["total"], listed["counts"]["all"], listed["growing"]) == (6, 6, False)
    found = studio.client.get("/runs/one/trees/list?stage=explore&show=solved").json()
    assert found["found"] == listed["counts"]["solved"]
    assert studio.client.get("/runs/one/trees/list?stage=explore&q=q4").json()["ids"] == ["q4"]
    tree = studio.client.get("/runs/one/trees/tree?stage=explore&id=q4").json()["html"]
    assert "Where was the architect of Orm Tower born?" in tree
    assert 'data-node="1"' in tree


def test_one_of_a_thing_is_not_many(tmp_path: Path) -> None:
    MadeRun(tmp_path / "run").explored([Tree(QUESTION, "prorag", (Node(0, None, None, visits=1),), PASSAGES[:1])])
    with running_studio(tmp_path) as studio:
        listed = studio.client.get("/runs/run/trees/list?stage=explore").json()["html"]
        assert "no answers · 1 node<" in listed
        tree = studio.client.get(f"/runs/run/trees/tree?stage=explore&id={QUESTION.id}").json()["html"]
        assert "1 simulation · 1 node ·\nno answers" in tree
        assert "<summary>1 passage given" in tree


def test_a_file_of_trees_that_was_cut_off_says_so(tmp_path: Path) -> None:
    file = made_run(tmp_path / "run", trees=3).path / "explore" / "trees.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-10])
    with running_studio(tmp_path) as studio:
        listed = studio.client.get("/runs/run/trees/list?stage=explore").json()
        assert (listed["total"], listed["reading"]) == (2, False)
        assert "trees.jsonl.gz ends in the middle of a tree" in listed["problem"]


def test_the_list_of_trees_is_paged_and_finds_the_page_of_a_tree(tmp_path: Path) -> None:
    made_run(tmp_path / "run", trees=50)
    with running_studio(tmp_path) as studio:

        def listed(query: str) -> dict[str, Any]:
            found: dict[str, Any] = studio.client.get(f"/runs/run/trees/list?stage=explore&{query}").json()
            return found

        while listed("page=1")["reading"]:
            pass
        assert (listed("page=1")["pages"], listed("page=2")["ids"][0]) == (2, "q40")
        assert listed("page=99")["page"] == 2
        assert listed("around=q41")["page"] == 2
        assert listed("around=none")["page"] == 1


def test_growing_trees_are_events(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    with running_studio(tmp_path) as studio, claim(run.path):
        assert "no search trees yet" in studio.client.get("/runs/run/trees", headers=PAGE).text
        folder = run.begin("explore")
        add_trees(folder, grown_trees(2))
        path = "/runs/run/trees/events?stage=explore"
        assert events(studio, path, 1)[0][1]["total"] in (1, 2)
        with studio.client.stream("GET", path, timeout=20) as response:
            totals = (json.loads(line[6:])["total"] for line in response.iter_lines() if line.startswith("data: "))
            assert next(totals) == 2
            add_trees(folder, grown_trees(1, first=2))
            assert next(total for total in totals if total > 2) == 3


def test_a_run_that_is_deleted_while_it_is_watched_is_told(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", trees=1)
    made_run(tmp_path / "other", trees=1)
    with running_studio(tmp_path) as studio, studio.client.stream("GET", "/runs/run/events", timeout=20) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: part"
        shutil.rmtree(run.path)
        assert "event: problem" in lines
        assert "there is no run 'run'" in next(lines)


def test_what_documents_say_is_shown_as_text(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "<b>run</b>")  # a folder in a folder
    run.explored(grown_trees(1, hostile=True))
    with running_studio(tmp_path) as studio:
        tree = studio.client.get("/runs/%3Cb%3Erun%3C/b%3E/trees/tree?stage=explore&id=q0").json()["html"]
        assert "&lt;script&gt;" in tree
        assert "<script>" not in tree
        assert HOSTILE.title not in tree
        page = studio.client.get("/", headers=PAGE).text
        assert "&lt;b&gt;run&lt;/b&gt;" in page
        assert "<b>run" not in page


def test_runs_are_compared(studio: RunningServer) -> None:
    assert "Comparing" in studio.client.get("/compare?runs=one&runs=study/arm", headers=PAGE).text
    found = studio.client.get("/compare/result?runs=one&runs=study/arm", timeout=60).json()["html"]
    assert "+0.000 [" in found
    assert "study/arm" in found
    for query, problem in {
        "runs=one": "mark 2 to 12 runs",
        "runs=one&runs=none": "there is no run",
        "runs=one&runs=broken": "not YAML",
        "runs=one&runs=study/arm&metric=f2": "unknown metric",
    }.items():
        response = studio.client.get(f"/compare/result?{query}")
        assert response.status_code in (404, 409, 422)
        assert problem in response.json()["detail"]


def test_mistakes_are_pages_for_browsers_and_json_for_everybody_else(studio: RunningServer) -> None:
    page = studio.client.get("/runs/none", headers=PAGE)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "there is no run &#39;none&#39;" in page.text
    data = studio.client.get("/runs/none")
    assert data.status_code == 404
    assert "there is no run 'none'" in data.json()["detail"]
    for path, status, problem in (
        ("/runs/one/trees/list?stage=sft", 404, "it has trees of explore"),
        ("/runs/one/trees/list?stage=explore&show=good", 422, "unknown filter"),
        ("/runs/one/trees?show=good", 422, "unknown filter 'good'"),
        ("/runs/one/trees/tree?stage=explore&id=q99", 404, "there is no tree of the question 'q99'"),
        ("/runs/broken/trees/list?stage=explore", 409, "not YAML"),
        ("/runs/broken/trees", 409, "not YAML"),
        ("/runs/none/events", 404, "there is no run"),
    ):
        response = studio.client.get(path)
        assert (response.status_code, problem in response.json()["detail"]) == (status, True), response.text


def test_a_damaged_run_has_a_page_that_says_so(studio: RunningServer) -> None:
    page = studio.client.get("/runs/broken", headers=PAGE)
    assert page.status_code == 200
    assert "recipe.yaml:1: not YAML" in page.text


def test_pages_of_other_origins_and_hosts_are_refused(studio: RunningServer) -> None:
    assert studio.client.get("/", headers={"host": "evil.example"}).status_code == 421
    assert studio.client.get("/", headers={"origin": "http://localhost:9"}).status_code == 403
    assert studio.client.get("/", headers={"origin": "null"}).status_code == 403
    assert studio.client.get("/", headers={"origin": studio.url}).status_code == 200


def test_a_browser_gives_the_token_once_and_then_has_a_cookie(runs: Path) -> None:
    with running_studio(runs, token=TOKEN) as studio:
        page = studio.client.get("/runs/one", headers=PAGE)
        assert page.status_code == 401
        assert "A token is needed" in page.text
        assert "one" not in re.sub(r"<[^>]*>", "", page.text).split("A token is needed")[1].split()
        assert studio.client.get("/static/studio.css").status_code == 200
        assert studio.client.get("/?token=wrong", headers=PAGE).status_code == 401

        entered = studio.client.get(f"/runs/one?a=1&token={TOKEN}", headers=PAGE, follow_redirects=False)
        assert (entered.status_code, entered.headers["location"]) == (303, "/runs/one?a=1")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert studio.client.get("/runs/one", headers=PAGE).status_code == 200, "the client sends the cookie"
        studio.client.cookies.clear()
        assert studio.client.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert studio.client.get("/", headers={"cookie": cookie.split(";")[0][:-1] + "0"}).status_code == 401


def test_a_redirect_stays_on_this_server(runs: Path) -> None:
    with running_studio(runs, token=TOKEN) as studio:
        response = httpx2.get(f"{studio.url}//evil.example/?token={TOKEN}", trust_env=False, follow_redirects=False)
        assert response.headers["location"] == "/evil.example/"


def test_the_server_ends_though_pages_are_open(runs: Path) -> None:
    with running_studio(runs, drain_seconds=20) as studio, studio.client.stream("GET", "/events") as response:
        lines = response.iter_lines()
        assert next(lines).startswith("event: ")
        studio.server.drain()
        studio.thread.join(10)
        assert not studio.thread.is_alive()


def test_the_command_says_what_is_wrong(
    tmp_path: Path, runs: Path, studio: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    port = studio.url.rpartition(":")[2]
    (tmp_path / "empty").mkdir()
    for arguments, problem in {
        (str(tmp_path / "none"),): "does not exist",
        (str(tmp_path / "empty"),): "has no runs",
        (str(runs), "--port", port): f"port {port}: [Errno",
        (str(runs), "--host", "0.0.0.0"): "there is no token: set STEPLADDER_TOKEN",
    }.items():
        assert cli.main(["studio", *arguments]) == 2
        assert problem in " ".join(capsys.readouterr().err.split())
