"""Demonstrations: trajectories with correct answers, made once by their source and stored in the output folder.

    gold        episodes of the oracle, which replays the gold decomposition: exact, no generation needed
    mined       the same with weak decompositions from the corpus (`weak_decomposition.py`): needs only answers
    teacher     samples of a stronger model behind an OpenAI-compatible server, with an optional spending limit; its
                responses are cached on disk
    bootstrap   samples of the model itself with a few-shot prompt: needs only answers
    trees       the best branch of each search tree of an earlier stage

In: settings, questions, an engine with the model to train. Out: `Demonstrations`, stored in `transcripts.jsonl`, and
what was dropped in `dropped.json`. If both files exist, they are read. Episodes are run by the driver and rendered by
the agent.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from stepladder.agents import Play
from stepladder.agents.base import Agent
from stepladder.core.answer_metrics import Miss, score
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.records import read_records, write_records
from stepladder.core.trace import ActionKind, Question, Trajectory, Tree
from stepladder.driver import Driver, Outcome, OutcomeCallback
from stepladder.engines.base import Engine
from stepladder.engines.spend.budget import open_paid_engine
from stepladder.engines.spend.prices import Budget
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.ranked import best_branch
from stepladder.oracle.engine import OracleEngine
from stepladder.retrieval.base import Retriever
from stepladder.train.loop.context import TrainingContext, Trees, iter_trees
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.fewshot import FewShot
from stepladder.train.transcripts.sample_checks import SampleRules, is_supported, solved_shares
from stepladder.train.transcripts.sampled_episodes import episode_jobs
from stepladder.train.transcripts.tokenized import expect_token_ids

_TRANSCRIPTS, _DROPPED = "transcripts.jsonl", "dropped.json"

_OUTSIDE = "Text outside the agent's strict format is not imitated: generate it with format: constrained."
_ADVICE = {
    "gold": "Use questions with decompositions and their own index, or source mined, bootstrap or teacher.",
    "mined": "The index has no passages with the answers that the questions lead to: is it the right one?",
    "teacher": "Try another teacher_model, a higher num_generations, or a lower min_f1.",
    "trees": "No best branch ends with a correct answer: use a better policy or judge, more questions, a lower min_f1.",
    "bootstrap": "The model answers none correctly: try a higher num_generations, a lower min_f1, or another source.",
}


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """The result of a source."""

    kept: tuple[Trajectory, ...]
    #: How many were dropped, by reason.
    dropped: dict[str, int]
    #: Why an episode failed, for the error message if there are no demonstrations; empty if none failed.
    first_failure: str = ""

    @property
    def requested(self) -> int:
        """Episodes, and questions without any."""
        return len(self.kept) + sum(self.dropped.values())


def demonstrations_exist(folder: Path) -> bool:
    """Whether the demonstrations are stored in a folder."""
    return (folder / _TRANSCRIPTS).exists() and (folder / _DROPPED).exists()


def load_or_make(
    config: SFTConfig,
    context: TrainingContext,
    engine: Engine,
    questions: Sequence[Question],
    trees: Trees | None = None,
) -> Demonstrations:
    """Demonstrations of these questions, from the output folder or else from their source.

    `engine`: the model to train. `trees`: for the source `trees`. Weak decompositions must already be there.
    """
    path, counts = context.folder / _TRANSCRIPTS, context.folder / _DROPPED
    if demonstrations_exist(context.folder):
        dropped = json.loads(counts.read_text(encoding="utf-8"))
        return Demonstrations(tuple(read_records(path, Trajectory)), dropped)
    made = _make(config, context, engine, questions, trees)
    if not made.kept:
        why = ", ".join(f"{reason} {count:,}" for reason, count in sorted(made.dropped.items())) or "no questions"
        failure = f" The first failure: {made.first_failure}." if made.first_failure else ""
        raise StepladderError(
            f"source '{config.source}' gave no demonstrations, of {made.requested:,} requested (dropped: {why})."
            f"{failure} {_OUTSIDE if 'outside_format' in made.dropped else _ADVICE[config.source]}"
        )
    with atomic_file(counts) as file:
        json.dump(made.dropped, file, indent=2)
    write_records(path, made.kept)  # last: if it exists, both are complete
    return made


def _make(
    config: SFTConfig, context: TrainingContext, engine: Engine, questions: Sequence[Question], trees: Trees | None
) -> Demonstrations:
    match config.source:
        case "trees":
            if trees is None:
                raise StepladderError("source 'trees' needs search trees: run explore or rank first")
            made = tree_demonstrations(iter_trees(trees), config.min_f1)
            expect_token_ids(made.kept, reencode=config.reencode)
            return made
        case "gold" | "mined":
            return gold_demonstrations(
                context.agent, questions, context.retriever, context.episode, seed=context.seed, watch=context.watch
            )
        case "bootstrap":
            return sampled_demonstrations(engine, context, config, questions)
    assert config.teacher_model is not None  # checked by SFTConfig
    budget = None if config.teacher_budget is None else Budget.parse(config.teacher_budget)
    engine_of_teacher = open_paid_engine(
        config.teacher_model,
        context.folder,
        url=config.teacher_url,
        budget=budget,
        prices=config.teacher_prices,
        prefix="teacher-",  # of TEACHER_FILES
    )
    with closing(engine_of_teacher) as teacher:
        return sampled_demonstrations(teacher, context, config, questions)


def gold_demonstrations(
    agent: Agent,
    questions: Sequence[Question],
    retriever: Retriever | None,
    config: EpisodeConfig,
    *,
    seed: int,
    watch: OutcomeCallback | None = None,
) -> Demonstrations:
    """The oracle's episode of every question with a gold decomposition, if the search finds the passages it needs."""
    answerable = [question for question in questions if question.answers]
    playable = [question for question in answerable if question.hops or ActionKind.QUERY not in agent.kinds]
    agent = agent.playing(Play())
    driver = Driver(OracleEngine(agent, seed), retriever)
    dropped = Counter(
        no_known_answer=len(questions) - len(answerable), no_decomposition=len(answerable) - len(playable)
    )
    outcomes = driver.run(episode_jobs(agent, playable, config, 1, seed), watch)
    return _filter(outcomes, dropped, SampleRules())


def tree_demonstrations(trees: Iterable[Tree], min_f1: float) -> Demonstrations:
    """The best branch of every tree, if its answer is correct."""
    branches = [tree.trajectory(best_branch(tree)[-1]) for tree in trees]
    outcomes = [Outcome(number, branch) for number, branch in enumerate(branches)]
    return _filter(outcomes, Counter(), SampleRules(min_f1))


def sampled_demonstrations(
    engine: Engine, context: TrainingContext, config: SFTConfig, questions: Sequence[Question]
) -> Demonstrations:
    """Samples of a model with a few-shot prompt: up to `keep` distinct, correct transcripts per question."""
    few_shot = FewShot(context.agent.playing(Play.of(config.format)))
    playable = [question for question in questions if question.answers]
    dropped = Counter(no_known_answer=len(questions) - len(playable))
    episode = replace(context.episode, sampling=replace(context.episode.sampling, temperature=config.temperature))
    jobs = episode_jobs(few_shot.agent, playable, episode, config.num_generations, context.seed)
    outcomes = [
        replace(outcome, value=few_shot.strip(outcome.value)) if outcome.value is not None else outcome
        for outcome in Driver(engine, context.retriever).run(jobs, context.watch)
    ]
    return _filter(outcomes, dropped, SampleRules.of(config))


def _filter(outcomes: Sequence[Outcome[Trajectory]], dropped: Counter[str], rules: SampleRules) -> Demonstrations:
    """Keep correct answers that follow the rules, distinct ones, and at most `keep` per question."""
    kept: dict[str, list[Trajectory]] = {}
    failures: list[str] = []
    shares = solved_shares([each.value for each in outcomes if each.value is not None], rules.min_f1)
    for outcome in outcomes:
        if outcome.failure is not None:
            failures.append(outcome.failure.reason)
        reason = _wrong(outcome, rules.min_f1)
        if reason is None:
            assert outcome.value is not None
            share = shares[outcome.value.question.id]
            if not rules.fits(share):
                reason = "rarely_solved" if share < rules.least_solved else "often_solved"
            elif rules.supported and not is_supported(outcome.value):
                reason = "not_supported"
        if reason is None:
            assert outcome.value is not None
            same = kept.setdefault(outcome.value.question.id, [])
            if any(_texts(other) == _texts(outcome.value) for other in same):
                reason = "duplicate"
            elif len(same) >= rules.keep:
                reason = "surplus"
            else:
                same.append(outcome.value)
        if reason is not None:
            dropped[reason] += 1
    trajectories = tuple(trajectory for same in kept.values() for trajectory in same)
    return Demonstrations(trajectories, dict(+dropped), failures[0] if failures else "")


def _wrong(outcome: Outcome[Trajectory], min_f1: float) -> str | None:
    """Why an episode is not a demonstration; None if it is one. An answer is correct by exact match or by its F1."""
    if outcome.value is None:
        return "failed"
    row = score(outcome.value)
    if row.prediction is not None and not outcome.value.is_strict:
        return "outside_format"
    if row.em == 1 or row.f1 >= min_f1:
        return None
    if row.prediction is None:
        return row.stop.value
    return "not_retrieved" if row.miss is Miss.RETRIEVAL else "wrong_answer"


def _texts(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(step.written.text for step in trajectory.steps)
