"""Traces: what they hold, and that JSON loses nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from stepladder import Question, Step, Trajectory, Tree
from stepladder.core.io.records import SCHEMA_VERSION, RecordError, dumps, loads, read_records, write_records
from stepladder.core.trace import Action, ActionKind, Author, Hop, Node, Passage, Segment, StopReason, TraceError, Usage

texts = st.text(max_size=12)
numbers = st.floats(allow_nan=False)
passages = st.builds(Passage, texts, texts, texts, st.none() | numbers)
questions = st.builds(
    Question,
    texts,
    texts,
    st.lists(texts, max_size=3).map(tuple),
    st.lists(st.builds(Hop, texts, texts, st.tuples(texts), st.tuples(texts)), max_size=2).map(tuple),
    st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    texts,
)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    tokens = draw(st.lists(st.integers(0, 2**31), max_size=4).map(tuple))
    logprobs = tuple(draw(numbers) for _ in tokens) if draw(st.booleans()) else ()
    return Segment(draw(st.sampled_from(Author)), draw(texts), tokens, logprobs)


steps = st.builds(
    Step,
    st.lists(segments(), max_size=2).map(tuple),
    segments(),
    st.builds(Action, st.sampled_from(ActionKind), texts, texts, texts),
    st.lists(passages, max_size=2).map(tuple),
    st.booleans(),
    st.builds(Usage, st.integers(0, 10**9), st.integers(0, 10**9)),
)
trajectories = st.builds(
    Trajectory,
    questions,
    texts,
    st.lists(steps, max_size=3).map(tuple),
    st.none() | st.sampled_from(StopReason),
    st.lists(passages, max_size=2).map(tuple),
    st.integers(0, 2**63 - 1),
)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    nodes = [Node(0, None, None, draw(st.integers(0, 99)), draw(numbers))]
    for number in range(1, draw(st.integers(1, 5))):
        parent = draw(st.integers(0, number - 1))
        scores = draw(st.dictionaries(texts, numbers, max_size=2))
        nodes.append(Node(number, parent, draw(steps), draw(st.integers(0, 99)), draw(numbers), scores=scores))
    return Tree(draw(questions), draw(texts), tuple(nodes))


@settings(max_examples=60)
@given(trajectories)
def test_a_trajectory_survives_json_exactly(trajectory: Trajectory) -> None:
    assert loads(dumps(trajectory), Trajectory) == trajectory


@settings(max_examples=40)
@given(trees())
def test_a_tree_survives_json_exactly(tree: Tree) -> None:
    assert loads(dumps(tree), Tree) == tree


@given(questions)
def test_reordered_keys_are_read_too(question: Question) -> None:
    shuffled = json.dumps(dict(sorted(json.loads(dumps(question)).items(), reverse=True)))
    assert loads(shuffled, Question) == question


def test_floats_keep_every_bit() -> None:
    value = -0.1 - 2**-55
    segment = Segment(Author.POLICY, "x", (1,), (value,))
    step = Step((), segment, Action(ActionKind.ANSWER, "x"))
    again = loads(dumps(Trajectory(Question("q", "?", ("a",)), "direct", (step,))), Trajectory)
    assert again.steps[0].written.logprobs[0].hex() == value.hex()


def test_files_hold_one_record_a_line_whatever_the_text(tmp_path: Path) -> None:
    written = [Question(str(number), "a\nb\u2028c\x85d", ("x",)) for number in range(3)]
    write_records(tmp_path / "questions.jsonl", written)
    assert list(read_records(tmp_path / "questions.jsonl", Question)) == written
    assert (tmp_path / "questions.jsonl").read_bytes().count(b"\n") == 3


def test_an_unknown_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "future.jsonl"
    line = dumps(Question("q", "?", ("a",)))
    newer = line.replace(f'"version":{SCHEMA_VERSION}', f'"version":{SCHEMA_VERSION + 1}')
    path.write_text(f"{line}\n{newer}\n")
    with pytest.raises(RecordError, match=rf"future.jsonl:2: schema version {SCHEMA_VERSION + 1} is unknown.*Update"):
        list(read_records(path, Question))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "'record' or 'version' is missing"),
        ('{"record":"tree","version":1}', "found a 'tree' record where a 'question' was expected"),
        ('{"record":"question","version":1,"id":"q","text":"?"}', "answers.*required"),
        ('{"record":"question","version":1,"id":"q","text":"?","answers":[1]}', r"answers\.0.*valid string"),
        ('{"record":"question","version":1,"id":"q","text":"?","answers":["a"],"huh":1}', "huh"),
    ],
)
def test_what_is_not_a_record_is_refused_with_the_reason(line: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        loads(line, Question)


@pytest.mark.parametrize(
    ("lone", "repaired"),
    [
        (Question("\ud800", "\udfff?", ("a\ud800",)), Question("\ufffd", "\ufffd?", ("a\ufffd",))),
        (Hop("\ud800", "\udcff", ("\ud800",), ("\ud800",)), Hop("\ufffd", "\ufffd", ("\ufffd",), ("\ufffd",))),
        (Passage("\ud83d\ude00", "\ud800", "Zürich \udcff"), Passage("\U0001f600", "\ufffd", "Zürich \ufffd")),
        (Segment(Author.PROMPT, "\ud800"), Segment(Author.PROMPT, "\ufffd")),
        (Action(ActionKind.QUERY, "\ud800", "\ud801"), Action(ActionKind.QUERY, "\ufffd", "\ufffd")),
    ],
)
def test_what_unicode_cannot_hold_is_replaced_in_every_record(lone: object, repaired: object) -> None:
    assert lone == repaired


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such file"):
        list(read_records(tmp_path / "none.jsonl", Tree))


def said(text: str, *, read: str = "", restarts: bool = False) -> Step:
    segments = (Segment(Author.ENVIRONMENT, read, tuple(read.encode())),) if read else ()
    written = Segment(Author.POLICY, text, tuple(text.encode()), (0.0,) * len(text))
    return Step(segments, written, Action(ActionKind.QUERY, text), restarts=restarts)


def test_context_grows_step_by_step_and_begins_anew_where_a_step_restarts(question: Question) -> None:
    trajectory = Trajectory(
        question, "x", (said("a", read="P"), said("b", read="E"), said("c", read="N", restarts=True))
    )
    assert [segment.text for segment in trajectory.context(2)] == ["P", "a", "E", "b"]
    assert [segment.text for segment in trajectory.consumed(1)] == ["P", "a", "E"]
    assert [segment.text for segment in trajectory.consumed(2)] == ["N"]
    assert [segment.text for segment in trajectory.context()] == ["N", "c"]


def test_a_branch_of_a_tree_is_a_trajectory(question: Question) -> None:
    nodes = (Node(0, None, None), Node(1, 0, said("a")), Node(2, 0, said("b")), Node(3, 1, said("c")))
    tree = Tree(question, "x", nodes)
    assert [step.written.text for step in tree.trajectory(nodes[3]).steps] == ["a", "c"]
    assert tree.children(nodes[0]) == (nodes[1], nodes[2])


def test_a_tree_with_a_node_out_of_place_is_refused(question: Question) -> None:
    with pytest.raises(TraceError, match="before its parent"):
        Tree(question, "x", (Node(0, None, None), Node(1, 2, said("a")), Node(2, 0, said("b"))))
    with pytest.raises(TraceError, match="out of place"):
        Tree(question, "x", (Node(0, None, said("a")),))


def test_log_probs_must_match_their_tokens() -> None:
    with pytest.raises(TraceError, match="2 tokens but 1 log-probs"):
        Segment(Author.POLICY, "ab", (1, 2), (0.0,))


def test_every_stop_reason_says_who_ended_the_episode() -> None:
    policy = {reason for reason in StopReason if not reason.is_truncation}
    assert policy == {StopReason.ANSWERED, StopReason.FORCED, StopReason.MALFORMED}
    assert [reason.value for reason in StopReason if reason.has_answer] == ["answered", "forced"]


def test_searches_needed_counts_hops_with_passages(question: Question) -> None:
    conclusion = Hop("Which is older, #1 or #2?", "Velm")
    assert replace(question, hops=(*question.hops, conclusion)).searches_needed == 2
    unannotated = tuple(replace(hop, passages=()) for hop in question.hops)
    assert replace(question, hops=unannotated).searches_needed == 2
