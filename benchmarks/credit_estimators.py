"""How well do estimators of credit know the advantage of an action? A table, before any reinforcement learning.

    python benchmarks/credit_estimators.py --states benchmarks/data/credit-states.jsonl.gz --run runs/nano

In: the states of `credit_states.py`, and the run whose policy made them; its reward model, if it has the stage `prm`.
A draw takes one continuation of each of the four actions of a state: a group of four episodes that share their
beginning, as GRPO would sample it. An estimator of `train/grpo/credit` gives every step its advantage; that of the step
that differs is compared with the true advantage, from 64 continuations that no estimator sees. Both are taken relative
to the mean of the four actions: estimators have different baselines (the group, the value of the state), and what they
say about the actions against each other is what is compared. The column `raw` leaves the estimates as they are: one
that is too low, or too high, for all actions of a state correlates less.

Out: for each estimator
correlation  with the true advantages, over all states, actions and draws, with a 95% interval from resampled states
raw          the correlation of the estimates as they are
sign         share of the actions with a true advantage beyond +-0.1 whose sign is right; 0 counts as half
bias         root mean square of what remains if the draws of an action are averaged, after the best scale
deviation    standard deviation of the draws of an action, at the same scale
written      tokens that the policy writes for a group beyond the shared beginning
read         tokens that the reward model or the policy reads to score the steps
variance     deviation^2 x tokens written / 1,000: what an estimate costs to be made as certain as another one

The first line, "the true advantages", is one half of the 64 continuations against the other: no estimator can be
expected to correlate more.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from credit_states import read
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import raise_errors
from stepladder.core.trace import Segment, Step, Trajectory
from stepladder.data.atlas.entity_graph import distances_to_answer
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.explore.episode import episode
from stepladder.pipeline.recipe import load_recipe
from stepladder.pipeline.resources import RunContext
from stepladder.train.grpo.answer_likelihood import AnswerLikelihood
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import Evidence
from stepladder.train.grpo.credit.credit_group import credit_group

#: Continuations that the true advantages are from; the others are for the estimators.
TRUE = 64
#: Settings of `grpo` by the name of the line. `k`: further continuations of each state that the estimator needs.
GAIN: dict[str, Any] = {"mode": "gain", "outcome_weight": 0.0, "process_weight": 1.0}
#: As in the recipes of nano. Without `min_std`, a step without tokens, which has no weight in the standard deviation,
#: would have an advantage without limit where all others score alike (four of the 800 actions are empty).
PEERS: dict[str, Any] = {"normalize": "peers", "min_std": 0.3}
ESTIMATORS: dict[str, dict[str, Any]] = {
    "outcome": {"mode": "outcome"},
    "tree, 2 leaves per action": {"mode": "tree", "leaves": 2},
    "tree, 4 leaves per action": {"mode": "tree", "leaves": 4},
    "process, gold": {"mode": "process", "scorer": "gold", **PEERS},
    "process, PRM": {"mode": "process", **PEERS},
    "dual, gold, weight 1": {"mode": "dual", "scorer": "gold", "process_weight": 1.0, **PEERS},
    "dual, PRM, tokens, weight 0.3 (ProRAG)": {"mode": "dual"},
    "dual, PRM, steps, weight 0.3": {"mode": "dual", "normalize": "steps"},
    "dual, PRM, peers, weight 1": {"mode": "dual", "process_weight": 1.0, **PEERS},
    "first-error, gold, weight 1": {"mode": "first-error", "scorer": "gold", "process_weight": 1.0, **PEERS},
    "first-error, PRM, weight 1": {"mode": "first-error", "process_weight": 1.0, **PEERS},
    "gain: PRM": {**GAIN, "potential": "prm"},
    "gain: recall": {**GAIN, "potential": "recall"},
    "gain: graph": {**GAIN, "potential": "graph"},
    "gain: likelihood": {**GAIN, "potential": "likelihood"},
    "gain: Monte Carlo, k = 1": {**GAIN, "potential": "monte-carlo", "num_continuations": 1},
    "gain: Monte Carlo, k = 4": {**GAIN, "potential": "monte-carlo", "num_continuations": 4},
    "gain: agreement, k = 4": {**GAIN, "potential": "agreement", "num_continuations": 4},
    "outcome + gain: PRM": {**GAIN, "potential": "prm", "outcome_weight": 1.0},
    "outcome + gain: recall": {**GAIN, "potential": "recall", "outcome_weight": 1.0},
    "outcome + gain: likelihood": {**GAIN, "potential": "likelihood", "outcome_weight": 1.0},
}  # fmt: skip


@dataclass(slots=True)
class State:
    """A state with its actions, played again."""

    #: The place of the actions among the steps.
    place: int
    #: By action, the episodes that estimators may use.
    episodes: list[list[Trajectory]]
    #: How often the policy took each action.
    counts: list[int]
    #: By action, the F1 of the continuations that make the truth.
    true_f1: list[list[float]]

    @property
    def advantages(self) -> np.ndarray:
        """The true advantage of each action."""
        values = np.array([np.mean(each) for each in self.true_f1])
        return np.asarray(values - values.mean())


# --- playing the episodes again


def scripts_of(lines: Sequence[Mapping[str, Any]], kept: int) -> Iterator[tuple[str, int, list[str]]]:
    """Question, seed and texts of every episode that estimators may use."""
    for line in lines:
        for number, action in enumerate(line["actions"]):
            for which, texts in enumerate(action["continuations"][TRUE:][:kept] or action["continuations"][:1]):
                seed = seed_of(line["question"], number, which)
                yield line["question"], seed, [*line["prefix"], action["text"], *texts]


def play(lines: Sequence[Mapping[str, Any]], context: RunContext, split: str, kept: int) -> list[State]:
    """Play the episodes of the file: the agent reads the texts, and searches are made again."""
    questions = {each.id: each for each in context.split(split)}
    by_seed: dict[int, str] = {}
    jobs = []
    settings = context.episode()
    long = replace(settings, sampling=replace(settings.sampling, temperature=1.0, max_tokens=100_000))
    for question, seed, texts in scripts_of(lines, kept):
        by_seed |= {seed_of(seed, place): text for place, text in enumerate(texts)}
        jobs.append(partial(episode, context.agent, questions[question], long, seed))
    engine = ScriptedEngine(lambda request: by_seed[request.seed])
    played = iter(Driver(engine, context.retriever).run(jobs))

    def episodes(action: Mapping[str, Any]) -> list[Trajectory]:
        count = len(action["continuations"][TRUE:][:kept]) or 1
        found = [next(played) for _ in range(count)]
        assert all(each.value is not None for each in found), next(each.failure for each in found if each.failure)
        return [each.value for each in found if each.value is not None]

    return [
        State(
            len(line["prefix"]),
            [episodes(action) for action in line["actions"]],
            [action["count"] for action in line["actions"]],
            [action["f1"][:TRUE] for action in line["actions"]],
        )
        for line in lines
    ]


def with_tokens(trajectory: Trajectory, engine: InProcessEngine) -> Trajectory:
    """With the token ids of the policy's tokenizer."""

    def encoded(segment: Segment) -> Segment:
        return engine.encode(Segment(segment.author, segment.text))

    def step(each: Step) -> Step:
        return replace(each, read=tuple(map(encoded, each.read)), written=encoded(each.written))

    return replace(trajectory, steps=tuple(map(step, trajectory.steps)))


# --- evidence and draws


@dataclass(slots=True)
class Scores:
    """What is known of every episode, by state, action and number."""

    prm: list[list[list[Sequence[float | None]]]] | None
    gold: list[list[list[Sequence[float | None]]]]
    #: Log-probs of the gold answer before the action, and after it.
    likelihood: list[list[tuple[float | None, float | None]]]


def score_all(states: Sequence[State], scorer: Any) -> list[list[list[Sequence[float | None]]]]:
    """The logits of every step."""
    flat = [each for state in states for own in state.episodes for each in own]
    found = iter(raise_errors(scorer.score_logits(flat)))
    return [[[next(found) for _ in own] for own in state.episodes] for state in states]


def answer_logps(
    states: Sequence[State], likelihood: AnswerLikelihood
) -> list[list[tuple[float | None, float | None]]]:
    """Of every action, before and after it; an action that ends the episode has none after it."""
    found = []
    for state in states:
        firsts = [own[0] for own in state.episodes]
        short = [replace(each, steps=each.steps[: state.place + 2]) for each in firsts]
        logps, _ = likelihood(short)
        found.append([(each[state.place], each[-1] if len(each) > state.place + 1 else None) for each in logps])
    return found


@dataclass(frozen=True, slots=True)
class Draw:
    """A group for an estimator: per episode its action and number, and the evidence of its steps."""

    members: list[tuple[int, int]]
    evidence: Evidence


def draw(
    states: Sequence[State], number: int, settings: GRPOConfig, scores: Scores, leaves: int, rng: random.Random
) -> Draw:
    """One draw of a state."""
    state = states[number]
    members = [
        (action, which)
        for action, own in enumerate(state.episodes)
        for which in rng.sample(range(len(own)), min(leaves, len(own)))
    ]
    episodes = [state.episodes[action][which] for action, which in members]
    chosen = scores.gold if settings.scorer == "gold" else scores.prm
    evidence = Evidence()
    if settings.scores_steps:
        assert chosen is not None
        evidence = replace(evidence, step_scores=[chosen[number][action][which] for action, which in members])
    if settings.mode == "tree":
        evidence = replace(evidence, nodes=[nodes_of(state, *each, own) for each, own in zip(members, episodes)])
    if settings.mode == "gain" and settings.potential == "graph":
        evidence = replace(evidence, distances=distances_to_answer(episodes[0].question))
    if settings.mode == "gain" and settings.potential == "likelihood":
        evidence = replace(
            evidence,
            answer_logps=[
                at_action(state.place, len(each.steps), scores.likelihood[number][action], None)
                for (action, _), each in zip(members, episodes)
            ],
        )
    if settings.mode == "gain" and settings.potential in ("monte-carlo", "agreement"):
        before = [some_episode(state, rng) for _ in range(settings.num_continuations)]
        evidence = replace(
            evidence,
            continuations=[
                at_action(state.place, len(each.steps), (before, others(state, *member, settings, rng)), [])
                for member, each in zip(members, episodes)
            ],
        )
    return Draw(members, evidence)


def at_action(place: int, steps: int, values: tuple[Any, Any], empty: Any) -> list[Any]:
    """One value per state of an episode: known before and after the action, `empty` elsewhere."""
    found = [empty] * steps
    for index, value in zip((place, place + 1), values):
        if index < steps:
            found[index] = value
    return found


def some_episode(state: State, rng: random.Random) -> Trajectory:
    """An episode from the state, as the policy would continue."""
    (action,) = rng.choices(range(len(state.episodes)), state.counts)
    return rng.choice(state.episodes[action])


def others(state: State, action: int, which: int, settings: GRPOConfig, rng: random.Random) -> list[Trajectory]:
    """Other continuations of an action."""
    own = [each for number, each in enumerate(state.episodes[action]) if number != which]
    return rng.sample(own, min(settings.num_continuations, len(own)))


def nodes_of(state: State, action: int, which: int, trajectory: Trajectory) -> list[int]:
    """The nodes of a tree in which the beginning and equal actions are shared."""
    after = 1000 * (action + 1)
    inner = [after + 20 * (which + 1) + place for place in range(len(trajectory.steps) - state.place - 1)]
    return [*range(1, state.place + 1), after, *inner]


# --- the table


def cost(state: State, drawn: Draw, settings: GRPOConfig) -> tuple[int, int]:
    """Tokens that the policy writes, and that are read to score the steps."""

    def written(trajectory: Trajectory, first: int) -> int:
        return sum(len(step.written.tokens) for step in trajectory.steps[first:])

    episodes = [state.episodes[action][which] for action, which in drawn.members]
    total = sum(written(each, state.place) for each in episodes)
    if drawn.evidence.continuations:  # of the state itself they are shared; of an action they are its own
        total += sum(written(each, state.place) for each in drawn.evidence.continuations[0][state.place])
        after = [some for own in drawn.evidence.continuations for some in own[state.place + 1 : state.place + 2]]
        total += sum(written(each, state.place + 1) for some in after for each in some)
    read = 0
    if drawn.evidence.step_scores is not None and settings.scorer == "prm":
        read = sum(len(segment.tokens) for each in episodes for segment in each.context())
    if drawn.evidence.answer_logps is not None:
        read = sum(
            len(segment.tokens)
            for each in episodes
            for index in (state.place, state.place + 1)
            if index < len(each.steps)
            for segment in each.consumed(index)
        )
    return total, read


def settings_of(name: str) -> tuple[GRPOConfig, int]:
    """The settings of an estimator, and how many episodes of an action it takes."""
    options = dict(ESTIMATORS[name])
    leaves = options.pop("leaves", 1)
    return GRPOConfig(**options), leaves


def estimates(
    states: Sequence[State], name: str, scores: Scores, draws: int
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Per state, action and draw the estimate, and the truth; tokens written and read per group."""
    settings, leaves = settings_of(name)
    found = np.zeros((len(states), 4, draws))
    written, read_tokens = [], []
    for number, state in enumerate(states):
        rng = random.Random(seed_of("draws", number))
        for which in range(draws):
            drawn = draw(states, number, settings, scores, leaves, rng)
            group = [state.episodes[action][each] for action, each in drawn.members]
            for (action, _), credited in zip(drawn.members, credit_group(group, settings, drawn.evidence)):
                found[number, action, which] = credited.advantages[state.place]
            spent = cost(state, drawn, settings)
            written.append(spent[0])
            read_tokens.append(spent[1])
    truth = np.stack([state.advantages for state in states])
    return found, truth, float(np.mean(written)), float(np.mean(read_tokens))


def correlation(estimate_SAD: np.ndarray, truth_SA: np.ndarray) -> float:
    """Pearson's, over everything; 0 if an estimator, or the truth, is the same everywhere."""
    flat, true = estimate_SAD.reshape(-1), np.repeat(truth_SA.reshape(-1), estimate_SAD.shape[2])
    return float(np.corrcoef(flat, true)[0, 1]) if flat.std() > 0 and true.std() > 0 else 0.0


def summary(estimate_SAD: np.ndarray, truth_SA: np.ndarray, written: float, read_tokens: float) -> dict[str, Any]:
    """One line of the table."""
    raw = correlation(estimate_SAD, truth_SA)
    estimate_SAD = estimate_SAD - estimate_SAD.mean(axis=1, keepdims=True)
    true_SA1 = truth_SA[:, :, None]
    scale = float((estimate_SAD * true_SA1).sum() / max((estimate_SAD**2).sum(), 1e-12))
    scaled = scale * estimate_SAD
    variance = float(scaled.var(axis=2, ddof=1).mean())
    remaining = float(((scaled.mean(axis=2) - truth_SA) ** 2).mean()) - variance / estimate_SAD.shape[2]
    clear = np.abs(true_SA1) > 0.1
    right = (np.sign(estimate_SAD) == np.sign(true_SA1)) + 0.5 * (estimate_SAD == 0)
    rng = np.random.default_rng(0)
    resampled = [
        correlation(estimate_SAD[chosen], truth_SA[chosen])
        for chosen in (rng.integers(0, len(truth_SA), len(truth_SA)) for _ in range(1000))
    ]
    return {
        "correlation": correlation(estimate_SAD, truth_SA),
        "low": float(np.percentile(resampled, 2.5)),
        "high": float(np.percentile(resampled, 97.5)),
        "raw": raw,
        "sign": float(right[np.broadcast_to(clear, right.shape)].mean()) if clear.any() else 0.5,
        "bias": max(remaining, 0.0) ** 0.5,
        "deviation": variance**0.5,
        "written": written,
        "read": read_tokens,
        "cost": variance * written / 1000,
    }


def ceiling(states: Sequence[State]) -> float:
    """The correlation of the advantages from one half of the continuations with those from the other."""

    def half(state: State, start: int) -> np.ndarray:
        values = np.array([np.mean(each[start::2] or each) for each in state.true_f1])
        return np.asarray(values - values.mean())

    halves = [np.concatenate([half(state, start) for state in states]) for start in (0, 1)]
    return float(np.corrcoef(*halves)[0, 1])


def show(table: Mapping[str, Mapping[str, Any]]) -> None:
    head = f"{'estimator':42}{'correlation':>26}{'raw':>7}{'sign':>7}{'bias':>7}{'deviation':>11}"
    print(head + f"{'written':>9}{'read':>8}{'variance':>10}")
    for name, each in sorted(table.items(), key=lambda item: -item[1]["correlation"]):
        interval = f"{each['correlation']:.3f} [{each['low']:.3f}, {each['high']:.3f}]"
        line = f"{name:42}{interval:>26}{each['raw']:>7.3f}{each['sign']:>7.2f}{each['bias']:>7.3f}"
        print(line + f"{each['deviation']:>11.3f}{each['written']:>9,.0f}{each['read']:>8,.0f}{each['cost']:>10.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=Path, default=Path(__file__).parent / "data" / "credit-states.jsonl.gz")
    parser.add_argument("--run", type=Path, help="the run that made the states, with the stages sft and prm")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--only", action="append", choices=list(ESTIMATORS), help="may be given several times")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.run is None or not chosen.states.is_file():
        print("left out: it needs --run RUN, with the stages sft and prm, and the states of credit_states.py")
        return 0
    began = time.monotonic()
    context = RunContext(load_recipe(str(chosen.run / "recipe.yaml")).shared)
    lines = read(chosen.states)
    states = play(lines, context, chosen.split, kept=32)
    names = chosen.only or list(ESTIMATORS)
    reward = chosen.run / "prm" / "reward"
    with context.engine(str(chosen.run / "sft" / "policy")) as engine:
        assert isinstance(engine, InProcessEngine)
        for state in states:
            state.episodes = [[with_tokens(each, engine) for each in own] for own in state.episodes]
        likelihood = AnswerLikelihood(engine.model, engine, context.agent, nullcontext)  # type: ignore[attr-defined]
        logps = answer_logps(states, likelihood)
    prm = score_all(states, context.scorer("prm", reward)) if reward.is_dir() else None
    scores = Scores(prm, score_all(states, context.scorer("gold", None)), logps)
    if prm is None:
        names = [name for name in names if not settings_of(name)[0].needs_reward_model]
        print(f"{reward} is missing: estimators with a PRM are left out")
    table = {name: summary(*estimates(states, name, scores, chosen.draws)) for name in names}
    used = sum(len(own) for state in states for own in state.episodes)
    print(f"{len(states)} states, {used:,} episodes, {chosen.draws} draws, {time.monotonic() - began:.0f} s")
    print(f"the true advantages, half against half: {ceiling(states):.3f}")
    show(table)
    if chosen.json:
        chosen.json.write_text(json.dumps({"ceiling": ceiling(states), "estimators": table}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
