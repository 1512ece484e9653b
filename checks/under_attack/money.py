"""Judges that bill and then fail, lie or refuse. Passwords in URLs."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from under_attack.fake import Answer, answering, completion, prompt_of
from under_attack.version import Finished, NotRun, Version, attack

#: Tokens that a judge may cost. A call costs at most about 2,000.
LIMIT = 12_000
RECIPE = """
agent: prorag
data: {{name: atlas-small}}
stages:
  oracle: {{kind: eval, policy: {oracle}, limit: 1}}
  explore:
    policy: {oracle}
    questions: {questions}
    simulations: 4
    evaluate: llm
    llm: {{model: big, url: "http://{judge}/v1", retries: 1, budget: {limit}tok}}
"""


class Till:
    """What a judge's server bills: one token for each byte that it reads, or for every `cheaper` of them."""

    def __init__(self, cheaper: int = 1) -> None:
        self.cheaper, self.billed, self.calls, self._lock = cheaper, 0, 0, threading.Lock()

    def bill(self, body: dict[str, Any]) -> int:
        with self._lock:
            cost = len(prompt_of(body).encode()) // self.cheaper
            self.billed += cost
            self.calls += 1
        return cost


def judged(
    version: Version, folder: Path, answer: Answer, times: int = 1, before: Callable[[int], object] = str
) -> Finished:
    """Grow trees, graded by a server, several times. `before` is called with the number of the time."""
    with answering(answer) as judge:
        recipe = RECIPE.format(oracle=version.say("oracle"), judge=judge, limit=LIMIT, questions=24)
        (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
        for number in range(times):
            before(number)
            done = version.cli("run", folder / "recipe.yaml", "--out", folder / "run", folder=folder)
            if "Traceback" in done.err or done.code not in (0, 2):
                raise NotRun(done.last)
    return done


def _passed(till: Till) -> str | None:
    if not till.calls:
        raise NotRun("the judge was not asked")
    if till.billed <= LIMIT:
        return None
    return f"{till.calls} calls were billed {till.billed:,} tokens with a limit of {LIMIT:,}"


@attack("billed errors")
def billed_errors(version: Version, folder: Path) -> str | None:
    """A server that bills each call and then answers 500; the run is started twice."""
    till = Till()

    def answer(_: str, body: dict[str, Any]) -> tuple[int, object]:
        till.bill(body)
        return 500, {"error": {"message": "oops"}}

    judged(version, folder, answer, times=2)
    return _passed(till)


@attack("true as a token count")
def true_as_a_token_count(version: Version, folder: Path) -> str | None:
    """A server that counts `true`."""
    till = Till()

    def answer(_: str, body: dict[str, Any]) -> tuple[int, object]:
        till.bill(body)
        return 200, completion('{"score": 5}', {"prompt_tokens": True, "completion_tokens": True})

    judged(version, folder, answer)
    return _passed(till)


@attack("unbilled errors")
def unbilled_errors(version: Version, folder: Path) -> str | None:
    """A server that refuses two runs, and then answers for little: the budget must be there."""
    till, answers = Till(cheaper=4), threading.Event()

    def answer(_: str, body: dict[str, Any]) -> tuple[int, object]:
        if not answers.is_set():
            return 401, {"error": {"message": "who are you?"}}
        return 200, completion('{"score": 5}', {"prompt_tokens": till.bill(body), "completion_tokens": 1})

    last = judged(version, folder, answer, times=3, before=lambda number: number == 2 and answers.set())
    return None if till.calls > 8 else f"after refused calls {till.calls} were made: {last.last}"


@attack("password in a url")
def password_in_a_url(version: Version, folder: Path) -> str | None:
    """The user and password of a judge and of a model: in the files of a run, a report, an evaluation."""
    user, password = "ann-quokka", "pa55-Zebra"
    run, saved = folder / "run", folder / "saved"
    with answering(lambda *_: (200, completion('{"score": 5}'))) as host:
        full = f"{user}:{password}@{host}"
        recipe = RECIPE.format(oracle=version.say("oracle"), judge=full, limit="2000k", questions=1)
        (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
        done = [version.cli("run", folder / "recipe.yaml", "--out", run, folder=folder).done()]
        show = ["report", run] if version.old else ["report", "--run", run]
        done.append(version.cli(*show, folder=folder).done())
        model = ["--engine", "openai", "--base-url", f"http://{full}/v1", "--model", "m", "--agent", "direct"]
        data = ["--data", "atlas-small", "--limit", 1, "--out", saved]
        done.append(version.cli("eval", *model, *data, folder=folder).done())
    files = [path for path in (*run.rglob("*"), *saved.rglob("*")) if path.is_file()]
    if not {"report.html", "summary.json", "recipe.yaml"} <= {path.name for path in files}:
        raise NotRun("a report, a summary or a recipe is missing")
    where = [str(path.relative_to(folder)) for path in files if password.encode() in path.read_bytes()]
    where += [f"the output of {each.words[0]}" for each in done if password in each.out + each.err]
    return f"the password is in {', '.join(where)}" if where else None
