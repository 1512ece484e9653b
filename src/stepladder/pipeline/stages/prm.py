"""The stage `prm`: train a process reward model. The work is done by train/prm_training.py.

In: a policy to begin with, and pairs of steps; or, for objectives that predict values, trees. Out: a reward model; and
`episodes/`, what the policy has played for it, where it was told to.
"""

import random
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Pair, Question, Trajectory
from stepladder.explore.tree_store import read_trees
from stepladder.explore.values import monte_carlo
from stepladder.oracle.control_chains import control_chains
from stepladder.oracle.corruptions import Corruptor
from stepladder.pipeline.episodes import sampled_episodes
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import (
    DEV_PAIRS,
    PAIRS,
    POLICY,
    REWARD,
    TRAIN_PAIRS,
    TREES,
    FinishedStage,
    StageResult,
    StageSpec,
    Task,
    never,
    tree_questions,
)
from stepladder.pipeline.stage_summary import Numbers, StageSummary, measured, unless_zero, updates
from stepladder.preferences.pair_stats import listed
from stepladder.train.prm.config import PRMConfig
from stepladder.train.prm.prm_questions import PRMQuestions, choose

if TYPE_CHECKING:
    from stepladder.judges.prm.prm_inputs import PRMInputBuilder
    from stepladder.train.prm.prm_data import PRMExample
    from stepladder.train.prm.trainer import ExampleMaker

    Examples = tuple[Sequence[PRMExample], Sequence[PRMExample], dict[str, object]]


def run_prm(settings: PRMConfig, context: RunContext, task: Task) -> StageResult:
    """Train on the pairs or trees of earlier stages."""
    from stepladder.train.prm.trainer import train_prm  # brings torch and transformers

    examples: ExampleMaker
    if settings.objective == "pairs":
        examples = partial(_from_pairs, settings, context, Path(task.inputs[PAIRS]))
    else:
        trees = Path(task.inputs[TREES])
        explored = [tree.question.id for tree in read_trees(trees)]
        questions = choose(settings, _train_questions(settings, context), explored, task.seed)
        played: Sequence[Trajectory] = ()
        if questions.played:
            _expect_same_words(settings, task.inputs["policy"])
            played = sampled_episodes(
                context, task, questions.played, samples=settings.num_generations, temperature=settings.temperature
            )
        examples = partial(_from_trees, settings, context, trees, questions, played, task.seed)
    report = train_prm(
        settings.model or task.inputs["policy"],
        examples,
        settings,
        task.folder,
        seed=task.seed,
        device=context.settings.device,
        dtype=context.settings.dtype,
    )
    return StageResult(report.numbers, {REWARD: report.reward})


def _from_pairs(settings: PRMConfig, context: RunContext, folder: Path, builder: "PRMInputBuilder") -> "Examples":
    from stepladder.preferences.pair_checks import PairCheck
    from stepladder.train.prm.prm_data import from_pairs

    check = PairCheck(context.agent, context.all_questions(), builder.encoding, None, retokenize=settings.retokenize)
    train, dev = (check.sift(read_records(folder / name, Pair)) for name in (TRAIN_PAIRS, DEV_PAIRS))
    train.expect_some(str(folder / TRAIN_PAIRS))
    refused = dict((train.refused + dev.refused).most_common())
    counts = {"pairs": len(train.pairs), "held_out_pairs": len(dev.pairs), "refused": refused}
    return (
        from_pairs(train.pairs, builder, settings.margin),
        from_pairs(dev.pairs, builder, settings.margin),
        counts,
    )


def _train_questions(settings: PRMConfig, context: RunContext) -> Sequence[Question]:
    """Those to choose from; none are needed for trees alone."""
    return context.split("train") if settings.chains or settings.episodes else ()


def _from_trees(
    settings: PRMConfig,
    context: RunContext,
    path: Path,
    questions: PRMQuestions,
    played: Sequence[Trajectory],
    seed: int,
    builder: "PRMInputBuilder",
) -> "Examples":
    from stepladder.train.prm.prm_data import from_chains, from_trees, gold_verdicts, outcomes

    values_of = {"verdicts": gold_verdicts, "values": monte_carlo, "outcome": outcomes}[settings.objective]

    def of_policy(held_out: bool) -> "list[PRMExample]":
        """What the policy has written, of questions that are held out, or of the others."""
        trees = (tree for tree in read_trees(path) if (tree.question.id in questions.held_out) is held_out)
        episodes = (each for each in played if (each.question.id in questions.held_out) is held_out)
        return [*from_trees(trees, builder, values_of), *from_chains(episodes, builder)]

    train, dev = of_policy(held_out=False), of_policy(held_out=True)
    counts: dict[str, object] = {}
    if played:
        written = sum(step.usage.written for trajectory in played for step in trajectory.steps)
        broken = len(questions.played) * settings.num_generations - len(played)
        counts = {"episodes": len(played), "broken": broken, "tokens_sampled": written}
    if questions.chained:
        train += from_chains(_chains(questions.chained, settings.corruptions, context, seed), builder)
    if not train:
        raise StepladderError(
            f"no step of the trees in {path} has a value for the objective '{settings.objective}'. Verdicts need "
            "questions with a gold decomposition or gold passages; values and outcomes need roll-outs and ends"
        )
    steps, held = (sum(len(example.values) for example in examples) for examples in (train, dev))
    return train, dev, {**counts, "scored_steps": steps, "held_out_steps": held}


def _chains(questions: Sequence[Question], spoilt: int, context: RunContext, seed: int) -> list[Trajectory]:
    """Gold chains and the same ones spoilt, with the mistakes of `spoilt.py` besides."""
    agent, retriever, episode = context.agent, context.retriever, context.episode()
    control = control_chains(agent, questions, retriever, episode, seed=seed)
    chains = [chain for each in control.values() for chain in each]
    spoiler = Corruptor(agent, retriever, episode.k, questions, random.Random(seed_of(seed, "spoilt")))
    return chains + [each for gold in control["gold"] for each in spoiler.spoil(gold, spoilt)]


def _expect_same_words(settings: PRMConfig, policy: str) -> None:
    """Raise before anything is played where the reward model could not read it."""
    from stepladder.models.loading import fingerprint, load_tokenizer

    if settings.model is None or settings.retokenize:
        return
    if fingerprint(load_tokenizer(settings.model)) != fingerprint(load_tokenizer(policy)):
        raise StepladderError(
            f"model {settings.model} has another tokenizer than the policy, whose episodes it is to learn from: set "
            "retokenize to true to have their text encoded anew, or episodes to 0"
        )


def check_prm(settings: PRMConfig, context: RunContext) -> None:
    """Where the policy is to play, or gold chains are to be made, there must be questions for it, and an index."""
    if not (settings.episodes or settings.chains):
        return
    questions = context.split("train")
    if settings.episodes and not any(question.hops or question.gold_passages for question in questions):
        raise StepladderError(
            "no question of the split 'train' has a gold decomposition or gold passages: the gold judge could say "
            "nothing of what the policy plays; set episodes to 0"
        )
    if settings.chains and not any(question.hops for question in questions):
        raise StepladderError("no question of the split 'train' has a gold decomposition: set chains and spoilt to 0")
    context.check_index()


def _left_out(settings: PRMConfig) -> frozenset[str]:
    needless = {TREES} if settings.objective == "pairs" else {PAIRS}
    return frozenset(needless | ({"policy"} if settings.model is not None and not settings.episodes else set()))


def summarize(numbers: Numbers) -> StageSummary:
    """What it was trained on, and how well it does on held-out questions."""
    unit, trained, held_out = (
        ("pairs", "pairs", "held_out_pairs") if "pairs" in numbers else ("steps", "scored_steps", "held_out_steps")
    )
    measures = {f"held_out_{name}": name for name in ("accuracy", "margin", "error", "loss")}
    return (
        f"trained on {numbers[trained]:,} {unit}; held out {numbers[held_out]:,}{measured(numbers, measures, ': ')}",
        {
            "updates": updates(numbers),
            "refused": listed(numbers.get("refused", {})),
            "truncated histories": unless_zero(numbers.get("histories_cut")),
            "retokenized segments": unless_zero(numbers.get("segments_retokenized")),
        },
    )


def questions_used(stage: FinishedStage) -> Iterable[str]:
    """Questions of sampled episodes and gold chains, beyond those of the trees or pairs."""
    settings: PRMConfig = stage.settings
    if not (settings.chains or settings.episodes):
        return ()
    if TREES not in stage.inputs:
        raise StepladderError("the trees that this reward model was trained on are missing")
    chosen = choose(settings, stage.context.split("train"), tree_questions(stage.inputs[TREES]), stage.seed)
    return (question.id for question in (*chosen.played, *chosen.chained))


STAGE = StageSpec(
    PRMConfig,
    run_prm,
    inputs=(POLICY, PAIRS, TREES),
    outputs=(REWARD,),
    unused_inputs=_left_out,
    check=check_prm,
    summarize=summarize,
    questions=questions_used,
    generates=never,
    external_files=("model",),
    inert=lambda settings: (
        frozenset() if settings.episodes else frozenset({"episodes", "num_generations", "temperature"})
    ),
    version=2,  # the gold judge no longer blames a reply for its query
)
