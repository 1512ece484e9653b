"""Strict and lenient formats: what counts as an action, hints after slips, forced answers, texts from files.

Scripted policies write what prompted models have been seen to write.
"""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from stepladder.agents import AGENTS, Format, Play, make_agent
from stepladder.core.requests import Generate
from stepladder.core.trace import Action, ActionKind, Author, Segment, Step, StopReason, Trajectory
from stepladder.oracle.agent_check import check_agent
from tests.support.prompted_texts import IDLE, SEARCH, lenient, play
from tests.support.samples import PASSAGES, QUESTION

ANSWER, QUERY, MALFORMED = ActionKind.ANSWER, ActionKind.QUERY, ActionKind.MALFORMED
SINGLE = ("direct", "cot", "rag")
SEARCHING = ("react", "search-r1", "prorag", "reasonrag", "search-o1", "research")


def kinds(trajectory: Trajectory) -> list[str]:
    return [step.action.kind.value for step in trajectory.steps]


def start(name: str) -> Trajectory:
    return Trajectory(QUESTION, name)


# --- Reading ------------------------------------------------------------------------------------------------


@given(
    st.text(alphabet='<>/abcANSWERanswersearchstepthinkquery[]{}": \n', max_size=80), st.sampled_from(sorted(AGENTS))
)
def test_what_strict_accepts_is_the_same_in_every_format_and_nothing_raises(text: str, name: str) -> None:
    agent = make_agent(name)
    strict = agent.parse(text, start(name))
    for play_format in Format:
        read = agent.playing(Play.of(play_format)).read_action(text, start(name))
        if strict.kind is not MALFORMED or play_format is Format.STRICT:
            assert read == strict
        elif read.kind is not MALFORMED:
            assert read.content.strip()
            assert read.problem == strict.problem


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("direct", "The Big Broadcast Of 1936", (ANSWER, "The Big Broadcast Of 1936", "")),
        ("direct", "The answer is Guido d'Arezzo.", (ANSWER, "Guido d'Arezzo.", "")),
        ("direct", "Answer: 1936\n\nIt was filmed in 1935.", (ANSWER, "1936", "")),
        ("direct", "Rome\n\nRome is the capital of Italy.", (ANSWER, "Rome", "")),
        ("direct", "**Rome**", (ANSWER, "Rome", "")),
        ("direct", "<answer>Rome", (ANSWER, "Rome", "")),
        ("direct", "Sure! <answer>Rome</answer> I hope this helps.", (ANSWER, "Rome", "Sure!")),
        ("cot", "It is in Italy.\nTherefore, the answer is: Rome", (ANSWER, "Rome", "It is in Italy.\nTherefore,")),
        (
            "cot",
            "Italy?\nRome\nThis answer is based on Italy.",
            (ANSWER, "This answer is based on Italy.", "Italy?\nRome"),
        ),
        ("cot", "**Answer:** Rome", (ANSWER, "Rome", "")),
        ("cot", "<step>It is in Italy.</step> Rome", (ANSWER, "Rome", "It is in Italy.")),
        ("rag", "\\boxed{Rome}", (ANSWER, "Rome", "")),
        (
            "prorag",
            "<step>Thought</step>: I need the director.\n<subquery>Who directed it?</subquery>:",
            (QUERY, "Who directed it?", "Thought: I need the director."),
        ),
        ("prorag", "<subquery>Who?</subquery>", (QUERY, "Who?", "")),
        ("search-r1", "I should look.\n<search> Orm </search>", (QUERY, "Orm", "I should look.")),
        ("search-r1", "<answer>Rome</answer>", (ANSWER, "Rome", "")),
        ("search-r1", "<think>a</think><SEARCH>Orm</SEARCH>", (QUERY, "Orm", "a")),
        ("react", "Action: Finish[Rome]", (ANSWER, "Rome", "")),
        ("react", "Thought: Hm.\nAction 2: Search[Orm [tower]]", (QUERY, "Orm [tower]", "Hm.")),
        ("react", "Search[Orm] and then Finish[x]", (QUERY, "Orm", "")),
        ("react", "Thought: Hm.\nAction: Finish[Rome", (ANSWER, "Rome", "Hm.")),
        ("reasonrag", "So the next query is Who built it?\n", (QUERY, "Who built it?", "")),
        (
            "reasonrag",
            "All is known. So the answer is <answer>Rome",
            (ANSWER, "Rome", "All is known."),
        ),
        ("reasonrag", "<query>a</query> or <answer>b</answer>", (QUERY, "a", "")),
        ("search-o1", '```json\n{"query": "Orm"}\n```', (QUERY, "Orm", "")),
        ("research", 'First: {"query": "Orm"} then {"answer": "x"}', (QUERY, "Orm", "First:")),
        ("research", '{"analysis": "R.", "predicted_answer": "Rome"}', (ANSWER, "Rome", "R.")),
    ],
)
def test_lenient_takes_the_first_complete_action(name: str, text: str, expected: tuple[ActionKind, str, str]) -> None:
    action = lenient(name).read_action(text, start(name))
    assert (action.kind, action.content, action.thought) == expected
    assert make_agent(name).read_action(text, start(name)).kind is MALFORMED
    assert action.problem  # what the strict format objects to is kept


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, IDLE) for name in SEARCHING),
        *((name, "") for name in AGENTS),
        ("search-r1", "The answer is 10."),  # an agent that can search is told the format instead
        ("search-r1", "<search> </search>"),
        ("search-r1", "Hm. <information>[1] x</information><answer>x</answer>"),
        ("prorag", "<retrieval><answer>x</answer></retrieval>"),
        ("react", "Hm.\nObservation:\n[1] Orm\nAction: Finish[x]"),
        ("prorag", "I will answer inside <answer> tags."),
        ("react", "Thought: I could use Search[] here."),
        ("reasonrag", "<evidence>Nothing helps.</evidence>"),  # there are no passages
        ("search-o1", "<result>x</result>"),
        ("research", '{"reasoning": "Hm."}'),
        ("search-r1", "<search>" + "long\n" * 100),  # not closed, and not a line
    ],
)
def test_text_without_an_action_stays_malformed(name: str, text: str) -> None:
    action = lenient(name).read_action(text, start(name))
    assert action.kind is MALFORMED
    assert action.content == text
    assert action.problem


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("prorag", ActionKind.SUB_ANSWER),
        ("reasonrag", ActionKind.EVIDENCE),
        ("search-o1", ActionKind.SUB_ANSWER),
        ("research", ActionKind.SUB_ANSWER),
    ],
)
def test_untagged_text_counts_where_only_one_kind_of_action_may_follow(name: str, kind: ActionKind) -> None:
    agent = lenient(name)
    query = Action(QUERY, "Orm")
    asked = start(name).extend(Step(agent.render(start(name)), Segment(Author.POLICY, "x"), query, PASSAGES[:1]))
    action = agent.read_action("Ada Tarn designed it.", asked)
    assert (action.kind, action.content) == (kind, "Ada Tarn designed it.")
    # Another search, or the answer at once, are taken as well.
    assert agent.read_action(SEARCH[name], asked).kind is QUERY


# --- Slips and forced answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEARCHING)
def test_a_slip_is_answered_by_a_hint_and_the_episode_goes_on(name: str) -> None:
    agent = lenient(name)
    answer = agent.write(Action(ANSWER, "Velm", "So."), start(name))
    trajectory = play(agent, [IDLE, answer])
    assert kinds(trajectory) == ["malformed", "answer"]
    assert trajectory.stop is StopReason.ANSWERED
    assert trajectory.answer == "Velm"
    hinted = trajectory.steps[1].read
    assert agent.hint.split()[0] in hinted[-1].text
    assert hinted[-1].author is (Author.PROMPT if trajectory.steps[1].restarts else Author.ENVIRONMENT)
    # The strict format ends here.
    strict = play(make_agent(name), [IDLE, answer])
    assert (kinds(strict), strict.stop) == (["malformed"], StopReason.MALFORMED)


@pytest.mark.parametrize("name", SEARCHING)
def test_after_the_last_slip_the_answer_is_asked_for_once(name: str) -> None:
    trajectory = play(lenient(name), [IDLE, IDLE, IDLE, "It is Velm."])
    assert kinds(trajectory) == ["malformed"] * 3 + ["answer"]
    assert (trajectory.answer, trajectory.stop) == ("It is Velm.", StopReason.FORCED)
    assert not trajectory.is_strict
    unforced = play(lenient(name, force_answer=False), [IDLE])
    assert (kinds(unforced), unforced.stop) == (["malformed"] * 3, StopReason.MALFORMED)
    silent = play(lenient(name), [IDLE, IDLE, IDLE, " "])
    assert (kinds(silent), silent.stop) == (["malformed"] * 4, StopReason.MALFORMED)


@pytest.mark.parametrize("name", SEARCHING)
def test_at_the_step_limit_the_answer_is_asked_for_after_the_passages(name: str) -> None:
    prompts: list[str] = []

    def searching(request: Generate) -> str:
        prompts.append("".join(segment.text for segment in request.context))
        return "Velm" if len(prompts) == 2 else SEARCH[name]

    trajectory = play(lenient(name), searching, max_steps=1)
    assert kinds(trajectory) == ["query", "answer"]
    assert (trajectory.answer, trajectory.stop) == ("Velm", StopReason.FORCED)
    assert "Ada Tarn in 1871" in prompts[1]  # what the last search found can be read
    assert play(make_agent(name), [SEARCH[name]], max_steps=1).stop is StopReason.STEP_LIMIT


@pytest.mark.parametrize("name", SEARCHING)
def test_the_slips_before_it_are_no_part_of_the_request_for_an_answer(name: str) -> None:
    trajectory = play(lenient(name), [IDLE, IDLE, IDLE, "It is Velm."])
    assert kinds(trajectory) == [*["malformed"] * 3, "answer"]
    assert IDLE not in "".join(segment.text for segment in trajectory.consumed(3))


@pytest.mark.parametrize("name", ["react", "search-r1"])
def test_what_was_found_before_the_slips_is_part_of_it(name: str) -> None:
    replies = [SEARCH[name], IDLE, IDLE, IDLE, "It is Velm."]
    trajectory = play(lenient(name), replies)
    assert kinds(trajectory) == ["query", *["malformed"] * 3, "answer"]
    asked = "".join(segment.text for segment in trajectory.consumed(4))
    assert IDLE not in asked
    assert "Ada Tarn in 1871" in asked
    assert not play(lenient(name).in_single_context(), replies).steps[4].restarts


@pytest.mark.parametrize("name", sorted({*SEARCHING} - {"research"}))  # its queries come with a draft of the answer
def test_a_policy_that_searches_when_asked_for_its_answer_gives_none(name: str) -> None:
    trajectory = play(lenient(name), [SEARCH[name], SEARCH[name]], max_steps=1)
    assert (kinds(trajectory), trajectory.answer) == (["query", "malformed"], None)


def test_a_strict_answer_can_be_forced_too_and_has_to_parse() -> None:
    agent = make_agent("search-r1", play=Play(force_answer=True))
    good = "<think>So.</think><answer>Velm</answer>"
    assert play(agent, [SEARCH["search-r1"], good], max_steps=1).stop is StopReason.FORCED
    assert play(agent, [SEARCH["search-r1"], "Velm"], max_steps=1).stop is StopReason.MALFORMED


@pytest.mark.parametrize("name", SEARCHING)
@pytest.mark.parametrize("play_format", ["lenient", "constrained"])
def test_a_search_with_the_words_of_an_earlier_one_is_the_last(name: str, play_format: str) -> None:
    contexts: list[str] = []

    def policy(request: Generate) -> str:
        assert request.trajectory is not None
        contexts.append("".join(segment.text for segment in request.context))
        (summary, *others) = make_agent(name).expected(request.trajectory)
        searches = len(request.trajectory.queries)
        if searches == 3:
            return "Velm"
        if not others:
            return make_agent(name).write(Action(summary, "Nobody knows", "Hm."), request.trajectory)
        return SEARCH[name].replace("Orm Tower", ["Orm Tower", "born in Velm", "the orm  tower!"][searches])

    trajectory = play(make_agent(name, play=Play.of(play_format)), policy)
    assert kinds(trajectory)[-2:] == ["query", "answer"]
    assert (len(trajectory.queries), trajectory.answer, trajectory.stop) == (3, "Velm", StopReason.FORCED)
    assert all(passage.text in contexts[-1] for passage in PASSAGES[:2])  # of all searches, whatever became of them
    assert contexts[-1].endswith(f": {QUESTION.text}\n")  # right before the policy's turn
    for other in (Play(), Play(force_answer=True), replace(Play.of(play_format), force_answer=False)):
        assert play(make_agent(name, play=other), policy).stop is not StopReason.FORCED


@pytest.mark.parametrize(
    ("name", "steps"),
    [("search-r1", ["query"] * 2), ("prorag", ["query", "sub_answer"] * 2), ("reasonrag", ["query", "evidence"] * 2)],
)
def test_searches_can_be_limited_as_papers_do(name: str, steps: list[str]) -> None:
    def policy(request: Generate) -> str:
        assert request.trajectory is not None
        taken = kinds(request.trajectory)
        return (
            "Ada Tarn"
            if len(taken) == len(steps) or (taken and taken[-1] == "query" and name != "search-r1")
            else SEARCH[name].replace("Orm Tower", f"Orm Tower {len(taken)}")
        )

    trajectory = play(lenient(name, max_searches=2), policy)
    assert kinds(trajectory) == [*steps, "answer"]
    assert trajectory.stop is StopReason.FORCED


@pytest.mark.parametrize("name", ["reasonrag", "search-o1", "research"])
def test_two_slips_in_a_row_read_different_prompts(name: str) -> None:
    prompts: list[str] = []

    def idle(request: Generate) -> str:
        prompts.append(request.context[0].text)
        return IDLE

    play(lenient(name), idle)
    assert len(set(prompts)) == len(prompts) == 4


@pytest.mark.parametrize(
    ("name", "opening", "written", "answer"),
    [
        ("search-r1", "<think>", "Hm.</think><search>Orm Tower</search>", "Velm</answer>"),
        ("prorag", "<step>", "Hm.</step><subquery>Orm Tower</subquery>", "Velm"),
        ("react", "Thought:", " Hm.\nAction: Search[Orm Tower]\n", "Velm]\n"),
    ],
)
def test_turns_can_be_begun_for_a_model(name: str, opening: str, written: str, answer: str) -> None:
    agent = lenient(name, prime=True, max_searches=1)
    trajectory = play(
        agent,
        [written, "Ada Tarn</step><subanswer>Ada Tarn</subanswer>", answer] if name == "prorag" else [written, answer],
    )
    first, last = trajectory.steps[0], trajectory.steps[-1]
    assert [segment.author for segment in first.read] == [Author.PROMPT, Author.ENVIRONMENT]
    assert first.read[-1].text == opening
    assert (first.action.kind, first.action.thought, first.action.problem) == (
        QUERY,
        "Hm.",
        "",
    )  # strictly in the format
    assert last.read[-1].text == agent.answer_opening
    assert (trajectory.answer, trajectory.stop) == ("Velm", StopReason.FORCED)
    # A model that begins its turn itself is read as well.
    assert play(agent, [SEARCH[name], answer]).steps[0].action == replace(first.action, problem="")


@pytest.mark.parametrize(
    ("name", "openings", "written"),
    [
        ("reasonrag", ["", "<evidence>", "<answer>"], [SEARCH["reasonrag"], "Ada Tarn</evidence>", "Velm</answer>"]),
        ("search-o1", ["", "<result>", "<answer>"], [SEARCH["search-o1"], "Ada Tarn</result>", "Velm</answer>"]),
        (
            "research",
            ['{"reasoning": "', '{"result": "', '{"answer": "'],
            ['Hm.", "answer": "unknown", "claim": "c", "query": "Orm"}\n', 'Ada Tarn"}\n', 'Velm"}\n'],
        ),
    ],
)
def test_states_with_one_kind_of_action_can_be_begun(name: str, openings: list[str], written: list[str]) -> None:
    trajectory = play(lenient(name, prime=True, max_searches=1), written)
    assert [step.read[-1].text if len(step.read) > 1 else "" for step in trajectory.steps] == openings
    assert all(step.restarts or not number for number, step in enumerate(trajectory.steps))
    assert (trajectory.answer, trajectory.stop) == ("Velm", StopReason.FORCED)
    assert not any(step.action.problem for step in trajectory.steps)  # strictly in the format
    untagged = play(lenient(name, prime=True, max_searches=1), [written[0], "Ada Tarn", "Velm"])
    assert (untagged.steps[1].action.content, untagged.answer) == ("Ada Tarn", "Velm")


@pytest.mark.parametrize(
    ("name", "opening", "written"),
    [
        ("search-r1", "<search>", "Orm Tower</search>"),
        ("prorag", "<subquery>", "Orm Tower"),
        ("react", "Action: Search[", "Orm Tower]\n"),
        ("reasonrag", "<query>", "Orm Tower</query>"),
        ("search-o1", "<search>", "Orm Tower"),
    ],
)
def test_a_model_that_only_slips_is_led_to_a_search(name: str, opening: str, written: str) -> None:
    trajectory = play(lenient(name, prime=True), [IDLE, written, "Velm"], max_steps=2)
    assert trajectory.steps[1].read[-1].text == opening
    assert kinds(trajectory) == ["malformed", "query", "answer"]
    assert trajectory.queries == ("Orm Tower",)
    # After "<answer>" the answer comes first, and what follows explains it.
    explained = play(lenient(name, prime=True), [IDLE, written, "Velm\nIt is on the Oss.\n\nSo."], max_steps=2)
    assert explained.answer == "Velm"


@pytest.mark.parametrize(
    ("name", "summary", "choice", "kind"),
    [
        ("reasonrag", "Ada Tarn</evidence>", "query>Ada Tarn</query>", "query"),
        ("reasonrag", "Ada Tarn</evidence>", "answer>Velm</answer>", "answer"),
        ("search-o1", "Ada Tarn</result>", "search>Ada Tarn", "query"),
        ("search-o1", "Ada Tarn</result>", "answer>Velm</answer>", "answer"),
    ],
)
def test_a_thought_without_an_action_is_followed_by_the_beginning_of_a_tag(
    name: str, summary: str, choice: str, kind: str
) -> None:
    written = [SEARCH[name], summary, "She designed it.", choice, "Velm"]
    trajectory = play(lenient(name, prime=True), written, max_steps=4)
    assert kinds(trajectory)[2:4] == ["malformed", kind]
    assert trajectory.steps[3].read[-1].text == "<"
    unprimed = play(lenient(name), [*written[:3], f"<{choice}", "Velm"], max_steps=4)
    assert kinds(unprimed)[2:4] == ["malformed", kind]
    assert unprimed.steps[3].read[-1].text != "<"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Ada Tarn was born there. Therefore, the answer is Velm.", "Velm."),
        ("She was born there. Thus the answer is: Velm", "Velm"),
        ("Hence the answer is **Velm**", "**Velm**"),
        ("I do not know what the answer is Velm or not", None),
        ("Therefore, the answer is", None),
    ],
)
def test_reasonrag_takes_the_sentence_that_states_the_answer(text: str, answer: str | None) -> None:
    action = lenient("reasonrag").read_action(text, start("reasonrag"))
    assert (action.content if action.kind is ActionKind.ANSWER else None) == answer


@pytest.mark.parametrize("name", SINGLE)
def test_answers_can_be_begun_for_a_model(name: str) -> None:
    agent = lenient(name, prime=True)
    assert agent.context(start(name))[-1].text == ("<step>" if name == "cot" else "<answer>")
    for text in ("Rome", "Rome</answer>", "<answer>Rome</answer>"):
        assert agent.read_action(text if name != "cot" else f"Hm.</step>{text}", start(name)).content == "Rome"


def test_the_stops_of_the_lenient_format_end_before_an_invented_observation() -> None:
    assert lenient("search-r1").stop_strings == ("</search>", "</answer>", "<information>")
    assert lenient("react").stop_strings == ("]\n", "\nObservation")
    for name in AGENTS:
        assert make_agent(name).stop_strings == make_agent(name).stops
        assert len(lenient(name).stop_strings) <= 4  # as many as OpenAI accepts


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_every_agent_keeps_its_contract_when_it_is_played_leniently(name: str) -> None:
    check_agent(lenient(name))
