"""Algorithms side by side."""

from stepladder.core.errors import BackendError
from stepladder.core.requests import Algorithm, BestEffort, Generate, Retrieve
from stepladder.core.trace import Author, Segment
from stepladder.driver import Driver
from stepladder.driver.gather import gather
from stepladder.engines.scripted import ScriptedEngine


def say(text: str) -> Generate:
    return Generate((Segment(Author.PROMPT, text),))


def speak(text: str, turns: int = 1) -> Algorithm[str]:
    said = text
    for _ in range(turns):
        said = (yield say(said)).text
    return said


def engine() -> ScriptedEngine:
    return ScriptedEngine(
        lambda request: BackendError("no") if "bad" in request.context[0].text else request.context[0].text + "!"
    )


def run(algorithm: Algorithm[object], **backends: object) -> object:
    (done,) = Driver(engine(), **backends).run([lambda: algorithm])  # type: ignore[arg-type]
    assert done.failure is None, done.failure
    return done.value


def test_results_come_in_order_however_long_each_takes() -> None:
    assert run(gather([speak("a", 3), speak("b"), speak("c", 2)])) == ["a!!!", "b!", "c!!"]


def test_nothing_to_run_is_no_work() -> None:
    assert run(gather([])) == []


def test_one_that_fails_leaves_the_others_alone() -> None:
    good, bad = run(gather([speak("a", 2), speak("bad")]))  # type: ignore[misc]
    assert good == "a!!"
    assert isinstance(bad, BackendError)


def test_an_error_can_be_handled_by_the_one_it_belongs_to() -> None:
    def careful() -> Algorithm[str]:
        try:
            return str((yield say("bad")).text)
        except BackendError:
            return str((yield say("good")).text)

    assert run(gather([careful(), speak("a", 2)])) == ["good!", "a!!"]


def test_each_gives_replies_and_errors_side_by_side() -> None:
    def ask() -> Algorithm[list[str]]:
        replies = yield BestEffort([say("a"), say("bad"), say("b")])
        return [str(reply) if isinstance(reply, Exception) else reply.text for reply in replies]

    assert run(ask()) == ["a!", "no", "b!"]


def test_together_within_together() -> None:
    def family(name: str) -> Algorithm[list[str | Exception]]:
        return (yield from gather([speak(name + "1"), speak(name + "2", 2)]))

    assert run(gather([family("a"), family("b")])) == [["a1!", "a2!!"], ["b1!", "b2!!"]]


def test_searches_do_not_hold_up_a_batch(retriever: object) -> None:
    """One member searches between its texts and the other does not: still two texts a call, in two calls."""

    def searching() -> Algorithm[str]:
        first = (yield say("a")).text
        yield Retrieve(first, 1)
        return str((yield say(first)).text)

    driver = Driver(engine(), retriever)  # type: ignore[arg-type]
    driver.run([lambda: gather([searching(), speak("b", 2)])])
    assert driver.counts.calls == {"Generate": 2, "Retrieve": 1}
