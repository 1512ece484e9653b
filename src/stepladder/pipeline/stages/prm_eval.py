"""The stage `prm-eval`: evaluates a process reward model on questions that it was not trained on.

In: a policy, a reward model, optionally held-out pairs to rank and trees to score. Out: the sampled episodes in
`episodes/`, and `examination/`:

    summary.json        AUC against the gold judge, also of steps at one place and of answers; F1 of the episodes that
                        the scores choose; accuracy on held-out pairs, calibration, control chains
    steps.jsonl         one row per step: its score and the verdict of the gold judge
    chains.svg          distribution of scores of gold chains, and of copies with each kind of mistake, if questions
                        have a gold decomposition
    calibration.svg     reliability diagram
    tree_scores.json    the score of every step of the trees, with `score_trees`
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import Derived
from stepladder.core.trace import ActionKind, Question, Trajectory
from stepladder.data import DATA_SETS, questions_with_relations
from stepladder.data.atlas import RelationName
from stepladder.data.sampling import sample_questions
from stepladder.engines.openai.server_config import POLICY_FILES
from stepladder.evaluation.prm.calibration import (
    GradedStep,
    calibration_report,
    chain_metrics,
    gold_agreement,
    graded_steps,
    pair_accuracy,
)
from stepladder.evaluation.prm.equal_outcome import equal_outcome
from stepladder.evaluation.prm.plots import distributions_svg, reliability_svg
from stepladder.evaluation.prm.selection import mistake_auc, selection_report
from stepladder.evaluation.prm.tree_scores import write_tree_scores
from stepladder.oracle.control_chains import control_chains
from stepladder.oracle.corruptions import CORRUPTIONS, Corruptor
from stepladder.pipeline.episodes import check_gold, report_gold, sampled_episodes
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import EXAMINATION, PAIRS, POLICY, REWARD, TREES, StageResult, StageSpec, Task, no_labels
from stepladder.pipeline.stage_summary import Numbers, StageSummary, measured, share, unless_zero
from stepladder.pipeline.workers.rollout_workers import check_cluster
from stepladder.pipeline.workers.scoring import StepScores, step_scores
from stepladder.preferences.pair_checks import read_pairs

if TYPE_CHECKING:
    from stepladder.judges.prm.reward_model import ProcessRewardModel

#: The file of tree scores in the examination.
TREE_SCORES = "tree_scores.json"


class PRMEvalConfig(Config):
    """The steps that the reward model is evaluated on."""

    renamed: ClassVar[dict[str, str]] = {"samples": "num_generations"}

    #: Must not be the split that was explored. Reward models are compared on dev questions, so that the choice of one
    #: does not use the test.
    split: str = "dev"
    questions: int = Field(default=150, ge=1)
    #: Examine on the questions, and with the passages, of another world of Atlas: the seed of that world.
    world_seed: int | None = None
    #: Only questions of Atlas that use one of these relations.
    relations: tuple[RelationName, ...] = ()
    #: Episodes per question, and their sampling temperature.
    num_generations: int = Field(default=2, ge=1)
    temperature: float = Field(default=0.8, ge=0)
    #: How a step counts that follows from an earlier error: not at all (unjudged), as good, or as faulty.
    derived: Derived = "unjudged"
    #: Rank the held-out pairs of an earlier stage.
    held_out_pairs: bool = True
    #: Score every step of the trees of an earlier stage, for the report. No metric uses them, because the model may
    #: have been trained on them.
    score_trees: bool = False
    #: Transcripts of another tokenizer than the reward model's: encode their text anew, instead of refusing them.
    retokenize: bool = False

    def inert(self) -> frozenset[str]:
        """`derived`, `world_seed` and `relations`, unless they are set."""
        unset = {"world_seed": self.world_seed is None, "relations": not self.relations}
        unset["derived"] = self.derived == "unjudged"
        return super().inert() | {name for name, is_unset in unset.items() if is_unset}


@contextmanager
def _domain(settings: PRMEvalConfig, context: RunContext) -> Iterator[tuple[RunContext, Sequence[Question]]]:
    """The context of the world to examine in, and the questions to choose from."""
    if settings.world_seed is None:
        yield context, _questions(settings, context)
        return
    shared = context.settings
    if shared.data.name not in DATA_SETS or shared.data.index is not None:
        raise StepladderError("world_seed of a prm-eval stage needs the data atlas, with the index of its own passages")
    data = shared.data.model_copy(update={"world_seed": settings.world_seed})
    with closing(RunContext(shared.model_copy(update={"data": data}), context.console)) as other:
        yield other, _questions(settings, other)


def _questions(settings: PRMEvalConfig, context: RunContext) -> Sequence[Question]:
    questions, data = context.split(settings.split), context.settings.data
    if not settings.relations:
        return questions
    found = questions_with_relations(data.name, settings.relations, seed=data.world_seed)
    chosen = [question for question in questions if question.id in found]
    if not chosen:
        raise StepladderError(f"no question of the split '{settings.split}' uses {' or '.join(settings.relations)}")
    return chosen


def run_prm_eval(settings: PRMEvalConfig, context: RunContext, task: Task) -> StageResult:
    """Sample episodes, score their steps, compare with the gold judge."""
    with _domain(settings, context) as (domain, questions):
        return _examine_on(settings, domain, task, sample_questions(questions, settings.questions, task.seed))


def _examine_on(settings: PRMEvalConfig, context: RunContext, task: Task, questions: Sequence[Question]) -> StageResult:
    from stepladder.judges.prm.reward_model import ProcessRewardModel  # imports torch and transformers

    shared = context.settings
    prm = ProcessRewardModel.load(
        task.inputs[REWARD], device=shared.device, dtype=shared.dtype, retokenize=settings.retokenize
    )
    report_gold(context, questions, labels=True)
    episodes = sampled_episodes(
        context, task, questions, num_generations=settings.num_generations, temperature=settings.temperature
    )
    control = _chains(context, questions, task.seed)
    with step_scores(context, prm, task.inputs[REWARD]) as score:
        scores = score(episodes)
        steps = graded_steps(episodes, scores, settings.derived)
        of_chains = {name: score(each) for name, each in control.items()}
        selection = {**selection_report(steps, episodes, scores), "equal_outcome": equal_outcome(steps)}
        chains = {name: graded_steps(each, of_chains[name], settings.derived) for name, each in control.items()}
        detected = {name: mistake_auc(chains["gold"], each) for name, each in chains.items() if name != "gold"}
        # A chain is as good as its worst step.
        lowest = {name: list(map(min, each)) for name, each in of_chains.items()}
        return _examine(settings, task, prm, score, steps, selection, lowest, detected, len(questions))


def _chains(context: RunContext, questions: Sequence[Question], seed: int) -> dict[str, list[Trajectory]]:
    """Gold chains, control chains, and gold chains with one mistake, by kind."""
    chains = control_chains(context.agent, questions, context.retriever, context.episode(), seed=seed)
    rng = random.Random(seed_of(seed, "corrupted"))
    corruptor = Corruptor(context.agent, context.retriever, context.episode().k, questions, rng)
    made = [corruptor.one_of_each(gold) for gold in chains["gold"]]
    return chains | {kind: [each[kind] for each in made if kind in each] for kind in CORRUPTIONS}


def _examine(
    settings: PRMEvalConfig,
    task: Task,
    prm: "ProcessRewardModel",
    score: StepScores,
    steps: Sequence[GradedStep],
    selection: Mapping[str, Any],
    lowest: Mapping[str, Sequence[float]],
    detected: Mapping[str, Mapping[str, float] | None],
    questions: int,
) -> StageResult:
    """Compare the scores of steps and of control chains with what they should be, and write the examination."""
    if len({step.good for step in steps}) < 2:
        raise StepladderError(
            f"{task.name}: of {len(steps):,} steps that the gold judge could grade, all are good or all are faulty. "
            "Take more questions or a higher temperature, or questions with a gold decomposition"
        )
    calibration, predictions = calibration_report(steps)
    chains = chain_metrics(lowest) if lowest["gold"] else {}
    for name in chains.keys() & detected.keys():
        chains[name]["faulty_steps"] = detected[name]
    summary: dict[str, Any] = {
        **gold_agreement(steps),
        **selection,
        **(_on_pairs(prm, task.inputs[PAIRS]) if settings.held_out_pairs else {"pair_accuracy": None}),
        "calibration": calibration,
        "chains": chains,
        "histories_cut": prm.builder.truncated,
    }
    subtitle = f"{len(steps):,} steps of {questions:,} questions of the split {settings.split}"
    with atomic_folder(task.folder / EXAMINATION, what="examination") as folder:
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        rows = "".join(json.dumps(asdict(step)) + "\n" for step in steps)
        (folder / "steps.jsonl").write_text(rows, encoding="utf-8")
        if lowest["gold"]:
            distributions = distributions_svg(
                "Reward model scores of whole chains",
                {name.replace("_", " "): scores for name, scores in lowest.items() if scores},
                axis="score of a chain's lowest step",
                counted="chains",
                subtitle=f"Gold chains of {len(lowest['gold']):,} questions, and corrupted copies of them",
            )
            (folder / "chains.svg").write_text(distributions, encoding="utf-8")
        picture = reliability_svg(
            "Calibration of step scores", predictions, [step.good for step in steps], subtitle=subtitle
        )
        (folder / "calibration.svg").write_text(picture, encoding="utf-8")
        if settings.score_trees:
            write_tree_scores(folder / TREE_SCORES, Path(task.inputs[TREES]), score)
    return StageResult(summary, {EXAMINATION: task.folder / EXAMINATION})


def _on_pairs(prm: "ProcessRewardModel", folder: str) -> dict[str, Any]:
    """How often the chosen step of a held-out pair scores higher.

    Pairs have no passages: a model that scores queries after their retrieval ranks those without a query.
    """
    ranked, left_out = [], 0
    for pair in read_pairs(folder)[1]:
        sides = (pair.chosen, pair.rejected)
        if prm.reads_passages and any(side.action.kind is ActionKind.QUERY for side in sides):
            left_out += 1
            continue
        (better,), (worse,) = prm.score_batch([prm.builder.step(pair.context, side.written) for side in sides])
        ranked.append((pair.question_id, better > worse))
    return {"pair_accuracy": pair_accuracy(ranked), **({"pairs_with_queries": left_out} if left_out else {})}


def check_prm_eval(settings: PRMEvalConfig, context: RunContext) -> None:
    """The split must have gold annotations, and there must be an index if the agent searches, with most of the gold."""
    with _domain(settings, context) as (domain, questions):
        _check_domain(settings, domain, questions)


def _check_domain(settings: PRMEvalConfig, context: RunContext, questions: Sequence[Question]) -> None:
    if not any(question.hops or question.gold_passages for question in questions):
        raise StepladderError(
            f"no question of the split '{settings.split}' has a gold decomposition or gold passages: the gold judge, "
            "against which a reward model is examined, could grade nothing"
        )
    context.check_index()
    context.check_server()
    check_cluster(context)
    check_gold(context, questions)


def _unused(settings: PRMEvalConfig) -> frozenset[str]:
    return frozenset(
        role for role, used in ((PAIRS, settings.held_out_pairs), (TREES, settings.score_trees)) if not used
    )


def summarize(numbers: Numbers) -> StageSummary:
    """AUC against the gold judge, by kind of step and by fault, calibration and control chains."""
    pairs = numbers.get("pair_accuracy") or {}
    corrupted = {name: each for name, each in numbers.get("chains", {}).items() if "auc" in each}
    lines = {
        "at a threshold of 0": measured(numbers, {"right_at_0": "accuracy", "good": "share of good steps"}),
        "by kind": ", ".join(
            f"{kind} {share(each.get('auc'))} (faulty {each.get('faulty', 0):,} of {each.get('steps', 0):,})"
            for kind, each in numbers.get("by_kind", {}).items()
        ),
        "of steps at one place": ", ".join(
            f"{kind} {share(each)} ({each['pairs']:,} pairs)"
            for kind, each in numbers.get("peers", {}).items()
            if each is not None
        ),
        **_summarize_answers(numbers.get("answers") or {}, numbers.get("best_of") or {}),
        "faults detected at 0": ", ".join(
            f"{fault} {each.get('below_0', 0):.0%} of {each.get('steps', 0):,}"
            for fault, each in numbers.get("faults", {}).items()
        ),
        "held-out pairs": f"accuracy {share(pairs)} of {pairs.get('pairs', 0):,}" if pairs else "",
        "held-out pairs with queries, which have no passages to score": unless_zero(numbers.get("pairs_with_queries")),
        "calibration error": ", ".join(
            f"{name} {each['error']:.3f}" for name, each in numbers.get("calibration", {}).items()
        ),
        "AUC of gold against corrupted chains": ", ".join(
            f"{name.replace('_', ' ')} {each['auc']:.2f} of {each.get('chains', 0):,}"
            for name, each in corrupted.items()
        ),
        "AUC of faulty steps in corrupted chains": ", ".join(
            f"{name.replace('_', ' ')} {share(each['faulty_steps'])}"
            for name, each in corrupted.items()
            if each.get("faulty_steps") is not None
        ),
        "truncated histories": unless_zero(numbers.get("histories_cut")),
    }
    steps = f"{numbers.get('steps', 0):,} steps of {numbers.get('questions', 0):,} questions"
    return f"AUC {share(numbers.get('auc'))} against the gold judge, {steps}", lines


def _summarize_answers(answers: Numbers, best_of: Numbers) -> dict[str, str]:
    """The AUC of final answers, and what is gained by choosing between episodes."""
    found = {}
    if answers.get("auc") is not None:
        good = {
            when: "-" if (part := answers[f"{when}_fault"])["good"] is None else f"{part['good']:.0%}"
            for when in ("before", "after")
        }
        found["final answers"] = (
            f"{share(answers['auc'])}; by the difficulty of the question alone {share(answers['difficulty'])}; good "
            f"{good['before']} without an earlier fault, {good['after']} after one"
        )
    if best_of:
        names = {"random": "at random", "last": "by the last step", "least": "by the lowest", "mean": "by the mean"}
        chosen = [f"{share(best_of[name])} {label}" for name, label in {**names, "oracle": "at best"}.items()]
        found[f"F1 of one of {best_of['episodes']} episodes"] = ", ".join(chosen)
    return found


STAGE = StageSpec(
    PRMEvalConfig,
    run_prm_eval,
    (POLICY, REWARD, PAIRS, TREES),
    (EXAMINATION,),
    unused_inputs=_unused,
    check=check_prm_eval,
    accepts_server=True,
    persistent_files=POLICY_FILES,
    version=6,  # share of questions whose episodes have the same F1
    summarize=summarize,
    labels=no_labels,
)
