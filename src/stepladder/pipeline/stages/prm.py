"""The stage `prm`: trains a process reward model, by train/prm.

In: an initial policy, and pairs of steps or, for objectives that predict values, trees. Out: a reward model; and
`episodes/`, the sampled episodes of the policy, if configured.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Pair
from stepladder.data import questions_with_relations
from stepladder.data.atlas import RelationName
from stepladder.pipeline.episodes import check_gold, sampled_episodes
from stepladder.pipeline.pair_folder import PairInputConfig, input_pairs
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import (
    PAIRS,
    POLICY,
    REWARD,
    TREES,
    FinishedStage,
    Labels,
    StageResult,
    StageSpec,
    Task,
    never,
    tree_questions,
)
from stepladder.pipeline.stage_summary import Numbers, StageSummary, measured, unless_zero, updates
from stepladder.preferences.pair_stats import format_counts
from stepladder.train.prm.config import PRMConfig


class PRMStageConfig(PairInputConfig, PRMConfig):
    """Beside the settings of the trainer, questions and pairs to train without."""

    #: Train without the questions of Atlas that use one of these relations: without their trees, pairs, episodes and
    #: chains. The stage prm-eval can examine the model on such questions alone (`relations`).
    leave_out_relations: tuple[RelationName, ...] = ()

    def unused(self) -> Mapping[str, str]:
        """`exclude_marked`, for objectives that read trees."""
        reads_trees = {"exclude_marked": f"with objective: {self.objective} (it is for pairs)"}
        return {**super().unused(), **({} if self.objective == "pairs" else reads_trees)}

    def inert(self) -> frozenset[str]:
        """`leave_out_relations`, unless it is set."""
        return super().inert() | (frozenset() if self.leave_out_relations else frozenset({"leave_out_relations"}))


def _left_out(settings: PRMStageConfig, context: RunContext) -> frozenset[str]:
    """The ids of the questions to train without."""
    data, relations = context.settings.data, settings.leave_out_relations
    return questions_with_relations(data.name, relations, seed=data.world_seed) if relations else frozenset()


def run_prm(settings: PRMStageConfig, context: RunContext, task: Task) -> StageResult:
    """Train on the pairs or trees of earlier stages."""
    from stepladder.train.prm.prm_sources import pair_examples, tree_examples  # imports torch and transformers
    from stepladder.train.prm.trainer import train_prm

    left_out = _left_out(settings, context)

    def kept(pairs: Iterable[Pair]) -> list[Pair]:
        return [pair for pair in pairs if pair.question_id not in left_out]

    excluded = {}
    if settings.objective == "pairs":
        training = context.training(task, context.all_questions(), search=False)
        train, held_out, unmarked = input_pairs(task)
        examples = pair_examples(settings, training, kept(train), kept(held_out))
        excluded = {"excluded_marked": unmarked.excluded}
    else:
        extended = bool(settings.chains or settings.episodes)
        questions = [each for each in context.split("train") if each.id not in left_out] if extended else ()
        training = context.training(task, questions, search=extended)
        sample = partial(
            sampled_episodes, context, task, num_generations=settings.num_generations, temperature=settings.temperature
        )
        trees = Path(task.inputs[TREES])
        examples = tree_examples(settings, training, trees, task.inputs.get(POLICY, ""), sample, left_out=left_out)
    report = train_prm(settings.model or task.inputs[POLICY], training, settings, examples)
    return StageResult({**report.numbers, **excluded}, {REWARD: report.reward})


def check_prm(settings: PRMConfig, context: RunContext) -> None:
    """Sampled episodes and gold trajectories require questions with gold labels, and an index."""
    if not (settings.episodes or settings.chains):
        return
    questions = context.split("train")
    if settings.episodes and not any(question.hops or question.gold_passages for question in questions):
        raise StepladderError(
            "no question of the split 'train' has a gold decomposition or gold passages, so the gold judge cannot "
            "label sampled episodes; set episodes to 0"
        )
    if settings.chains and not any(question.hops for question in questions):
        raise StepladderError(
            "no question of the split 'train' has a gold decomposition: set chains and corruptions to 0"
        )
    context.check_index()
    check_gold(context, questions)


def _unused(settings: PRMConfig) -> frozenset[str]:
    unused = {TREES} if settings.objective == "pairs" else {PAIRS}
    return frozenset(unused | ({POLICY} if settings.model is not None and not settings.episodes else set()))


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
            "refused": format_counts(numbers.get("refused", {})),
            "marked as wrong, left out": unless_zero(numbers.get("excluded_marked")),
            "truncated histories": unless_zero(numbers.get("histories_cut")),
            "retokenized segments": unless_zero(numbers.get("segments_retokenized")),
        },
    )


def questions_used(stage: FinishedStage) -> Iterable[str]:
    """Questions of sampled episodes and gold chains, beyond those of the trees or pairs."""
    settings: PRMStageConfig = stage.settings
    if not (settings.chains or settings.episodes):
        return ()
    if TREES not in stage.inputs:
        raise StepladderError("the trees that this reward model was trained on are missing")
    from stepladder.train.prm.prm_sources import choose_questions  # imports torch

    left_out = _left_out(settings, stage.context)
    questions = [each for each in stage.context.split("train") if each.id not in left_out]
    explored = [each for each in tree_questions(stage.inputs[TREES]) if each not in left_out]
    chosen = choose_questions(settings, questions, explored, stage.seed)
    return (question.id for question in (*chosen.sampled, *chosen.gold))


def labels_used(stage: FinishedStage) -> Labels:
    """Decompositions and answers of gold chains and of all steps that the gold judge labels; the values of trees are
    answers that were used there.
    """
    settings: PRMStageConfig = stage.settings
    judged = Labels.of(questions_used(stage), decompositions=True)
    if settings.objective == "verdicts":
        trees = set(tree_questions(stage.inputs[TREES])) - _left_out(settings, stage.context)
        return judged | Labels.of(trees, decompositions=True)
    return judged


STAGE = StageSpec(
    PRMStageConfig,
    run_prm,
    (POLICY, PAIRS, TREES),
    (REWARD,),
    unused_inputs=_unused,
    trains=True,
    check=check_prm,
    external_files=("model",),
    version=3,  # wrong answers are faulty; a misread text leads to a wrong answer
    summarize=summarize,
    questions=questions_used,
    labels=labels_used,
    generates=never,
)
