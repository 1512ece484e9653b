"""Demonstrations to learn from, by one of five sources.

    gold        a question's gold decomposition, played by the oracle: exact and free, where there is a decomposition
    mined       the same, with decompositions that are guessed from the corpus (mining.py): needs questions and answers
    teacher     a stronger model behind an OpenAI-compatible server, sampled; its replies are kept on disk
    bootstrap   the model itself, shown worked examples and sampled: needs only questions and answers
    trees       the best branch of each tree of an earlier stage

In: questions, an agent, an index. Out: `Demonstrations`: finished trajectories whose answer is right, all played through
the driver and the agent's own renderer, and how many were dropped for which reason.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import Miss, score
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import ActionKind, Question, Trajectory, Tree
from stepladder.driver import Driver, Outcome, OutcomeCallback
from stepladder.engines.base import Engine
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.explore.ranked import best_branch
from stepladder.oracle.engine import OracleEngine
from stepladder.retrieval.base import Retriever
from stepladder.train.sft.fewshot import FewShot


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """What a source gave. `asked` is the number kept and all those dropped."""

    kept: tuple[Trajectory, ...]
    #: How many were dropped, by reason.
    dropped: dict[str, int]
    #: A reason of an episode that broke, to show when there are too few transcripts; empty when none did.
    first_failure: str = ""

    @property
    def asked(self) -> int:
        """Episodes played, and questions that could not be."""
        return len(self.kept) + sum(self.dropped.values())


def sample_questions(questions: Sequence[Question], count: int, seed: int, *, balance: bool = False) -> list[Question]:
    """Some of the questions, by a seeded shuffle. Balanced: as many of each number of searches needed as there are.

    >>> [question.id for question in sample_questions([Question(str(n), "?", ()) for n in range(5)], 3, seed=0)]
    ['0', '4', '3']
    """
    order = np.random.default_rng(seed_of(seed, "questions")).permutation(len(questions))
    shuffled = [questions[index] for index in order]
    if not balance:
        return shuffled[:count]
    # The n-th question of every group comes before the n+1-th of any.
    seen: Counter[int] = Counter()
    rank: dict[int, int] = {}
    for index, question in enumerate(shuffled):
        rank[index] = seen[question.searches_needed]
        seen[question.searches_needed] += 1
    return [shuffled[index] for index in sorted(rank, key=lambda index: rank[index])[:count]]


def gold_demonstrations(
    agent: Agent,
    questions: Sequence[Question],
    retriever: Retriever | None,
    settings: EpisodeConfig,
    *,
    seed: int,
    watch: OutcomeCallback | None = None,
) -> Demonstrations:
    """The gold decomposition of every question that has one, as far as the search finds what it needs."""
    answerable = [question for question in questions if question.answers]
    playable = [question for question in answerable if question.hops or ActionKind.QUERY not in agent.kinds]
    driver = Driver(OracleEngine(agent, seed), retriever)
    dropped = Counter(
        no_known_answer=len(questions) - len(answerable), no_decomposition=len(answerable) - len(playable)
    )
    outcomes = _play(driver, agent, playable, settings, seed, samples=1, watch=watch)
    return _sift(outcomes, dropped, min_f1=1.0, keep=1)


def tree_demonstrations(trees: Iterable[Tree], min_f1: float) -> Demonstrations:
    """The best branch of every tree, where its answer is right."""
    branches = [tree.trajectory(best_branch(tree)[-1]) for tree in trees]
    return _sift([Outcome(number, branch) for number, branch in enumerate(branches)], Counter(), min_f1=min_f1, keep=1)


def sampled_demonstrations(
    engine: Engine,
    agent: Agent,
    questions: Sequence[Question],
    retriever: Retriever | None,
    settings: EpisodeConfig,
    *,
    samples: int,
    min_f1: float,
    keep: int,
    seed: int,
    watch: OutcomeCallback | None = None,
) -> Demonstrations:
    """What a model writes when it is shown worked examples: up to `keep` different, right transcripts a question.

    `settings.sampling` says how it is sampled. An answer is right when it matches exactly or its F1 reaches `min_f1`.
    """
    shown = FewShot(agent)
    playable = [question for question in questions if question.answers]
    dropped = Counter(no_known_answer=len(questions) - len(playable))
    outcomes = _play(Driver(engine, retriever), shown, playable, settings, seed, samples=samples, watch=watch)
    stripped = [
        replace(outcome, value=shown.strip(outcome.value)) if outcome.value is not None else outcome
        for outcome in outcomes
    ]
    return _sift(stripped, dropped, min_f1=min_f1, keep=keep)


def _play(
    driver: Driver,
    agent: Agent,
    questions: Sequence[Question],
    settings: EpisodeConfig,
    seed: int,
    *,
    samples: int,
    watch: OutcomeCallback | None,
) -> list[Outcome[Trajectory]]:
    def job(question: Question, sample: int) -> Callable[[], Algorithm[Trajectory]]:
        return lambda: episode(agent, question, settings, seed_of(seed, question.id, sample))

    return driver.run([job(question, sample) for question in questions for sample in range(samples)], watch)


def _sift(outcomes: Sequence[Outcome[Trajectory]], dropped: Counter[str], *, min_f1: float, keep: int) -> Demonstrations:
    """Keep right answers, different ones, and not too many of a question."""
    kept: dict[str, list[Trajectory]] = {}
    failures: list[str] = []
    for outcome in outcomes:
        if outcome.failure is not None:
            failures.append(outcome.failure.reason)
        reason = _wrong(outcome, min_f1)
        if reason is None:
            assert outcome.value is not None
            same = kept.setdefault(outcome.value.question.id, [])
            if any(_words(other) == _words(outcome.value) for other in same):
                reason = "duplicate"
            elif len(same) >= keep:
                reason = "surplus"
            else:
                same.append(outcome.value)
        if reason is not None:
            dropped[reason] += 1
    trajectories = tuple(trajectory for same in kept.values() for trajectory in same)
    return Demonstrations(trajectories, dict(+dropped), failures[0] if failures else "")


def _wrong(outcome: Outcome[Trajectory], min_f1: float) -> str | None:
    """Why an episode is not a transcript to learn from; None when it is."""
    if outcome.value is None:
        return "failed"
    row = score(outcome.value)
    if row.em == 1 or row.f1 >= min_f1:
        return None
    if row.prediction is None:
        return row.stop.value
    return "not_retrieved" if row.miss is Miss.RETRIEVAL else "wrong_answer"


def _words(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(step.written.text for step in trajectory.steps)
