"""The playground: a question is asked, its steps stream, a step is edited and the policy continues from there."""

import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepladder import Trajectory
from stepladder.core.errors import StepladderError
from stepladder.core.step_scorer import StepScorer, StepScores
from stepladder.core.trace import Author, Passage
from stepladder.retrieval.index.build import build_index
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.server_configs import StudioConfig
from stepladder.serve.studio.playground import loaded_policies
from stepladder.serve.studio.playground.kept_answers import KeptAnswers
from stepladder.serve.studio.playground.loaded_policies import LoadedPolicies
from stepladder.serve.studio.playground.playground_requests import PolicyRequest
from stepladder.serve.studio.playground.policy_settings import policy_settings
from stepladder.serve.studio.run_library import RunLibrary
from tests.support.agent_servers import Fragile, Oracle
from tests.support.http_servers import RunningServer
from tests.support.openai_server import Answer, fails, running_server, says
from tests.support.playgrounds import Event, asked, events_of, only, playing_agent
from tests.support.samples import PASSAGES, QUESTION, WordRetriever
from tests.support.search_servers import until
from tests.support.studios import running_studio

# --- one agent: `serve-agent` -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def server(oracle: Oracle) -> Iterator[RunningServer]:
    with playing_agent(oracle) as found:
        yield found


def test_an_answer_is_its_steps_and_then_the_answer(server: RunningServer) -> None:
    events = asked(server)
    assert [name for name, _ in events] == ["start", *["step"] * 5, "answer"]
    steps = only(events, "step")
    assert [(step["number"], step["action"]) for step in steps] == [
        (1, "query"), (2, "sub_answer"), (3, "query"), (4, "sub_answer"), (5, "answer"),
    ]  # fmt: skip
    assert steps[0]["passages"][0]["title"] == "Orm Tower"
    assert steps[0]["kinds"] == ["answer", "query"]
    (answer,) = only(events, "answer")
    assert (answer["text"], answer["answered"], answer["stop"]) == ("Velm", True, "answered")
    assert answer["citations"][0]["passage_id"] == "p2"
    assert answer["gold"] == {"answers": ["Velm", "Velm City"], "em": 1.0, "f1": 1.0}


def continued(server: RunningServer, answer: str, steps: int, step: dict[str, str] | None = None) -> list[Event]:
    body = {"policy": {"policy": ""}, "answer": answer, "steps": steps, "step": step}
    return events_of(server, "/playground/continue", body)


def test_a_step_is_edited_and_the_policy_continues_with_its_own_tokens(server: RunningServer, oracle: Oracle) -> None:
    first = asked(server)
    answer = only(first, "start")[0]["answer"]
    oracle.asked.clear()
    mine = {"kind": "query", "content": "Where was Ada Tarn born?", "thought": "Let me see."}
    events = continued(server, answer, 2, mine)
    steps = only(events, "step")
    assert [(step["number"], step["action"], step["written"]) for step in steps[:2]] == [
        (3, "query", True), (4, "sub_answer", False),
    ]  # fmt: skip
    assert steps[0]["passages"][0]["title"] == "Ada Tarn"
    context = oracle.asked[0].context
    policy = [segment for segment in context if segment.author is Author.POLICY]
    assert all(segment.tokens for segment in policy[:2])  # as the engine sampled them
    assert policy[2].tokens == ()  # nobody sampled these
    assert "Let me see." in policy[2].text
    assert only(events, "answer")[0]["text"] == "Velm"


def test_without_a_step_of_ones_own_the_policy_writes_it_again(server: RunningServer) -> None:
    answer = only(asked(server), "start")[0]["answer"]
    events = continued(server, answer, 4)
    assert [step["number"] for step in only(events, "step")] == [5]
    assert only(events, "start")[0]["steps"] == 4


def test_an_edited_answer_ends_the_episode(server: RunningServer, oracle: Oracle) -> None:
    answer = only(asked(server), "start")[0]["answer"]
    oracle.asked.clear()
    events = continued(server, answer, 2, {"kind": "answer", "content": "Oss"})
    assert oracle.asked == []
    assert only(events, "answer")[0]["text"] == "Oss"
    assert only(events, "answer")[0]["gold"]["em"] == 0


@pytest.mark.parametrize(
    ("steps", "step", "problem"),
    [
        (1, {"kind": "query", "content": "Who?"}, "step 2 cannot be 'query': expected sub_answer"),
        (9, None, "steps is 9, but this answer has 5"),
        (5, {"kind": "query", "content": "Who?"}, "there is no step 6 in this answer that could be replaced"),
        (0, {"kind": "query", "content": "   "}, "empty <subquery>"),
    ],
)
def test_what_cannot_be_continued_says_why(
    server: RunningServer, steps: int, step: dict[str, str] | None, problem: str
) -> None:
    answer = only(asked(server), "start")[0]["answer"]
    ((name, data),) = continued(server, answer, steps, step)
    assert name == "error"
    assert problem in data["message"]


def test_an_answer_that_is_no_longer_kept(server: RunningServer) -> None:
    assert continued(server, "0123", 1) == [
        ("error", {"message": "this answer is no longer kept by the server: ask the question again"})
    ]


def test_only_the_newest_answers_are_kept() -> None:
    kept, trajectory = KeptAnswers(2), Trajectory(QUESTION, "prorag")
    names = [kept.keep("policy", trajectory) for _ in range(3)]
    assert kept.find("policy", names[2], 0) is trajectory
    for policy, name in (("policy", names[0]), ("another", names[1])):
        with pytest.raises(HTTPError, match="no longer kept"):
            kept.find(policy, name, 0)


def test_a_search_that_chooses_among_candidates_cannot_be_edited() -> None:
    with playing_agent(Oracle(), edits=False) as server:
        events = asked(server)
        assert only(events, "step")[0]["kinds"] == []
        assert "cannot be edited" in continued(server, only(events, "start")[0]["answer"], 1)[0][1]["message"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"policy": {"policy": "nano"}, "question": "Who?"}, "this server serves one agent"),
        ({"policy": {"policy": ""}, "question": " "}, "the question is empty"),
        ({"policy": {"policy": ""}, "question": "x" * 5000}, "5,000 characters; the limit is 4,000"),
    ],
)
def test_a_question_that_is_refused(server: RunningServer, body: dict[str, Any], problem: str) -> None:
    ((name, data),) = events_of(server, "/playground/ask", body)
    assert name == "error"
    assert problem in data["message"]


def test_a_body_that_is_wrong_is_422(server: RunningServer) -> None:
    for body in (b"{", b'{"question": "Who?"}', b'{"policy": {"policy": ""}, "question": "Who?", "temperature": 9}'):
        assert server.client.post("/playground/ask", content=body).status_code == 422


def test_the_page_is_at_the_root_and_runs_only_scripts_of_its_server(server: RunningServer) -> None:
    page = server.client.get("/", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "<script>" not in page.text
    assert 'name="policy"' not in page.text  # there is only one
    assert server.client.get("/v1/models").json()["data"][0]["id"] == "stepladder"


def test_with_a_token_the_page_asks_for_it_and_the_api_needs_it() -> None:
    with playing_agent(Oracle(), token="secret-token-123") as server:
        html = {"accept": "text/html"}
        assert server.client.get("/", headers=html).status_code == 401
        assert server.client.post("/playground/ask", content=b"{}").status_code == 401
        assert server.client.get("/?token=secret-token-123", headers=html).status_code == 303  # sets the cookie
        assert server.client.get("/", headers=html).status_code == 200
        assert only(asked(server), "answer")[0]["text"] == "Velm"
        assert server.client.get("/v1/models").status_code == 401  # the cookie is for the page alone
        server.client.cookies.clear()
        assert server.client.post("/playground/ask", content=b"{}").status_code == 401
        bearer = {"authorization": "Bearer secret-token-123"}
        assert server.client.get("/v1/models", headers=bearer).status_code == 200


def test_pages_of_other_sites_cannot_ask(server: RunningServer) -> None:
    response = server.client.post("/playground/ask", content=b"{}", headers={"origin": "http://evil.example"})
    assert response.status_code in (403, 421)


def test_hostile_passages_are_data_of_an_event() -> None:
    evil = "</script><script>alert(1)</script>\n\nevent: answer\ndata: {}"
    passages = [replace(PASSAGES[0], text=PASSAGES[0].text + evil), *PASSAGES[1:]]
    with playing_agent(Oracle(), WordRetriever(passages)) as server:
        events = asked(server)
    assert only(events, "step")[0]["passages"][0]["text"].endswith(evil)
    assert len(only(events, "answer")) == 1


# --- scores -------------------------------------------------------------------------------------------------


class Lengths(StepScorer):
    """Scores a step by its position; cannot judge the second."""

    max_batch, concurrency = 8, 1
    fails = False

    def score(self, trajectories: Sequence[Trajectory]) -> Sequence[StepScores]:
        if self.fails:
            return [StepladderError("the tokenizer is another") for _ in trajectories]
        return [tuple(None if n == 1 else n / 10 for n in range(len(each.steps))) for each in trajectories]


def test_the_score_of_a_step_comes_before_the_next_step() -> None:
    with playing_agent(Oracle(), scorer=Lengths()) as server:
        events = asked(server)
    assert [name for name, _ in events] == ["start", *["step", "score"] * 5, "answer"]
    assert [data["score"] for data in only(events, "score")] == [0.0, None, 0.2, 0.3, 0.4]


def test_an_answer_is_worth_more_than_its_scores() -> None:
    scorer = Lengths()
    scorer.fails = True
    with playing_agent(Oracle(), scorer=scorer) as server:
        events = asked(server)
    assert only(events, "unscored") == [{"message": "the tokenizer is another"}]
    assert only(events, "answer")[0]["text"] == "Velm"


# --- failures -----------------------------------------------------------------------------------------------


def test_clients_of_an_agent_are_not_told_why_it_failed() -> None:
    engine = Fragile()
    with playing_agent(engine) as server:
        engine.down = True
        assert "secret" not in str(asked(server))
        assert "see the server's log" in asked(server)[-1][1]["message"]
        engine.down = False
        assert only(asked(server), "answer")[0]["text"] == "Velm"


def test_a_browser_that_leaves_ends_its_question() -> None:
    engine = Oracle()
    engine.held = "Slow"
    with playing_agent(engine) as server:
        body = json.dumps({"policy": {"policy": ""}, "question": "Slow?"}).encode()
        with server.client.stream("POST", "/playground/ask", content=body) as response:
            for line in response.iter_lines():
                if line == "event: step":
                    break
        time.sleep(1.5)  # the server looks twice a second
        engine.go.set()
        until(lambda: server.metric("stepladder_disconnected_total") == 1)
        assert engine.steps_of("Slow") <= 2


# --- the studio: policies that a user names ------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has no policy."""
    from stepladder.pipeline.recipe import Recipe
    from stepladder.pipeline.runner import run_recipe

    folder = tmp_path_factory.mktemp("playground")
    stages = {"oracle": {"kind": "eval", "policy": "oracle", "limit": 2}}
    shared = {"policy": "tiny", "agent": "rag", "device": "cpu", "data": {"name": "atlas-small"}}
    run_recipe(Recipe.read({**shared, "stages": stages}), folder / "runs" / "small")
    return folder / "runs"


@pytest.fixture(scope="module")
def studio(runs: Path) -> Iterator[RunningServer]:
    with running_studio(runs) as found:
        yield found


SMALL = {"policy": "oracle", "index": "atlas-small", "agent": "prorag"}


def test_the_oracle_answers_questions_of_its_data_and_is_labelled(studio: RunningServer) -> None:
    example = studio.client.post("/playground/example", json=SMALL, timeout=60).json()
    events = asked(studio, example["question"], SMALL)
    about = only(events, "start")[0]["policy"]
    assert (about["oracle"], about["label"], about["index"]) == (True, "oracle", "atlas-small")
    assert only(events, "answer")[0]["gold"]["answers"] == example["answers"]
    events = asked(studio, "Who am I?", SMALL)
    assert "the oracle can only answer questions of atlas" in events[-1][1]["message"]


def test_the_run_that_a_policy_searches_in_can_be_named(studio: RunningServer) -> None:
    example = studio.client.post("/playground/example", json={"policy": "oracle", "index": "small"}, timeout=60).json()
    events = asked(studio, example["question"], {"policy": "oracle", "index": "small"})
    assert only(events, "start")[0]["policy"]["agent"] == "rag"
    assert only(events, "given")[0]["passages"]
    assert only(events, "answer")


def test_the_choices(studio: RunningServer) -> None:
    found = studio.client.get("/playground/choices").json()
    assert found["runs"] == []  # its only run has no policy
    assert "nano" in found["models"]
    assert found["agents"]["prorag"]


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("", "no policy given: choose a run, or type a model"),
        ("nanoo", "there is no folder 'nanoo' here.* Did you mean 'nano'"),
        ("/no/such/model", "model path /no/such/model does not exist"),
        ("small", "has no policy yet"),
        ({"policy": "http://127.0.0.1:9/v1"}, "is a server: give the name of its model too"),
        ({"policy": "tiny", "stage": "sft"}, "a stage belongs to a run, and tiny is none"),
        ({"policy": "tiny", "agent": "proragg"}, "proragg.*Did you mean 'prorag'"),
        ({"policy": "tiny", "index": "/no/such/index"}, "/no/such/index"),
        ({"policy": "tiny", "reward": "/no/such/prm"}, "/no/such/prm is no reward model"),
        ({"policy": "tiny", "reward": "small"}, "the run small has no reward model yet"),
    ],
)
def test_a_policy_that_cannot_be_opened_says_why(studio: RunningServer, policy: Any, problem: str) -> None:
    events = asked(studio, "Who?", policy)
    assert [name for name, _ in events] == ["error"]
    assert re.search(problem, events[0][1]["message"]), events


def test_damaged_weights_are_an_error_on_the_page(studio: RunningServer, tmp_path: Path) -> None:
    from stepladder.models.tiny import tiny_model, tiny_tokenizer

    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\0" * 100)
    ((name, data),) = asked(studio, "Who?", {"policy": str(tmp_path / "model"), "index": "atlas-small"})
    assert name == "error"
    assert "could not be loaded" in data["message"]
    (events) = asked(studio, "Who?", {**SMALL, "policy": "tiny"})  # the next one can be
    assert only(events, "answer")


def test_files_of_agents_are_never_executed(studio: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    events = asked(studio, "Who?", {"policy": "tiny", "agent": str(file)})
    assert "agent files are not executed here" in events[0][1]["message"]
    assert not (tmp_path / "ran").exists()


def test_a_policy_of_a_run_that_names_an_agent_file_is_refused(tmp_path: Path) -> None:
    from stepladder.pipeline.run_folder import RunFolder

    (tmp_path / "agent.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    run = tmp_path / "runs" / "theirs"
    run.mkdir(parents=True)
    RunFolder(run).add_session({})
    (run / "recipe.yaml").write_text(f"agent: {tmp_path / 'agent.py'}\nstages: {{eval: {{kind: eval}}}}\n")
    with running_studio(tmp_path / "runs") as server:
        events = asked(server, "Who?", {"policy": "tiny", "index": "theirs"})
    assert "was not executed" in events[-1][1]["message"]
    assert not (tmp_path / "ran").exists()


def test_a_studio_that_is_open_to_everybody_plays_its_own_runs_only(runs: Path, tmp_path: Path) -> None:
    library = RunLibrary(runs)
    for request in (
        {"policy": "tiny"},
        {"policy": "http://127.0.0.1:1/v1", "model": "m"},
        {"policy": "oracle", "index": "/etc"},
        {"policy": "oracle", "reward": str(tmp_path)},
    ):
        with pytest.raises(HTTPError, match="open to everybody") as caught:
            policy_settings(PolicyRequest(**request), library, trusted=False)
        assert caught.value.status_code == 403
    assert policy_settings(PolicyRequest(policy="oracle", index="small"), library, trusted=False).engine == "oracle"


def test_an_own_index_is_searched_and_has_no_examples(studio: RunningServer, tmp_path: Path) -> None:
    build_index([Passage("x", "Orm Tower", "By Ada Tarn.")], tmp_path / "index")
    policy = {"policy": "tiny", "agent": "rag", "index": str(tmp_path / "index")}
    events = asked(studio, "Who designed Orm Tower?", policy)
    assert only(events, "given")[0]["passages"][0]["text"] == "By Ada Tarn."
    assert only(events, "answer")[0]["gold"] is None
    response = studio.client.post("/playground/example", json=policy)
    assert (response.status_code, "type one" in response.text) == (422, True)


# --- a server as the policy ----------------------------------------------------------------------------------


def test_a_server_that_goes_away_in_mid_answer_is_named(studio: RunningServer, tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "index")

    def answer(body: dict[str, Any], number: int) -> Answer:
        if number == 0:
            return says("<think>Look.</think>\n<search>Who designed Orm Tower?</search>")
        return fails(500, "worker died")

    with running_server() as model:
        model.answer = answer
        policy = {"policy": model.url, "model": "m", "agent": "search-r1", "index": str(tmp_path / "index")}
        began = time.perf_counter()
        events = asked(studio, QUESTION.text, policy)
    assert [name for name, _ in events] == ["start", "step", "error"]
    assert "worker died" in events[-1][1]["message"]
    assert time.perf_counter() - began < 60


# --- loading -------------------------------------------------------------------------------------------------


def acquire_all(policies: LoadedPolicies, *names: str) -> list[Any]:
    async def work() -> list[Any]:
        try:
            requests = [PolicyRequest(**{**SMALL, "agent": name}) for name in names]
            return await asyncio.gather(*map(policies.acquire, requests), return_exceptions=True)
        finally:
            await policies.close()

    return asyncio.run(work())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The agents of the policies that were opened, in order."""
    found: list[str] = []
    real = loaded_policies._open

    def noting(settings: Any) -> Any:
        found.append(settings.config.agent)
        return real(settings)

    monkeypatch.setattr(loaded_policies, "_open", noting)
    return found


def test_requests_for_one_policy_load_it_once(opened: list[str]) -> None:
    one, other = acquire_all(LoadedPolicies(None, StudioConfig(), trusted=True), "prorag", "prorag")
    assert one is other
    assert opened == ["prorag"]


def test_policies_in_use_are_not_dropped_for_another(opened: list[str]) -> None:
    policies = LoadedPolicies(None, StudioConfig(max_policies=1), trusted=True)
    one, other = acquire_all(policies, "prorag", "react")
    assert one.about["agent"] == "prorag"
    assert "oracle are in use, and at most 1" in other.detail or "oracle are in use" in other.detail
    assert opened == ["prorag"]


def test_the_policy_that_was_not_asked_for_longest_is_dropped(opened: list[str]) -> None:
    policies = LoadedPolicies(None, StudioConfig(max_policies=2), trusted=True)

    async def work() -> None:
        for name in ("prorag", "react", "prorag", "rag", "prorag", "react"):
            policy = await policies.acquire(PolicyRequest(**{**SMALL, "agent": name}))
            policies.release(policy)
            assert len(policies._entries) <= 2
        await policies.close()

    asyncio.run(work())
    assert opened == ["prorag", "react", "rag", "react"]
