"""How fast the driver is by itself: 10,000 scripted episodes of five steps, with nothing else to wait for.

Beside it, in the same run, the way of the reference systems: one question after the other, one generation a call.
With an engine that costs nothing that is the fastest way there is, so the difference is what the driver costs. With
an engine that takes 2 ms a call, whatever the batch, it is what the driver saves.
"""

import time
from collections.abc import Sequence

from stepladder.agents import make_agent
from stepladder.core.errors import BackendError
from stepladder.core.requests import Generate, Generation
from stepladder.core.trace import Passage, Question
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.retrieval.base import Retriever

STEPS = [
    "<step>Who was it?</step><subquery>founder of the tower</subquery>",
    "<step>It says so.</step><subanswer>Ada Tarn</subanswer>",
    "<step>Where then?</step><subquery>birth place of Ada Tarn</subquery>",
    "<step>It says so.</step><subanswer>Velm</subanswer>",
    "<step>Done.</step><answer>Velm</answer>",
]


class SamePassages(Retriever):
    """Finds three passages of 60 words, whatever is asked."""

    passages = tuple(Passage(str(number), f"Title {number}", "word " * 60) for number in range(3))

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        return [self.passages[:k] for _ in queries]


class SlowEngine(ScriptedEngine):
    """Takes 2 ms a call."""

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        time.sleep(0.002)
        return super().generate(requests)


def play(engine: ScriptedEngine, count: int, in_flight: int) -> float:
    agent = make_agent("prorag")
    questions = [Question(str(number), f"Question number {number}?", ("Velm",)) for number in range(count)]
    driver = Driver(engine, SamePassages(), in_flight=in_flight)
    started = time.perf_counter()
    settings = EpisodeConfig()
    outcomes = driver.run([lambda each=each: episode(agent, each, settings, seed=0) for each in questions])
    seconds = time.perf_counter() - started
    assert all(outcome.value is not None and outcome.value.answer == "Velm" for outcome in outcomes)
    return seconds


def main() -> None:
    def script(request: Generate) -> str:
        assert request.trajectory is not None
        return STEPS[len(request.trajectory.steps)]

    print(f"{'engine':<14}{'way':<32}{'episodes':>9}{'seconds':>9}{'episodes/s':>12}{'steps/s':>10}")
    for label, engine, count in (("free", ScriptedEngine, 10_000), ("2 ms a call", SlowEngine, 500)):
        for way, in_flight in (("one question at a time", 1), ("driver, 1,024 in flight", 1024)):
            seconds = play(engine(script), count, in_flight)
            rate = count / seconds
            print(f"{label:<14}{way:<32}{count:>9,}{seconds:>9.2f}{rate:>12,.0f}{rate * len(STEPS):>10,.0f}")
    print("aim: 10,000 episodes of five steps in under 10 s")


if __name__ == "__main__":
    main()
