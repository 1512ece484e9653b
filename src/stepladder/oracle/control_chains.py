"""Control chains: a gold trajectory and copies of it that are corrupted in a known way, to test reward models.

In: an agent and a gold trajectory. Out: trajectories (chains) by name, as the agent's policy would have written them:

    gold            unchanged
    shuffled        the searches in another order, each with its extraction
    truncated       without the last search, but with the answer
    answer_first    the answer only

A corrupted chain is included only if the gold judge finds a fault in it. A single search can be neither shuffled nor
truncated, and two numbers to be compared may be looked up in any order.

Actions move with their thoughts and passages; nothing is reworded. The plan in the thought before the first search
moves with that search, so a chain may start with "Now 2.". A reward model can detect this as well as the order itself.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

from stepladder.agents.base import Agent
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Action, ActionKind, Author, Passage, Question, Segment, Step, StopReason, Trajectory
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig, episode, new_segments
from stepladder.oracle.engine import OracleEngine
from stepladder.oracle.step_judge import judge
from stepladder.retrieval.base import Retriever

#: An action and the passages it retrieved.
Turn = tuple[Action, tuple[Passage, ...]]

#: The names of the chains, the corrupted ones last.
CHAINS = ("gold", "shuffled", "truncated", "answer_first")


def control_variants(agent: Agent, trajectory: Trajectory, rng: random.Random) -> dict[str, Trajectory]:
    """The control chains of a gold trajectory, in the order of `CHAINS`. `rng` draws the order of the shuffled one.

    All of them, gold included, are rendered again, so that none has token ids.
    """
    if trajectory.answer is None:
        raise ValueError(
            f"the trajectory of {trajectory.question.id!r} ends with {trajectory.stop or 'nothing'}; "
            "control chains need one that ends with an answer"
        )
    *steps, answer = trajectory.steps
    units = _units(steps)
    other_orders = list(permutations(units))[1:]  # few: a gold decomposition has few searches
    rng.shuffle(other_orders)
    candidates: dict[str, Sequence[Sequence[list[Step]]]] = {
        "shuffled": other_orders,
        "truncated": [units[:-1]] if len(units) > 1 else [],
        "answer_first": [[]] if units else [],
    }
    found = {"gold": rebuild_trajectory(agent, trajectory, turns_of(trajectory.steps))}
    for name, orders in candidates.items():
        for order in orders:
            chain = rebuild_trajectory(
                agent, trajectory, turns_of([*(step for unit in order for step in unit), answer])
            )
            if any(verdict is not None and verdict.faulty for verdict in judge(chain)):
                found[name] = chain
                break
    return found


def control_chains(
    agent: Agent, questions: Sequence[Question], retriever: Retriever | None, settings: EpisodeConfig, *, seed: int
) -> dict[str, list[Trajectory]]:
    """The control chains, by name, of every question whose gold decomposition the search can answer."""
    chains: dict[str, list[Trajectory]] = {name: [] for name in CHAINS}
    for gold in gold_chains(agent, questions, retriever, settings, seed=seed):
        for name, chain in control_variants(agent, gold, random.Random(seed_of(seed, gold.question.id))).items():
            chains[name].append(chain)
    return chains


def gold_chains(
    agent: Agent, questions: Sequence[Question], retriever: Retriever | None, settings: EpisodeConfig, *, seed: int
) -> list[Trajectory]:
    """The oracle's trajectories of all questions that it answers correctly."""
    jobs = [partial(episode, agent, question, settings, 0) for question in questions if question.hops]
    outcomes = Driver(OracleEngine(agent, seed), retriever).run(jobs)
    return [gold for each in outcomes if (gold := each.value) is not None and _is_right(gold)]


def _is_right(gold: Trajectory) -> bool:
    accepted = gold.question.answers
    return gold.answer in accepted or bool(accepted and gold.answer == gold.question.written_answer)


def _units(steps: Sequence[Step]) -> list[list[Step]]:
    """Every query with the extraction steps that follow it."""
    units: list[list[Step]] = []
    for step in steps:
        if step.action.kind is ActionKind.QUERY or not units:
            units.append([])
        units[-1].append(step)
    return units


def turns_of(steps: Sequence[Step]) -> list[Turn]:
    """The actions of steps, with the passages they retrieved."""
    return [(step.action, step.passages) for step in steps]


def rebuild_trajectory(agent: Agent, origin: Trajectory, turns: Sequence[Turn]) -> Trajectory:
    """Render actions and their passages as a trajectory in the agent's format, finished or not."""
    chain = Trajectory(origin.question, origin.agent, given=origin.given, seed=origin.seed)
    for action, passages in turns:
        read, restarts = new_segments(chain, agent.render(chain))
        written = Segment(Author.POLICY, agent.write(action, chain))
        chain = chain.extend(Step(read, written, action, passages, restarts))
    return chain if chain.answer is None else replace(chain, stop=StopReason.ANSWERED)
