"""Episodes: every way to end, and that token ids are the engine's own, step after step, for every agent."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepladder.agents import AGENTS, make_agent
from stepladder.agents.base import prompt_segment
from stepladder.agents.direct import Direct
from stepladder.core.errors import BackendError
from stepladder.core.requests import Algorithm, Generate, Generation, Sampling
from stepladder.core.trace import Action, ActionKind, Author, Hop, Question, Segment, Step, StopReason, Trajectory
from stepladder.driver import Driver
from stepladder.engines.base import Engine
from stepladder.engines.scripted import ScriptedEngine
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.explore.episode import EpisodeConfig, episode, watch_states
from stepladder.oracle.engine import UNKNOWN, OracleEngine, fill_references, gold_action
from tests.support.samples import WordRetriever

QUERY = "<step>Ask.</step><subquery>Who designed Orm Tower?</subquery>"
DEFAULTS = EpisodeConfig()
SUB_ANSWER = "<step>Read.</step><subanswer>Ada Tarn</subanswer>"
ANSWER = "<step>Done.</step><answer>Velm</answer>"


def play(
    question: Question,
    engine: Engine,
    agent: str = "prorag",
    settings: EpisodeConfig = DEFAULTS,
    seed: int = 0,
) -> Trajectory:
    (outcome,) = Driver(engine, WordRetriever()).run([lambda: episode(make_agent(agent), question, settings, seed)])
    assert outcome.value is not None, outcome.failure
    return outcome.value


def scripted(*lines: str) -> ScriptedEngine:
    return ScriptedEngine({"q1": lines})


def test_an_episode_ends_with_its_answer(question: Question) -> None:
    trajectory = play(question, scripted(QUERY, SUB_ANSWER, ANSWER))
    assert (trajectory.stop, trajectory.answer) == (StopReason.ANSWERED, "Velm")
    assert trajectory.queries == ("Who designed Orm Tower?",)
    assert [len(step.passages) for step in trajectory.steps] == [3, 0, 0]
    assert "Orm Tower was designed by Ada Tarn" in trajectory.steps[1].read[0].text


@pytest.mark.parametrize(
    ("lines", "settings", "stop"),
    [
        (["I think it is Velm."], EpisodeConfig(), StopReason.MALFORMED),
        ([QUERY, SUB_ANSWER, QUERY], EpisodeConfig(max_steps=3), StopReason.STEP_LIMIT),
        ([QUERY], EpisodeConfig(sampling=Sampling(max_tokens=10)), StopReason.TOKEN_LIMIT),
    ],
)
def test_every_other_end_has_a_name(
    question: Question, lines: list[str], settings: EpisodeConfig, stop: StopReason
) -> None:
    trajectory = play(question, scripted(*lines), settings=settings)
    assert trajectory.stop is stop
    assert trajectory.answer is None


def test_a_transcript_that_outgrows_the_model_ends_at_the_context_limit(question: Question) -> None:
    engine = TransformersEngine("tiny", device="cpu")
    engine.context_limit = 100  # the prompt alone is longer
    trajectory = play(question, engine)
    assert (trajectory.stop, trajectory.steps) == (StopReason.CONTEXT_LIMIT, ())


def test_rag_searches_once_with_the_question(question: Question) -> None:
    trajectory = play(question, ScriptedEngine({"q1": ["<answer>Velm</answer>"]}), agent="rag")
    assert len(trajectory.given) == 3
    assert trajectory.queries == ()
    assert "born in Velm" in trajectory.steps[0].read[0].text


# --- token exactness ---------------------------------------------------------------------------------------


class Recorder(Engine):
    """Passes requests on, and records the token ids that went in and came out."""

    name = "recorder"

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.max_batch = inner.max_batch
        self.seen: list[tuple[list[int], tuple[int, ...]]] = []

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        replies = self.inner.generate(requests)
        for reply in replies:
            assert isinstance(reply, Generation)
            self.seen.append(([id for part in reply.context for id in part.tokens], reply.written.tokens))
        return replies


class Puppet(TransformersEngine):
    """A real model whose logits are overruled, so that it writes given text through the real decoding loop."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("tiny", device="cpu", prefix_bytes=0)  # every step reads its whole context
        self.lines = list(lines)
        self.fed: list[list[int]] = []
        forward = self.model.forward

        def overruled(input_ids, position_ids, **rest):  # type: ignore[no-untyped-def]
            output = forward(input_ids=input_ids, position_ids=position_ids, **rest)
            if position_ids[0, 0] == 0:
                self.fed.append(input_ids[0].tolist())  # exactly what the network read as context
                self.script = iter([*self.tokenizer(self.lines.pop(0))["input_ids"], 256])
            output.logits[:, -1] = -100.0
            output.logits[:, -1, next(self.script)] = 100.0
            return output

        self.model.forward = overruled


QUERY_BLOCK = "<query>Who designed Orm Tower?</query>"
LINES = {
    "prorag": [QUERY, SUB_ANSWER, QUERY, SUB_ANSWER, ANSWER],
    "prorag-brief": [QUERY, SUB_ANSWER, ANSWER],
    "cot": ["<step>Hm.</step><answer>Velm</answer>"],
    "direct": ["<answer>Velm</answer>"],
    "rag": ["<answer>Velm é</answer>"],
    "reasonrag": [f"Hm.\n{QUERY_BLOCK}", "Read.\n<evidence>It was Ada Tarn.</evidence>", "<answer>Velm é</answer>"],
    "reasonrag-brief": [QUERY_BLOCK, "<evidence>It was Ada Tarn.</evidence>", "Done.\n<answer>Velm</answer>"],
    "react": ["Thought: Hm.\nAction: Search[Orm Tower]\n", "Thought: Ah.\nAction: Finish[Velm é]\n"],
    "research": ['{"answer": "unknown", "query": "Orm?"}\n', '{"result": "Ada"}\n', '{"answer": "Velm"}\n'],
    "search-o1": ["Hm. <search>Orm Tower</search>", "<result>Ada Tarn</result>", "<answer>Velm</answer>"],
    "search-r1": ["<think>Hm.</think><search>Orm?</search>", "<think>Ah.</think><answer>Velm</answer>"],
}
LINES |= {f"{agent}-brief": LINES[agent] for agent in ("react", "research", "search-o1", "search-r1")}


@pytest.mark.parametrize("agent", AGENTS)
def test_stored_ids_are_those_the_model_read_and_wrote(question: Question, agent: str) -> None:
    """With a real tokenizer and decoding loop, observed at the network's own input."""
    engine = Puppet(LINES[agent])
    trajectory = play(question, engine, agent)
    assert trajectory.stop is StopReason.ANSWERED
    assert len(trajectory.steps) == len(engine.fed) == len(LINES[agent])
    for index, (step, read) in enumerate(zip(trajectory.steps, engine.fed)):
        assert [token for part in trajectory.consumed(index) for token in part.tokens] == read
        assert engine.decode(step.written.tokens) == step.written.text == LINES[agent][index]
        assert len(step.written.logprobs) == len(step.written.tokens)
    # What was written in one step is read in the next with the very same ids, wherever the transcript goes on.
    for step, before, after in zip(trajectory.steps[1:], engine.fed, engine.fed[1:]):
        assert step.restarts or after[: len(before)] == before


@pytest.mark.parametrize("agent", AGENTS)
def test_stored_ids_survive_a_model_that_writes_nonsense(question: Question, agent: str) -> None:
    """Random bytes, invalid UTF-8 among them: decoding and encoding again would not give the same ids."""
    engine = Recorder(TransformersEngine("tiny", device="cpu"))
    settings = EpisodeConfig(sampling=Sampling(temperature=1.0, max_tokens=30))
    lossy = 0
    for seed in range(5):
        engine.seen.clear()
        trajectory = play(question, engine, agent, settings, seed)
        ((read, written),) = engine.seen
        assert [token for part in trajectory.consumed(0) for token in part.tokens] == read
        assert trajectory.steps[0].written.tokens == written
        again = engine.inner.tokenizer(trajectory.steps[0].written.text)["input_ids"]  # type: ignore[attr-defined]
        lossy += tuple(again) != written
    assert lossy, "the test should meet text that cannot be encoded back"


def test_authors_are_marked(question: Question) -> None:
    trajectory = play(question, scripted(QUERY, SUB_ANSWER, ANSWER))
    marks = [(segment.author, segment.text[:12]) for segment in trajectory.context()]
    assert marks == [
        (Author.PROMPT, "Answer the q"),
        (Author.POLICY, "<step>Ask.</"),
        (Author.ENVIRONMENT, "\n<retrieval>"),
        (Author.POLICY, "<step>Read.<"),
        (Author.POLICY, "<step>Done.<"),
    ]


# --- the gold oracle ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS)
def test_the_gold_engine_plays_every_agent(question: Question, agent: str) -> None:
    trajectory = play(question, OracleEngine(make_agent(agent)), agent)
    assert (trajectory.stop, trajectory.answer) == (StopReason.ANSWERED, "Velm")


def test_gold_sub_questions_are_filled_with_earlier_answers(question: Question) -> None:
    trajectory = play(question, OracleEngine(make_agent("prorag")))
    assert trajectory.queries == ("Who designed Orm Tower?", "Where was Ada Tarn born?")
    assert fill_references("#1, #2 and #10", {1: "a", 10: "b"}) == "a, #2 and b"


def test_the_oracle_knows_no_more_than_the_search_returned(question: Question) -> None:
    unfindable = replace(question, hops=(question.hops[0], replace(question.hops[1], passages=("nowhere",))))
    trajectory = play(unfindable, OracleEngine(make_agent("prorag")))
    assert trajectory.answer == UNKNOWN
    assert [step.action.content for step in trajectory.steps[1::2]] == ["Ada Tarn", UNKNOWN]


def test_conclusions_need_no_search(question: Question) -> None:
    hops = (*question.hops, Hop("Is #1 from #2?", "yes"))
    trajectory = play(replace(question, hops=hops, answers=("yes",)), OracleEngine(make_agent("prorag")))
    assert (len(trajectory.queries), trajectory.answer) == (2, "yes")


def test_without_a_decomposition_the_oracle_asks_the_question_itself(question: Question) -> None:
    bare = replace(question, hops=())
    trajectory = play(bare, OracleEngine(make_agent("prorag")))
    assert (trajectory.queries, trajectory.answer) == ((question.text,), "Velm")


def test_onlookers_see_every_state(question: Question) -> None:
    lengths: list[int] = []

    def job() -> Algorithm[Trajectory]:
        played = episode(make_agent("prorag"), question, DEFAULTS, 0)
        return watch_states(played, lambda state: lengths.append(len(state.steps)))

    Driver(scripted(QUERY, SUB_ANSWER, ANSWER), WordRetriever()).run([job])
    assert lengths == [0, 1, 2, 3]


def test_a_watched_algorithm_still_handles_its_own_errors() -> None:
    def careful() -> Algorithm[str]:
        try:
            yield Generate((Segment(Author.PROMPT, "x"),))
        except ValueError:
            return "handled"
        return "not reached"

    def broken(request: Generate) -> str:
        raise ValueError("no")

    (outcome,) = Driver(ScriptedEngine(broken)).run([lambda: watch_states(careful(), lambda state: None)])
    assert outcome.value == "handled"


# --- settings and seeds ------------------------------------------------------------------------------------


def test_every_step_has_a_seed_of_its_own_and_every_sample_too(question: Question) -> None:
    seeds: list[int] = []
    lines = [QUERY, SUB_ANSWER, ANSWER]

    def note(request: Generate) -> str:
        assert request.trajectory is not None
        seeds.append(request.seed)
        return lines[len(request.trajectory.steps)]

    warm = EpisodeConfig(sampling=Sampling(1.0))
    for seed in (0, 1):
        assert play(question, ScriptedEngine(note), settings=warm, seed=seed).seed == seed
    assert len(set(seeds)) == 6


def test_where_nothing_is_drawn_equal_states_ask_for_the_same(question: Question) -> None:
    seeds: set[int] = set()

    def note(request: Generate) -> str:
        seeds.add(request.seed)
        return ANSWER

    for seed in (0, 1):
        play(question, ScriptedEngine(note), seed=seed)
    assert seeds == {0}


@pytest.mark.parametrize(("agent", "lines"), [("prorag", [QUERY, SUB_ANSWER, ANSWER]), ("rag", ["<answer>x</answer>"])])
def test_k_is_the_number_of_passages(question: Question, agent: str, lines: list[str]) -> None:
    trajectory = play(question, ScriptedEngine({"q1": lines}), agent, EpisodeConfig(k=2))
    assert len(trajectory.found) == 2


def test_what_nobody_would_read_is_not_searched_for(question: Question) -> None:
    trajectory = play(question, scripted(QUERY), settings=EpisodeConfig(max_steps=1))
    assert (trajectory.stop, trajectory.found) == (StopReason.STEP_LIMIT, ())


def test_a_window_that_fills_up_while_writing_is_a_context_limit_too(question: Question) -> None:
    engine = TransformersEngine("tiny", device="cpu")
    prompt = make_agent("prorag").render(Trajectory(question, "prorag"))[0].text
    engine.context_limit = len(prompt.encode()) + 5
    trajectory = play(question, engine)
    assert trajectory.stop is StopReason.CONTEXT_LIMIT
    assert len(trajectory.steps[0].written.tokens) == 5


def test_only_the_text_up_to_the_stop_is_parsed(question: Question) -> None:
    class Overshooting(ScriptedEngine):
        """Its last token runs past the stop string, as those of real tokenizers do."""

        def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
            replies = super().generate(requests)
            return [
                replace(reply, written=replace(reply.written, text=reply.text + "\n<", tokens=(), logprobs=()))
                for reply in replies
                if isinstance(reply, Generation)
            ]

    trajectory = play(question, Overshooting({"q1": [ANSWER]}))
    assert (trajectory.answer, trajectory.steps[0].written.text[-2:]) == ("Velm", "\n<")


class Forgetful(Direct):
    """Begins anew with every step, as agents that are state machines of prompts do."""

    name = "forgetful"
    kinds = frozenset({ActionKind.QUERY, ActionKind.ANSWER})

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        notes = " ".join(passage.title for passage in trajectory.found)
        return (prompt_segment(f"{trajectory.question.text} Notes: {notes}"),)

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        return super().parse(text, trajectory) if "<answer>" in text else Action(ActionKind.QUERY, text)


def test_a_context_that_begins_anew_is_stored_as_it_was_read(question: Question) -> None:
    agent, engine = Forgetful(), Recorder(ScriptedEngine({"q1": ["Orm Tower", "Ada Tarn", "<answer>Velm</answer>"]}))
    (outcome,) = Driver(engine, WordRetriever()).run([lambda: episode(agent, question, EpisodeConfig(k=1), 0)])
    trajectory = outcome.value
    assert trajectory is not None
    assert [step.restarts for step in trajectory.steps] == [False, True, True]
    for index, (read, written) in enumerate(engine.seen):
        assert [token for part in trajectory.consumed(index) for token in part.tokens] == read
        assert trajectory.steps[index].written.tokens == written


# --- the oracle off its path -------------------------------------------------------------------------------


def test_the_oracle_takes_over_after_queries_that_led_nowhere(question: Question) -> None:
    lost = Step((), Segment(Author.POLICY, "?"), Action(ActionKind.QUERY, "weather"), ())
    started = Trajectory(question, "x", (lost,))
    kinds = frozenset({ActionKind.QUERY, ActionKind.SUB_ANSWER, ActionKind.ANSWER})
    assert gold_action(started, kinds).content == UNKNOWN, "nothing was found by that query"
    read = Step((), Segment(Author.POLICY, "?"), Action(ActionKind.SUB_ANSWER, "?"))
    assert gold_action(started.extend(read), kinds).content == "Who designed Orm Tower?"


def test_references_to_conclusions_are_filled_too(question: Question) -> None:
    hops = (question.hops[0], Hop("So who is it, #1?", "Ada Tarn"), Hop("Where was #2 born?", "Velm", ("p2",)))
    trajectory = play(replace(question, hops=hops), OracleEngine(make_agent("prorag")))
    assert trajectory.queries[-1] == "Where was Ada Tarn born?"


def test_without_a_decomposition_every_gold_passage_is_needed(question: Question) -> None:
    bare = replace(question, hops=(), gold_passages=(("p1",), ("nowhere",)))
    assert play(bare, OracleEngine(make_agent("prorag"))).answer == UNKNOWN
    assert play(bare, OracleEngine(make_agent("rag")), "rag").answer == UNKNOWN


def test_without_gold_passages_the_answer_must_stand_in_a_passage_as_a_word(question: Question) -> None:
    bare = replace(question, hops=(), gold_passages=())
    assert play(bare, OracleEngine(make_agent("prorag"))).answer == "Velm"
    assert play(replace(bare, answers=("arch",)), OracleEngine(make_agent("prorag"))).answer == UNKNOWN
    assert play(replace(bare, answers=("Velm.",)), OracleEngine(make_agent("prorag"))).answer == "Velm."
    assert play(replace(bare, answers=(" ",)), OracleEngine(make_agent("prorag"))).answer == UNKNOWN


def test_sub_questions_that_differ_in_a_sign_are_two(question: Question) -> None:
    hops = (Hop("Who made C++?", "Ada Tarn", ("p1",)), Hop("Who made C#?", "Velm", ("p2",)))
    trajectory = play(replace(question, hops=hops), OracleEngine(make_agent("prorag")))
    assert trajectory.queries == ("Who made C++?", "Who made C#?")
    assert trajectory.answer == "Velm"


def test_a_question_nobody_knows_the_answer_to_is_unknown_to_the_oracle(question: Question) -> None:
    assert play(replace(question, answers=(), hops=()), OracleEngine(make_agent("direct")), "direct").answer == UNKNOWN


def test_the_oracle_thinks_of_the_whole_plan_first(question: Question) -> None:
    trajectory = play(question, OracleEngine(make_agent("prorag")))
    first, second = (step.action.thought for step in trajectory.steps if step.action.kind is ActionKind.QUERY)
    assert first == "Plan: 1. Who designed Orm Tower? 2. Where was #1 born?"
    assert second == "Now 2."


def test_with_a_seed_the_oracle_words_its_thoughts_variously_and_does_the_same(question: Question) -> None:
    def played(seed: int | None) -> Trajectory:
        return play(question, OracleEngine(make_agent("prorag"), seed=seed))

    plain = [(step.action.kind, step.action.content) for step in played(None).steps]
    spoken = set()
    for seed in range(20):
        again = played(seed)
        assert [(step.action.kind, step.action.content) for step in again.steps] == plain
        assert again == played(seed)
        spoken.add(tuple(step.action.thought for step in again.steps))
    assert len(spoken) > 10
