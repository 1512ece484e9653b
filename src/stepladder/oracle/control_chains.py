"""Control chains: a gold trajectory, and the same one spoilt in a known way, to see what a reward model notices.

In: an agent and a gold trajectory. Out: chains by name, as the agent's policy would have written them:

    gold            as it was
    shuffled        the searches in another order, each with what was read from it
    truncated       the last search left out, the answer given all the same
    answer_first    nothing but the answer

A chain counts as spoilt only when the gold judge finds a fault in it; where it finds none, the name is missing. One
search is neither shuffled nor truncated, and two numbers that are only compared may be looked up in any order.

Actions move with their thoughts and with the passages that their search found; nothing is reworded. The plan, which a
gold trajectory thinks before its first search, is therefore wherever that search is, and a chain may begin with
"Now 2.". A reward model can notice this as well as the order itself.
"""

import random
from collections.abc import Iterator, Sequence
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

#: What was done, and what it found.
Turn = tuple[Action, tuple[Passage, ...]]

#: The names of the chains, the spoilt ones last.
CHAINS = ("gold", "shuffled", "truncated", "answer_first")


def control_variants(agent: Agent, trajectory: Trajectory, rng: random.Random) -> dict[str, Trajectory]:
    """The control chains of a gold trajectory, in the order of `CHAINS`. `rng` draws the order of the shuffled one.

    All of them, gold as well, are rendered and written anew, so that their segments are alike: none has token ids.
    """
    if trajectory.answer is None:
        raise ValueError(
            f"the trajectory of {trajectory.question.id!r} ends with {trajectory.stop or 'nothing'}; "
            "control chains are made of one that ends with an answer"
        )
    *steps, answer = trajectory.steps
    units = _units(steps)
    candidates = {
        "shuffled": (_joined(order, answer) for order in _other_orders(units, rng)),
        "truncated": iter([_joined(units[:-1], answer)] if len(units) > 1 else []),
        "answer_first": iter([[answer]] if units else []),
    }
    found = {"gold": rebuild_trajectory(agent, trajectory, turns_of(trajectory.steps))}
    for name, chains in candidates.items():
        candidate = (rebuild_trajectory(agent, trajectory, turns_of(chain)) for chain in chains)
        spoilt = next((chain for chain in candidate if _is_faulty(chain)), None)
        if spoilt is not None:
            found[name] = spoilt
    return found


def control_chains(
    agent: Agent,
    questions: Sequence[Question],
    retriever: Retriever | None,
    settings: EpisodeConfig,
    *,
    seed: int,
) -> dict[str, list[Trajectory]]:
    """The control chains of every question whose gold decomposition the search allows to play, by their names."""
    chains: dict[str, list[Trajectory]] = {name: [] for name in CHAINS}
    for gold in gold_chains(agent, questions, retriever, settings, seed=seed):
        for name, chain in control_variants(agent, gold, random.Random(seed_of(seed, gold.question.id))).items():
            chains[name].append(chain)
    return chains


def gold_chains(
    agent: Agent,
    questions: Sequence[Question],
    retriever: Retriever | None,
    settings: EpisodeConfig,
    *,
    seed: int,
) -> list[Trajectory]:
    """The gold decomposition of every question, played, as far as the search finds what it needs."""
    jobs = [partial(episode, agent, question, settings, 0) for question in questions if question.hops]
    outcomes = Driver(OracleEngine(agent, seed), retriever).run(jobs)
    return [gold for each in outcomes if (gold := each.value) is not None and gold.answer in gold.question.answers]


def _units(steps: Sequence[Step]) -> list[list[Step]]:
    """Every query with the steps that read what it found."""
    units: list[list[Step]] = []
    for step in steps:
        if step.action.kind is ActionKind.QUERY or not units:
            units.append([])
        units[-1].append(step)
    return units


def _other_orders(units: list[list[Step]], rng: random.Random) -> Iterator[Sequence[list[Step]]]:
    """Every order but the given one, at random. A gold decomposition has few searches, so they can be listed."""
    others = list(permutations(units))[1:]
    rng.shuffle(others)
    return iter(others)


def _joined(units: Sequence[list[Step]], answer: Step) -> list[Step]:
    return [*(step for unit in units for step in unit), answer]


def turns_of(steps: Sequence[Step]) -> list[Turn]:
    """The actions of some steps, with the passages that they found."""
    return [(step.action, step.passages) for step in steps]


def rebuild_trajectory(agent: Agent, origin: Trajectory, turns: Sequence[Turn]) -> Trajectory:
    """Actions with the passages they found as one trajectory in the agent's own format, ended or not."""
    chain = Trajectory(origin.question, origin.agent, given=origin.given, seed=origin.seed)
    for action, passages in turns:
        read, restarts = new_segments(chain, agent.render(chain))
        written = Segment(Author.POLICY, agent.write(action, chain))
        chain = chain.extend(Step(read, written, action, passages, restarts))
    return chain if chain.answer is None else replace(chain, stop=StopReason.ANSWERED)


def _is_faulty(chain: Trajectory) -> bool:
    return any(verdict is not None and not verdict.good for verdict in judge(chain))
