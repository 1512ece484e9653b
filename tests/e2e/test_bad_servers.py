"""Bad input around a policy behind a server, typed on the command line: one clear error each, and nothing is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepladder.evaluation.evaluator import load_scores
from stepladder.explore.tree_store import read_trees
from tests.support import openai_server
from tests.support.openai_server import Answer, Server, fails, says, says_all
from tests.support.shell import Shell

server = openai_server.server

GOOD = "<think>It says so.</think>\n<answer>Rome</answer>"
TOO_LONG = "the request exceeds the available context size, try increasing it"
NO_TEMPLATE = "default chat template is no longer allowed, so you must provide a chat template."


def samples(body: dict[str, Any], most: int = 99) -> Answer:
    return says_all([GOOD] * min(body.get("n", 1), most), usage={"prompt_tokens": 9, "completion_tokens": 9})


def typed(command: str, server: Server, *more: object) -> list[object]:
    policy = f"--base-url {server.url} --model m --agent search-r1 --data atlas-small -k 1"
    return [*f"{command} {policy}".split(), *more]


def explored(server: Server, folder: Path, *more: object) -> list[object]:
    return typed("explore", server, "--questions", 3, "--simulations", 4, "--out", folder, *more)


#: Every reply of the server, what `eval` says about it, and what to do about it.
REPLIES: dict[str, tuple[Callable[[dict[str, Any], int], Answer], str, str]] = {
    "broken JSON": (lambda *_: Answer(body=b'{"choices": [{"mess'), "an invalid completion", "usually ends in /v1"),
    "a web page": (lambda *_: Answer(body=b"<html>Hello</html>"), "'<html>Hello</html>'", "usually ends in /v1"),
    "no choices": (lambda *_: says_all([]), "an invalid completion", '\'{"choices": []'),
    "empty text": (lambda *_: says(""), "returned an empty text", "Check the chat template of model 'm'"),
    "no text": (lambda *_: says(None, "length"), "returned no text", "A reasoning model may need more max_tokens"),
    "no chat template": (lambda *_: fails(400, NO_TEMPLATE), "must provide a chat template", "use --api completions"),
    "a template without a role": (
        lambda *_: fails(500, "Jinja Exception: System role not supported"),
        "returned status 500 (first attempt): Jinja Exception: System role not supported",
        "use --api completions",
    ),
    "a small window": (lambda *_: fails(400, TOO_LONG), "filled the model's context window", "--topk 1"),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_server_that_never_writes_is_told_and_not_asked_for_ever(server: Server, name: str, shell: Shell) -> None:
    server.answer, problem, advice = REPLIES[name]
    told = shell(*typed("eval", server, "--limit", 2, "--concurrency", 1), code=2)
    assert problem in told
    assert advice in told
    assert "Traceback" not in told
    if name != "a small window":
        told = shell(*typed("eval", server, "--limit", 60, "--concurrency", 1), code=2)
        assert "10 consecutive requests failed" in told
        assert len(server.requests) == 2 + 10


@pytest.mark.parametrize("name", REPLIES)
def test_trees_from_such_a_server_are_an_error_and_can_be_grown_later(
    server: Server, name: str, shell: Shell, tmp_path: Path
) -> None:
    server.answer, problem, advice = REPLIES[name]
    told = shell(*explored(server, tmp_path / "run"), code=2)
    assert problem in told
    assert advice in told
    server.answer = lambda body, n: samples(body)
    shell(*explored(server, tmp_path / "run"))
    trees = list(read_trees(tmp_path / "run" / "explore" / "trees.jsonl.gz"))
    assert [len(tree.nodes) for tree in trees] == [2, 2, 2]


def test_one_bad_reply_costs_its_episode_alone(server: Server, shell: Shell, tmp_path: Path) -> None:
    server.answer = lambda body, n: Answer(body=b'{"choi') if n == 3 else samples(body)
    out, _ = shell.run(*typed("eval", server, "--limit", 6, "--concurrency", 1, "--out", tmp_path / "scores"))
    assert "failed 1x" in out
    assert [row.prediction for row in load_scores(tmp_path / "scores")].count("Rome") == 5
    assert len(server.requests) == 6


@pytest.mark.parametrize(("most", "refused"), [(1, False), (3, False), (1, True)])
def test_a_server_that_ignores_or_refuses_n_is_told_once_and_no_sample_is_missing(
    server: Server, shell: Shell, tmp_path: Path, most: int, refused: bool
) -> None:
    def answer(body: dict[str, Any], n: int) -> Answer:
        return fails(400, "'n' is not supported") if refused and body.get("n", 1) > 1 else samples(body, most)

    server.answer = answer
    shell(*explored(server, tmp_path / "run", "--concurrency", 1, "--width", 5))
    trees = list(read_trees(tmp_path / "run" / "explore" / "trees.jsonl.gz"))
    assert [tree.nodes[0].visits for tree in trees] == [4, 4, 4]
    assert [body.get("n", 1) for body in server.requests].count(5) == 1, "later calls ask for what it returns"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (fails(400, "failed to parse grammar"), "refuses the grammar of format: constrained (400: failed to parse"),
        (fails(422, "Extra inputs are not permitted"), "refuses the grammar of format: constrained (422: Extra"),
        (says("Rome, I think."), "ignores the grammar of format: constrained: it wrote 'Rome, I think.'"),
    ],
)
def test_a_server_without_grammars_says_what_to_type(
    server: Server, answer: Answer, problem: str, shell: Shell
) -> None:
    server.answer = lambda *_: answer
    told = shell(*typed("eval", server, "--limit", 3, "--format", "constrained"), code=2)
    assert problem in told
    assert "Set --grammar (in a recipe server.grammar) to the kind of server" in told
    server.answer = lambda body, n: samples(body)
    shell(*typed("eval", server, "--limit", 1, "--format", "constrained", "--grammar", "llama.cpp"))
    assert "grammar" in server.requests[-1]
    assert "structured_outputs" not in server.requests[-1]


def test_a_slow_server_says_what_to_type(server: Server, shell: Shell) -> None:
    server.answer = lambda *_: server.hang()
    told = shell(*typed("eval", server, "--limit", 1, "--timeout", "0.1"), code=2)
    assert "did not respond within 0.1 s (after 3 attempts)" in told
    assert "--concurrency 1" in told


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("--prompt", "Answer it.", "the placeholder {question} is missing; write it where the question goes"),
        ("--prompt", "{question} {nothing}", "unknown placeholder or single brace ('nothing'); known: {question}"),
        ("--hint", "Write <answer>x</answer> now", "it would be read as an action itself (answer: 'x')"),
        ("--hint", "", "the file is empty"),
    ],
)
@pytest.mark.parametrize("command", ["eval", "explore"])
def test_texts_that_cannot_be_used_are_refused_before_the_first_call(
    server: Server, shell: Shell, tmp_path: Path, command: str, option: str, text: str, problem: str
) -> None:
    (tmp_path / "text.txt").write_text(text)
    told = shell(*typed(command, server, option, tmp_path / "text.txt", "--out", tmp_path / "out"), code=2)
    assert f"{option[2:]} {tmp_path}/text.txt: {problem}" in told
    assert told.count("\n") == 1
    assert not server.requests
    assert not (tmp_path / "out" / "explore").exists()
