"""Shared by the stages that grow trees (`explore`, `rank`).

In: the settings of the stage, a tree search and the name of a step scorer. Out: `trees.jsonl.gz`, to which each tree
is written when it is finished, and summary numbers.
"""

from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.trace import StopReason
from stepladder.data.sampling import sample_questions
from stepladder.driver.progress import Progress
from stepladder.evaluation.evaluator import FULL_WINDOW
from stepladder.explore.tree_store import Grow, explore, read_trees, throughput_note
from stepladder.explore.values import monte_carlo
from stepladder.pipeline.episodes import check_gold
from stepladder.pipeline.resources import RunContext, paid_by
from stepladder.pipeline.search_config import TreeStageConfig
from stepladder.pipeline.stage import POLICY, REWARD, TREES, FinishedStage, Labels, StageResult, Task, tree_questions
from stepladder.pipeline.workers.rollout_workers import Scoring, check_cluster, open_driver

#: The file of trees.
FILE = "trees.jsonl.gz"
#: Size of the generation cache: enough for a few waves of all concurrent trees.
_CACHED_GENERATIONS = 16_384


def check_tree_stage(settings: TreeStageConfig, context: RunContext) -> None:
    """Questions must have answers, there must be an index if the agent searches, and prices for paid models.

    For the gold judge the index must have most gold passages.
    """
    context.expect_answers(settings.split)
    context.check_server()
    check_cluster(context)
    if settings.llm is not None:
        settings.llm.check()
    if settings.uses_gold:
        check_gold(context, context.split(settings.split))


def grow_trees(
    context: RunContext, task: Task, settings: TreeStageConfig, grow: Grow, *, scorer: str | None
) -> StageResult:
    """Grow one tree per question. Trees that an earlier attempt finished are kept."""
    split = context.split(settings.split)
    questions = sample_questions(split, settings.questions or len(split), task.seed, balance=settings.balance)
    path = task.folder / FILE
    scoring = None
    if scorer is not None:
        options = {"llm": settings.llm, "folder": task.folder, "derived": settings.derived}
        scoring = Scoring(scorer, task.inputs.get(REWARD), options)
    driver_of = open_driver(
        context,
        task.inputs[POLICY],
        folder=task.folder,
        scoring=scoring,
        in_flight=settings.max_concurrent_trees,
        generation_cache=_CACHED_GENERATIONS,
    )
    with driver_of as driver:
        note = throughput_note(driver.counts, driver.scorer.cost if driver.scorer is not None else None)
        with Progress(task.name, len(questions), note=note) as watch:
            explored = explore(driver, questions, grow, path, seed=task.seed, watch=watch)
        judged = driver.scorer.summary() if driver.scorer is not None else {}
        paid = paid_by(driver.engine)
    if explored.failures.total() == len(questions):
        path.unlink()  # nothing to resume from
        raise StepladderError(f"{task.name}: every tree failed: {next(iter(explored.failures))}")
    if _window_is_too_small(path):
        path.unlink()
        raise StepladderError(f"{task.name}: every branch of every tree {FULL_WINDOW}")
    summary = {
        "trees": explored.made + explored.known,
        **tree_numbers(path),
        "failed": explored.failures.total(),
        "failures": dict(explored.failures.most_common(3)),
        # Unknown if an earlier attempt was interrupted.
        "tokens_written": driver.counts.usage.written if explored.known == 0 else None,
        "tokens_read": driver.counts.usage.read if explored.known == 0 else None,
        "shared": round(driver.counts.shared, 3),
        **judged,
        **paid,
    }
    return StageResult(summary, {TREES: path})


def tree_labels(stage: FinishedStage) -> Labels:
    """The answers that the ends of branches are scored by, and the decompositions if the gold judge scores steps."""
    return Labels.of(tree_questions(stage.outputs[TREES]), decompositions=stage.settings.uses_gold)


def _window_is_too_small(path: Path) -> bool:
    """Whether every branch of every tree that was evaluated ended at the context limit."""
    ended = False
    for tree in read_trees(path):
        stops = {node.stop for node in tree.nodes} | {end.stop for node in tree.nodes for end in node.rollouts}
        inner = {node.parent for node in tree.nodes}
        leaves = [node for node in tree.nodes if node.id not in inner]
        scored = any(node.visits and node.stop is None and not node.rollouts for node in leaves)  # it could go on
        if scored or stops - {StopReason.CONTEXT_LIMIT, None}:
            return False
        ended |= StopReason.CONTEXT_LIMIT in stops
    return ended


def tree_numbers(path: Path) -> dict[str, float]:
    """Averages over the trees of a file. `broken` is the total of failed simulations."""
    rows = []
    for tree in read_trees(path):
        outcomes = [node.reward for node in tree.nodes if node.reward is not None]
        outcomes += [rollout.reward for node in tree.nodes for rollout in node.rollouts]
        solved = max(outcomes, default=0.0) >= 1.0
        rows.append((len(tree.nodes), tree.nodes[0].visits, monte_carlo(tree)[0] or 0.0, solved, tree.failures))
    *totals, broken = map(sum, zip(*rows, strict=True))
    names = ("nodes", "simulations", "mean_f1", "solved")
    return {**{name: total / len(rows) for name, total in zip(names, totals, strict=True)}, "broken": broken}
