"""The training data of a PRM, from pairs or from search trees.

In: settings, a `TrainingContext`, and pairs or trees. Out: an `ExampleMaker`, which tokenizes the examples with the
PRM's own tokenizer once that is loaded. Trees may be complemented with episodes of the policy and with gold
trajectories, intact and corrupted.
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Pair, Question, Trajectory, Tree
from stepladder.data.sampling import sample_questions
from stepladder.explore.values import monte_carlo
from stepladder.judges.prm.prm_inputs import PRMInputBuilder
from stepladder.models.loading import fingerprint, load_tokenizer
from stepladder.oracle.control_chains import control_chains
from stepladder.oracle.corruptions import Corruptor
from stepladder.preferences.pair_checks import PairCheck, expect_known_tokens
from stepladder.preferences.pairs import dev_questions
from stepladder.train.loop.context import TrainingContext, Trees, iter_trees
from stepladder.train.prm.config import PRMConfig
from stepladder.train.prm.prm_data import (
    PRMExample,
    from_chains,
    from_pairs,
    from_trees,
    gold_verdicts,
    outcomes,
    with_wrong_labels,
)
from stepladder.train.transcripts.sampled_episodes import token_counts

#: Training examples, held-out examples, and counts.
Examples = tuple[Sequence[PRMExample], Sequence[PRMExample], dict[str, object]]
ExampleMaker = Callable[[PRMInputBuilder], Examples]


@dataclass(frozen=True, slots=True)
class PRMQuestions:
    """Questions by their use."""

    #: Not trained on in any form. The held-out pairs of the same trees are of these questions too, so that all
    #: objectives can be compared on them.
    held_out: frozenset[str]
    #: For sampled episodes, and for gold trajectories.
    sampled: tuple[Question, ...]
    gold: tuple[Question, ...]


def choose_questions(
    config: PRMConfig, questions: Sequence[Question], explored: Iterable[str], seed: int
) -> PRMQuestions:
    """A seeded choice; episodes are sampled only of questions that the gold judge can judge."""
    judged = [question for question in questions if question.hops or question.gold_passages]
    sampled = sample_questions(judged, config.episodes, seed) if config.episodes else []
    held_out = dev_questions(explored, config.dev_share)
    if sampled:
        held_out |= dev_questions((question.id for question in sampled), config.dev_share)
    others = [question for question in questions if question.id not in held_out]
    gold = sample_questions(others, config.chains, seed, balance=True) if config.chains else []
    return PRMQuestions(held_out, tuple(sampled), tuple(gold))


def pair_examples(
    config: PRMConfig, context: TrainingContext, train: Iterable[Pair], held_out: Iterable[Pair]
) -> ExampleMaker:
    """Pairs of steps. `context.questions`: those of the pairs, to check that the agent still renders their prompts."""

    def make(builder: PRMInputBuilder) -> Examples:
        allowed = {"retokenize": config.retokenize, "reencode": config.reencode}
        checker = PairCheck(context.agent, context.questions, builder.encoding, None, **allowed)
        accepted, dev, counts = checker.check_splits(train, held_out)
        states = (from_pairs(each, builder, config.margin) for each in (accepted, dev))
        learned, tested = _labelled(config, context.seed, *states)
        return learned, tested, counts

    return make


def tree_examples(
    config: PRMConfig,
    context: TrainingContext,
    trees: Trees,
    policy: str | Path,
    sample: Callable[[Sequence[Question]], Sequence[Trajectory]],
    left_out: Collection[str] = (),
) -> ExampleMaker:
    """The steps of trees, and with `episodes` those of episodes that `sample` generates with the policy.

    `left_out`: the ids of questions whose trees are not used.
    """

    def used() -> Iterator[Tree]:
        return (tree for tree in iter_trees(trees) if tree.question.id not in left_out)

    explored = []
    for tree in used():
        explored.append(tree.question.id)
        written = (node.step.written for node in tree.nodes if node.step is not None)
        expect_known_tokens(written, reencode=config.reencode)
    questions = choose_questions(config, context.questions, explored, context.seed)
    episodes: Sequence[Trajectory] = ()
    if questions.sampled:
        _check_tokenizers(config, policy)
        episodes = sample(questions.sampled)
    objectives: dict[str, Callable[[Tree], Sequence[float | None]]] = {
        "verdicts": partial(gold_verdicts, derived=config.derived),
        "values": monte_carlo,
        "outcome": outcomes,
    }
    values_of = objectives[config.objective]

    def of_policy(builder: PRMInputBuilder, *, held_out: bool) -> list[PRMExample]:
        """Steps that the policy wrote, of held-out questions or of the others."""
        explored = (tree for tree in used() if (tree.question.id in questions.held_out) is held_out)
        own = (each for each in episodes if (each.question.id in questions.held_out) is held_out)
        scored = config.answer_score
        trees_of_policy = from_trees(explored, builder, values_of, scored)
        return [*trees_of_policy, *from_chains(own, builder, config.derived, answer_score=scored)]

    def make(builder: PRMInputBuilder) -> Examples:
        train, dev = of_policy(builder, held_out=False), of_policy(builder, held_out=True)
        counts: dict[str, object] = {}
        if episodes:
            failed = len(questions.sampled) * config.num_generations - len(episodes)
            counts = {"episodes": len(episodes), "broken": failed, **token_counts(episodes)}
        if questions.gold:
            chains = _gold_and_corrupted(config, context, questions.gold)
            labeled, scored = config.chain_answers, config.answer_score
            train += from_chains(chains, builder, config.derived, answers=labeled, answer_score=scored)
        if not train:
            raise StepladderError(
                f"no step of the trees has a value for the objective '{config.objective}'. Verdicts need questions "
                "with a gold decomposition or gold passages; values and outcomes need rollouts and finished ends"
            )
        steps, held_out_steps = (sum(example.targets for example in examples) for examples in (train, dev))
        counts |= {"scored_steps": steps, "held_out_steps": held_out_steps}
        learned, tested = _labelled(config, context.seed, train, dev)
        return learned, tested, counts

    return make


def _labelled(config: PRMConfig, seed: int, *parts: list[PRMExample]) -> list[list[PRMExample]]:
    """Training and held-out examples, with `label_noise`."""
    if not config.label_noise:
        return list(parts)
    return [
        with_wrong_labels(examples, config.label_noise, seed_of(seed, "label noise", part))
        for part, examples in enumerate(parts)
    ]


def _gold_and_corrupted(config: PRMConfig, context: TrainingContext, questions: Sequence[Question]) -> list[Trajectory]:
    """Gold trajectories, their control variants, and copies with one mistake each, without the kinds left out."""
    agent, retriever, episode = context.agent, context.retriever, context.episode
    control = control_chains(agent, questions, retriever, episode, seed=context.seed)
    # fixed label: renaming it would change every run
    rng = random.Random(seed_of(context.seed, "spoilt"))  # word-check: ignore
    corruptor = Corruptor(agent, retriever, episode.k, questions, rng)
    corrupted = [
        each for gold in control["gold"] for each in corruptor.corrupt(gold, config.corruptions, config.leave_out)
    ]
    return [chain for kind, each in control.items() if kind not in config.leave_out for chain in each] + corrupted


def _check_tokenizers(config: PRMConfig, policy: str | Path) -> None:
    """Raise before anything is sampled that the PRM cannot read."""
    if config.model is None or config.retokenize:
        return
    if fingerprint(load_tokenizer(config.model)) != fingerprint(load_tokenizer(policy)):
        raise StepladderError(
            f"model {config.model} has another tokenizer than the policy whose episodes it is trained on: set "
            "retokenize to true, or episodes to 0"
        )
