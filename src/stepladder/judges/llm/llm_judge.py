"""A language model as judge of steps, and as step scorer.

In: a tree and siblings in it. Out: preferences, by one of four modes:

    choice    the best and the worst of all siblings by logical validity, or none (ProRAG); with the passages they found
    ranking   all siblings from best to worst by sufficiency, utility and redundancy (RAG-Gym)
    score     0 to 100 for every sibling alone; scores that differ by the margin make a preference
    value     0 to 100 for the whole reasoning up to a sibling, by a judge that knows the golden answer (ReasonRAG)

Models have a position bias. `order="both"` asks twice, with the candidates in their original and in reversed order, and
keeps only the preferences of both replies. A reply that cannot be parsed is sent back once with the problem. Everything
that does not become a preference is counted by reason.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from itertools import permutations
from typing import Any, Literal, TypeVar

from stepladder.core.errors import BackendError
from stepladder.core.requests import Algorithm, Finish, Generate, Generation, Job, Sampling
from stepladder.core.step_scorer import StepScorer, StepScores
from stepladder.core.trace import Author, Node, Segment, Step, Trajectory, Tree
from stepladder.driver import Driver
from stepladder.driver.gather import gather
from stepladder.engines.base import Engine
from stepladder.engines.spend.response_cache import CachedEngine
from stepladder.judges.base import Preference
from stepladder.judges.llm.prompts import letters, order_prompt, repair_prompt, score_prompt, value_prompt
from stepladder.judges.llm.verdicts import BadReply, Grade, Ordering, read_choice, read_ranking, read_score

Mode = Literal["choice", "ranking", "score", "value"]
Order = Literal["made", "reversed", "both"]
Verdict = TypeVar("Verdict")

#: Problems that are counted by message: a server may find ever new words.
_MAX_PROBLEMS = 1_000


@dataclass(slots=True)
class JudgeCounts:
    """Outcomes of a judge's prompts."""

    #: Prompts; a repair counts with its prompt.
    asked: int = 0
    #: Replies that could be parsed after a repair, and those that could not.
    repaired: int = 0
    refused: int = 0
    #: Requests that failed in the engine.
    failed: int = 0
    #: Groups of siblings with a preference, without one, and those for which the two orders disagreed.
    kept: int = 0
    none: int = 0
    disagreed: int = 0


class NoVerdict(BackendError):
    """Why there is no verdict: the request failed, or the reply cannot be parsed."""


@dataclass(eq=False)
class LLMJudge:
    """Judges with the model of the driver's engine."""

    mode: Mode = "choice"
    _: KW_ONLY
    order: Order = "both"
    #: Mode `score`: minimum difference between two scores, between 0 and 1, for a preference.
    margin: float = 0.1
    #: Mode `ranking`: prefer every candidate to all that rank below it, not only the best to the worst.
    all_pairs: bool = False
    #: Maximum tokens of a reply, and maximum characters of history in a prompt.
    max_tokens: int = 512
    history: int = 12_000
    #: Stored in the pairs; by default with the mode.
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or f"llm-{self.mode}"
        self.sampling = Sampling(max_tokens=self.max_tokens)
        self.counts = JudgeCounts()
        #: Why there was no verdict, by message.
        self.problems: Counter[str] = Counter()

    def summary(self) -> dict[str, Any]:
        """The counts and the most frequent problems, as plain data."""
        return {"asked": asdict(self.counts), "problems": dict(self.problems.most_common(3))}

    def prefer(self, tree: Tree, siblings: Sequence[Node]) -> Algorithm[list[Preference]]:
        """The preferences among siblings, the clearest first."""
        nodes = _distinct(siblings)
        if len(nodes) < 2:
            return []
        by = self._by_score if self.mode in ("score", "value") else self._by_order
        preferences = yield from by(_state_before(tree, nodes), nodes)
        self.counts.kept += bool(preferences)
        return preferences

    def grade(self, trajectory: Trajectory) -> Algorithm[tuple[float, ...]]:
        """A score between 0 and 1 for every step; raises `BackendError` if one of them fails.

        A prompt depends on the step and its history alone: steps that trajectories share are equal requests.
        """
        grades = yield from self._grades(self.score_requests(trajectory))
        for number, grade in enumerate(grades, start=1):
            if isinstance(grade, NoVerdict):
                raise BackendError(f"no score for step {number} of {len(grades)}: {grade}")
        return tuple(grade.score for grade in grades if isinstance(grade, Grade))

    def score_requests(self, trajectory: Trajectory) -> list[Generate]:
        """The requests of `grade`, one per step."""
        states = [replace(trajectory, steps=trajectory.steps[:index]) for index in range(len(trajectory.steps))]
        return [self._score_request(state, step) for state, step in zip(states, trajectory.steps)]

    def rank(self, trajectories: Sequence[Trajectory]) -> Algorithm[tuple[float, ...]]:
        """Rank the newest steps of trajectories from one state jointly: 1 for the best, 0 for the worst.

        With `order="both"` the mean of two rankings. Raises `BackendError` if one of them fails.
        """
        state = replace(trajectories[0], steps=trajectories[0].steps[:-1], stop=None)
        nodes = [Node(number, 0, each.steps[-1]) for number, each in enumerate(trajectories, start=1)]
        if len(nodes) < 2:
            return (1.0,) * len(nodes)
        values = [0.0] * len(nodes)
        listings = self._listings(nodes)
        for listed in listings:
            names = list(listed)
            ordering: Ordering = yield from self._ask(
                self._order_request(state, listed, "ranking"), partial(read_ranking, letters=names)
            )
            # The best one is above all others, the worst one below all.
            above = Counter(better for better, _ in ordering.pairs)
            for name, node in listed.items():
                values[node.id - 1] += above[name] / (len(nodes) - 1) / len(listings)
        return tuple(values)

    def requests(self, tree: Tree, siblings: Sequence[Node]) -> list[Generate]:
        """All requests of `prefer` without repairs, to estimate its cost."""
        nodes = _distinct(siblings)
        if len(nodes) < 2:
            return []
        state = _state_before(tree, nodes)
        if self.mode in ("score", "value"):
            return self._score_requests(state, nodes)
        return [self._order_request(state, listed) for listed in self._listings(nodes)]

    def ask(self, prompt: str, read: Callable[[str], Verdict]) -> Algorithm[Verdict]:
        """The parsed reply to any prompt; raises `NoVerdict` if there is none or if its repair fails as well."""
        return self._ask(self._request(prompt), read)

    # --- choice and ranking -----------------------------------------------------------------------------------

    def _by_order(self, state: Trajectory, nodes: Sequence[Node]) -> Algorithm[list[Preference]]:
        read = read_choice if self.mode == "choice" else read_ranking
        agreed: list[tuple[int, int]] | None = None
        reason = ""
        # One after the other: if the first sees no difference, the second is not needed.
        for listed in self._listings(nodes):
            ids = {letter: node.id for letter, node in listed.items()}
            request = self._order_request(state, listed)
            try:
                ordering: Ordering = yield from self._ask(request, partial(read, letters=list(ids)))
            except NoVerdict:
                return []
            pairs = [(ids[better], ids[worse]) for better, worse in ordering.pairs]
            if not self.all_pairs:
                del pairs[1:]
            if agreed is None:
                agreed, reason = pairs, ordering.reason
                if not agreed:
                    self.counts.none += 1
                    return []
            else:
                agreed = [pair for pair in agreed if pair in pairs]
                self.counts.disagreed += not agreed
        return [Preference(chosen, rejected, reason=reason) for chosen, rejected in agreed or ()]

    def _listings(self, nodes: Sequence[Node]) -> list[dict[str, Node]]:
        """The candidates in the orders to ask about. Letters follow the position: they carry no information."""
        orders = {"made": [nodes], "reversed": [nodes[::-1]], "both": [nodes, nodes[::-1]]}[self.order]
        return [dict(zip(letters(len(order)), order)) for order in orders]

    def _order_request(self, state: Trajectory, listed: dict[str, Node], mode: Mode | None = None) -> Generate:
        return self._request(order_prompt(mode or self.mode, state, listed, self.history))

    # --- score ------------------------------------------------------------------------------------------------

    def _by_score(self, state: Trajectory, nodes: Sequence[Node]) -> Algorithm[list[Preference]]:
        grades = yield from self._grades(self._score_requests(state, nodes))
        graded = [(node.id, grade) for node, grade in zip(nodes, grades) if isinstance(grade, Grade)]
        pairs = sorted(permutations(graded, 2), key=lambda pair: pair[1][1].score - pair[0][1].score)
        found = [
            Preference(chosen, rejected, better.score, worse.score, better.reason)
            for (chosen, better), (rejected, worse) in pairs
            if better.score - worse.score >= self.margin - _ROUNDING
        ]
        self.counts.none += len(graded) > 1 and not found
        return found

    def _score_requests(self, state: Trajectory, nodes: Sequence[Node]) -> list[Generate]:
        steps = [node.step for node in nodes if node.step is not None]  # only the root has no step
        return [self._score_request(state, step) for step in steps]

    def _score_request(self, state: Trajectory, step: Step) -> Generate:
        if self.mode == "value":
            return self._request(value_prompt(state.extend(step), self.history))
        return self._request(score_prompt(state, step.action, self.history))

    def _grades(self, requests: Sequence[Generate]) -> Algorithm[list[Grade | NoVerdict]]:
        grades: list[Grade | NoVerdict] = []
        for grade in (yield from gather([self._ask(request, read_score) for request in requests])):
            if not isinstance(grade, Grade | NoVerdict):
                raise grade
            grades.append(grade)
        return grades

    # --- requests ---------------------------------------------------------------------------------------------

    def _request(self, prompt: str) -> Generate:
        return Generate((Segment(Author.PROMPT, prompt),), sampling=self.sampling)

    def _ask(self, request: Generate, read: Callable[[str], Verdict]) -> Algorithm[Verdict]:
        """The parsed reply; raises and counts `NoVerdict` if there is none or if the repair fails as well."""
        self.counts.asked += 1
        repairing = False
        while True:
            try:
                reply: Generation = yield request
            except BackendError as error:
                self.counts.failed += 1
                raise self._no_verdict(str(error)) from error
            try:
                verdict = read(reply.text)
            except BadReply as error:
                problem = self._problem_of(reply, error)
                if repairing or reply.finish is Finish.CONTEXT_FULL:
                    self.counts.refused += 1
                    raise self._no_verdict(f"a reply that cannot be used: {problem}") from error
            else:
                self.counts.repaired += repairing
                return verdict
            repair = Segment(Author.ENVIRONMENT, repair_prompt(problem))
            request = Generate((*reply.context, reply.written, repair), sampling=self.sampling)
            repairing = True

    def _problem_of(self, reply: Generation, problem: BadReply) -> str:
        if reply.finish is Finish.CONTEXT_FULL:
            return "the prompt leaves no room for it in the model's window"
        if reply.finish is Finish.LENGTH:
            return f"it was cut off after {self.sampling.max_tokens} tokens"
        return str(problem)

    def _no_verdict(self, problem: str) -> NoVerdict:
        known = problem in self.problems or len(self.problems) < _MAX_PROBLEMS
        self.problems[problem if known else "others"] += 1
        return NoVerdict(problem)


class LLMScorer(StepScorer):
    """A step scorer that runs an LLM judge on its own engine: in mode `score` or `value`, and to rank steps jointly.

    Every step is a request of its own that contains its history. In a search tree all steps but the last were scored
    with their own nodes: a `CachedEngine` answers them from its response cache.
    """

    #: One call with many trajectories at a time; the inner driver uses the engine's own concurrency.
    max_batch = 1024
    concurrency = 1

    def __init__(self, engine: Engine, judge: LLMJudge | None = None) -> None:
        self.engine = engine
        self.judge = judge or LLMJudge("score")

    def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...] | Exception]:
        """For each trajectory one score per step, or the error of its requests."""
        return self._run([partial(self.judge.grade, trajectory) for trajectory in trajectories])

    def _run(self, jobs: Sequence[Job[tuple[float, ...]]]) -> list[tuple[float, ...] | Exception]:
        return [
            BackendError(outcome.failure.reason) if outcome.failure is not None else outcome.value or ()
            for outcome in Driver(self.engine).run(jobs)
        ]

    def rank(self, groups: Sequence[Sequence[Trajectory]]) -> Sequence[StepScores]:
        """For each group one value per trajectory, from a joint ranking of their newest steps."""
        if self.judge.mode != "ranking":
            return super().rank(groups)
        return self._run([partial(self.judge.rank, group) for group in groups])

    def cost(self) -> str:
        return self.engine.spend().line() if isinstance(self.engine, CachedEngine) else ""

    def summary(self) -> dict[str, Any]:
        """The judge's counts and problems, and the spend of its engine."""
        spend = {"spend": asdict(self.engine.spend())} if isinstance(self.engine, CachedEngine) else {}
        return {**self.judge.summary(), **spend}

    def close(self) -> None:
        self.engine.close()


#: 0.7 - 0.6 is slightly less than 0.1 in floating point.
_ROUNDING = 1e-9


def _distinct(siblings: Sequence[Node]) -> list[Node]:
    """The siblings in their order; of those with equal actions only the most visited."""
    found: dict[object, Node] = {}
    for node in sorted(siblings, key=lambda node: (-node.visits, node.id)):
        if node.step is not None:
            found.setdefault(node.step.action, node)
    return sorted(found.values(), key=lambda node: node.id)


def _state_before(tree: Tree, siblings: Sequence[Node]) -> Trajectory:
    (parent,) = {node.parent for node in siblings}
    assert parent is not None
    return tree.trajectory(tree.nodes[parent])
