"""An engine that samples from given steps, and a scorer that prefers some of them."""

from collections.abc import Sequence

from stepladder.agents import make_agent
from stepladder.core.errors import BackendError
from stepladder.core.requests import Finish, Generate, Generation
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Author, Segment, Trajectory, Usage
from stepladder.engines.base import Engine

AGENT = make_agent("search-r1-brief")
GOOD = {
    0: "<think>a</think><search>Who designed Orm Tower?</search>",
    1: "<think>b</think><search>Where was Ada Tarn born?</search>",
    2: "<think>c</think><answer>Velm</answer>",
}
OTHER = {
    0: "<think>a</think><search>Orm River</search>",
    1: "<think>b</think><search>Ada</search>",
    2: "<think>c</think><answer>Oss</answer>",
}
BAD = "nonsense"


class Sampled(Engine):
    """Draws a line by the seed: mostly another than the good one, now and then something malformed."""

    name = "sampled"
    max_batch = 64

    def __init__(self, lines: Sequence[dict[int, str] | str]) -> None:
        self.lines = lines
        self.written = 0

    def generate(self, requests: Sequence[Generate]) -> list[Generation | BackendError]:
        return [self._one(request) for request in requests]

    def _one(self, request: Generate) -> Generation:
        assert request.trajectory is not None
        self.written += 1
        line = self.lines[request.seed % len(self.lines)]
        text = line if isinstance(line, str) else line[min(len(request.trajectory.steps), 2)]
        return Generation(request.context, Segment(Author.POLICY, text), text, Finish.STOP, Usage(10, 1))


class Likes(StepScorer):
    """Scores a step by the first of some words in it."""

    max_batch, concurrency = 64, 1

    def __init__(self, **worth: float) -> None:
        self.worth = worth
        self.asked: list[Trajectory] = []

    def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        self.asked += trajectories
        return [tuple(self._of(step.written.text) for step in each.steps) for each in trajectories]

    def _of(self, text: str) -> float:
        return next((worth for word, worth in self.worth.items() if word in text), 0.0)
