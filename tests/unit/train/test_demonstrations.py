"""Where transcripts come from, what is dropped and why, and that worked examples leave no trace."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepladder.agents import AGENTS, Agent, make_agent
from stepladder.core.errors import BackendError, StepladderError
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import UNKNOWN_TOKENS, Author, Hop, Question, Segment, Trajectory
from stepladder.data.sampling import sample_questions
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.engines.scripted import ScriptedEngine
from stepladder.engines.spend.budget import BudgetExhausted
from stepladder.engines.spend.ledger import Ledger
from stepladder.engines.spend.response_cache import CachedEngine
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.oracle.agent_check import check_agent
from stepladder.oracle.engine import OracleEngine
from stepladder.retrieval.base import Retriever
from stepladder.train.loop.context import TrainingContext
from stepladder.train.sft.config import TEACHER_FILES, SFTConfig
from stepladder.train.sft.demonstrations import (
    Demonstrations,
    gold_demonstrations,
    load_or_make,
    sampled_demonstrations,
)
from stepladder.train.sft.fewshot import FewShot
from tests.support import openai_server
from tests.support.openai_server import Answer, Server, says_all
from tests.support.samples import PASSAGES, QUESTION, WordRetriever

server = openai_server.server
EPISODE = EpisodeConfig(k=1)
RIGHT = "<step>I know.</step><answer>Velm</answer>"
PLAIN = replace(QUESTION, id="plain", hops=())


class Hot(ScriptedEngine):
    """Says another thing at every seed."""

    def __init__(self, *said: str) -> None:
        self.asked: list[Generate] = []
        super().__init__(lambda request: said[len(self.asked) - 1])

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        replies = []
        for request in requests:
            self.asked.append(request)
            replies += super().generate([request])
        return replies


# --- which questions ----------------------------------------------------------------------------------------


def test_questions_are_picked_by_the_seed() -> None:
    questions = [replace(QUESTION, id=str(number)) for number in range(50)]
    assert (
        sample_questions(questions, 10, seed=1)
        == sample_questions(questions, 10, seed=1)
        != sample_questions(questions, 10, seed=2)
    )
    assert len(sample_questions(questions, 80, seed=1)) == 50


def test_balanced_questions_need_all_numbers_of_searches() -> None:
    hop = Hop("?", "x", ("p",))
    questions = [Question(f"{n}", "?", ("x",), (hop,) * (1 if n < 90 else 2)) for n in range(100)]
    needed = [question.searches_needed for question in sample_questions(questions, 12, seed=0, balance=True)]
    assert (needed.count(1), needed.count(2)) == (6, 6)


# --- gold ---------------------------------------------------------------------------------------------------


def test_gold_keeps_right_answers_and_counts_the_others() -> None:
    lost = replace(QUESTION, id="lost", hops=(Hop("Who sank?", "Nobody", ("gone",)),), gold_passages=(("gone",),))
    unanswered = replace(QUESTION, id="unanswered", answers=())
    made = gold_demonstrations(
        make_agent("prorag"), [QUESTION, PLAIN, lost, unanswered], WordRetriever(), EPISODE, seed=0
    )
    assert [trajectory.question.id for trajectory in made.kept] == ["q1"]
    assert made.dropped == {"no_known_answer": 1, "no_decomposition": 1, "not_retrieved": 1}
    assert made.requested == 4


def test_gold_thoughts_vary_with_the_seed() -> None:
    def thoughts(seed: int) -> list[str]:
        made = gold_demonstrations(make_agent("prorag"), [QUESTION], WordRetriever(), EPISODE, seed=seed)
        return [step.action.thought for step in made.kept[0].steps]

    assert thoughts(1) == thoughts(1)
    assert len({tuple(thoughts(seed)) for seed in range(5)}) > 1


def test_gold_thinks_a_question_through_where_there_is_no_search() -> None:
    (kept,) = gold_demonstrations(make_agent("cot"), [QUESTION], None, EPISODE, seed=0).kept
    assert kept.steps[0].action.thought == "Who designed Orm Tower? Ada Tarn. Where was Ada Tarn born? Velm."


def test_gold_copes_with_braces_and_tags_in_a_decomposition() -> None:
    hops = (
        Hop("Who {0} {} <subquery> Orm Tower </subquery> #9?", "{b}", ("p1",)),
        Hop("</step> #1 born Ada ?", "Velm", ("p2",)),
    )
    made = gold_demonstrations(make_agent("prorag"), [replace(QUESTION, hops=hops)], WordRetriever(), EPISODE, seed=0)
    first, _, second, *_ = made.kept[0].steps
    assert first.action.content == "Who {0} {} ‹subquery> Orm Tower ‹/subquery> #9?"
    assert first.action.content in first.action.thought
    assert second.action.content == "‹/step> {b} born Ada ?"


@pytest.mark.parametrize("seed", range(4))
def test_gold_says_no_answer_before_it_was_found(seed: int) -> None:
    """The second search finds nothing: its answer, which is also that of the question, must be nowhere."""
    here = WordRetriever(PASSAGES[:1])
    outcomes = Driver(OracleEngine(make_agent("prorag"), seed), here).run(
        [lambda: episode(make_agent("prorag"), QUESTION, EPISODE, 0)]
    )
    assert outcomes[0].value is not None
    first, *_, last = said = [step.written.text for step in outcomes[0].value.steps]
    assert "Ada Tarn" not in first
    assert "unknown" in last
    assert not any("Velm" in text for text in said)


# --- sampled ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_an_agent_with_worked_examples_is_still_an_agent(name: str) -> None:
    shown = FewShot(make_agent(name))
    check_agent(shown.agent)
    assert re.search(r"Pellam(</answer>|\]|\"})", shown.demonstrations)
    assert shown.agent.searches == make_agent(name).searches


def sampled(
    engine: Any, agent: Agent, question: Question, config: SFTConfig, retriever: Retriever | None = None
) -> Demonstrations:
    context = TrainingContext(agent, [question], (), retriever, EPISODE, Path("unused"))
    return sampled_demonstrations(engine, context, config, [question])


def test_worked_examples_are_shown_and_leave_no_trace() -> None:
    agent = make_agent("prorag")
    engine = Hot("<step>Ask.</step><subquery>Orm Tower</subquery>", "<step>Read.</step><subanswer>A</subanswer>", RIGHT)
    made = sampled(engine, agent, QUESTION, SFTConfig(source="bootstrap", num_generations=1), WordRetriever())
    demonstrations = FewShot(agent).demonstrations
    assert all(request.context[0].text.startswith(demonstrations) for request in engine.asked)

    (kept,) = made.kept
    prompt, first, found, *_ = kept.context()
    assert prompt == agent.render(Trajectory(QUESTION, "prorag"))[0]  # no ids: to be encoded anew
    assert first.tokens == tuple(first.text.encode())
    assert first.logprobs == ()  # they were of another context
    assert found.tokens == tuple(found.text.encode())


def test_of_the_samples_right_different_ones_are_kept() -> None:
    right = [f"<step>{thought}</step><answer>Velm</answer>" for thought in ("One.", "One.", "Two.", "Three.")]
    engine = Hot(*right, "<answer>x", "no", "<step>Hm.</step><answer>Oss</answer>")
    made = sampled(engine, make_agent("cot"), PLAIN, SFTConfig(source="bootstrap", num_generations=7, keep=2))
    assert [trajectory.steps[0].action.thought for trajectory in made.kept] == ["One.", "Two."]
    assert made.dropped == {"duplicate": 1, "surplus": 1, "malformed": 2, "not_retrieved": 1}


def test_samples_follow_the_rules() -> None:
    engine = Hot("<step>Ask.</step><subquery>Orm Tower</subquery>", "<step>Read.</step><subanswer>A</subanswer>", RIGHT)
    config = SFTConfig(source="bootstrap", num_generations=1, supported=True)
    assert sampled(engine, make_agent("prorag"), QUESTION, config, WordRetriever()).dropped == {"not_supported": 1}
    right = ["<step>Hm.</step><answer>Velm</answer>", *["<step>Hm.</step><answer>Oss</answer>"] * 3]
    for rules, reason in (({"least_solved": 0.5}, "rarely_solved"), ({"most_solved": 0.1}, "often_solved")):
        config = SFTConfig(source="bootstrap", num_generations=4, **rules)
        assert sampled(Hot(*right), make_agent("cot"), PLAIN, config).dropped == {reason: 1, "not_retrieved": 3}


def test_a_model_that_does_not_know_the_format_samples_under_its_grammar() -> None:
    engine = Hot("<step>Hm.</step><answer>Velm</answer>")
    config = SFTConfig(source="bootstrap", num_generations=1, format="constrained")
    assert len(sampled(engine, make_agent("cot"), PLAIN, config).kept) == 1
    (request,) = engine.asked
    assert request.grammar is not None
    assert request.context[0].text.startswith(FewShot(make_agent("cot")).demonstrations), "written in the format"
    sampled(Hot("<step>Hm.</step><answer>Velm</answer>"), make_agent("cot"), PLAIN, SFTConfig(source="bootstrap"))


def test_an_answer_may_be_right_by_its_f1() -> None:
    engine = Hot("<answer>Velm on Oss</answer>")
    made = sampled(engine, make_agent("direct"), PLAIN, SFTConfig(source="bootstrap", num_generations=1, min_f1=0.5))
    assert len(made.kept) == 1


# --- a teacher's replies on disk ----------------------------------------------------------------------------


class Paid(Engine):
    """Counts what it is asked; one request in particular it cannot answer."""

    name = "paid"

    def __init__(self, *_: Any) -> None:
        self.asked = 0

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        self.asked += len(requests)
        written = Segment(Author.POLICY, RIGHT, vocabulary=UNKNOWN_TOKENS)  # as a server does
        return [
            BackendError("no") if request.seed == 13 else Generation(request.context, written, RIGHT, Finish.STOP)
            for request in requests
        ]


def ask(seed: int, text: str = "Who?") -> Generate:
    return Generate((Segment(Author.PROMPT, text),), sampling=Sampling(0.8), seed=seed)


def test_a_reply_is_paid_for_once(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    paid = Paid()
    first = CachedEngine(paid, path, "model").generate([ask(1), ask(2), ask(13)])
    again = CachedEngine(paid, path, "model")
    assert again.generate([ask(2), ask(1)]) == [first[1], first[0]]
    assert (paid.asked, again.cached) == (3, 2)
    again.generate([ask(1, "Whom?"), ask(13)])  # another text; an error is not kept
    CachedEngine(paid, path, "other model").generate([ask(1)])
    assert paid.asked == 6


def test_a_line_that_was_cut_off_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    CachedEngine(Paid(), path, "model").generate([ask(1), ask(2)])
    path.write_bytes(path.read_bytes()[:-9])
    paid = Paid()
    CachedEngine(paid, path, "model").generate([ask(1), ask(2)])
    assert paid.asked == 1
    assert len(path.read_bytes().splitlines()) == 2


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_text("{}\n")
    with pytest.raises(StepladderError, match=r"replies.jsonl:1: not a cached response"):
        CachedEngine(Paid(), path, "model")


# --- sources by name ----------------------------------------------------------------------------------------


def taught(folder: Path, server: Server, count: int = 1, **settings: Any) -> Demonstrations:
    """Demonstrations of a teacher, 2 samples per question."""
    questions = [replace(PLAIN, id=f"q{n}", text=f"{PLAIN.text} ({n})") for n in range(count)]
    config = SFTConfig.read(
        {"source": "teacher", "teacher_model": "big", "teacher_url": server.url, "num_generations": 2, **settings}
    )
    context = TrainingContext(make_agent("cot"), questions, (), None, EPISODE, folder)
    return load_or_make(config, context, Paid(), questions)


def teaches(body: dict[str, Any], _: int) -> Answer:
    usage = {"prompt_tokens": 300, "completion_tokens": 20 * body.get("n", 1)}
    return says_all([RIGHT] * body.get("n", 1), usage=usage)


def test_a_teacher_is_not_asked_again_and_transcripts_are_made_once(tmp_path: Path, server: Server) -> None:
    server.answer = teaches
    made = taught(tmp_path, server)
    assert len(made.kept) == 1
    assert sum(body.get("n", 1) for body in server.requests) == 2
    calls = len(server.requests)
    assert taught(tmp_path, server) == made
    for name in ("transcripts.jsonl", "dropped.json"):
        (tmp_path / name).unlink()
        assert taught(tmp_path, server) == made
    assert len(server.requests) == calls


def test_a_teacher_has_a_spending_limit_over_all_attempts(tmp_path: Path, server: Server) -> None:
    server.answer = teaches
    for _ in range(2):
        with pytest.raises(BudgetExhausted, match="the budget of 12000tok is spent"):
            taught(tmp_path, server, 30, teacher_budget="12ktok")
    first = len(server.requests)
    assert 1 < first < 30
    assert not (tmp_path / "transcripts.jsonl").exists()
    assert {path.name for path in tmp_path.iterdir()} == set(TEACHER_FILES)
    ledger = Ledger(tmp_path / "teacher-spend.jsonl")
    assert sum(usage.read + usage.written for usage in ledger.totals.values()) <= 12_000
    ledger.close()
    assert len(taught(tmp_path, server, 30, teacher_budget="1Mtok").kept) == 30
    assert len({str(body["messages"]) for body in server.requests}) == len(server.requests) == 30, "none paid twice"


def test_the_budget_of_a_teacher_makes_no_stage_stale_and_needs_a_price() -> None:
    plain, limited = (SFTConfig(source="teacher", teacher_model="m", teacher_budget=b) for b in (None, "5usd"))
    names = set(SFTConfig.model_fields) - limited.inert()
    assert plain.model_dump(include=names) == limited.model_dump(include=names)
    plain.check_price()
    with pytest.raises(StepladderError, match="'m'"):
        limited.check_price()
    with pytest.raises(StepladderError, match="teacher_budget has no effect with source: gold"):
        SFTConfig.read({"source": "gold", "teacher_budget": "5usd"})


def test_no_transcripts_at_all_is_an_error_that_says_why(tmp_path: Path) -> None:
    context = TrainingContext(make_agent("prorag"), [PLAIN], (), WordRetriever(PASSAGES), EPISODE, tmp_path)
    with pytest.raises(
        StepladderError, match=r"no demonstrations, of 1 requested \(dropped: no_decomposition 1\).*bootstrap"
    ):
        load_or_make(SFTConfig(), context, Paid(), [PLAIN])
