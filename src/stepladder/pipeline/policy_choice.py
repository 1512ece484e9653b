"""Which policy of a run to use: the one with the best dev score.

In: a run folder. Out: a `PolicyChoice` with its reason, and the stages that ended worse than they began. The dev
evaluations of a training stage select its checkpoint; every stage draws its own sample of questions for them, so they
cannot be compared. Therefore the policies of a run with several of them are evaluated once more, greedily on the same
dev questions (`score_policies`), in the folder `dev` of each stage. Scores of the test split are never used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from stepladder.core.errors import StepladderError, unknown_name
from stepladder.data.sampling import sample_questions
from stepladder.evaluation.evaluator import load_scores
from stepladder.evaluation.statistics import Comparison, interval_text, paired_difference, signed_text
from stepladder.pipeline.episodes import evaluate_policy
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import POLICY
from stepladder.train.loop.config import selection_questions

#: The folder of a stage with the evaluation of its policy on the run's dev questions.
DEV = "dev"
#: The kind of stage that decides which policy is kept.
_ACCEPT = "accept"


@dataclass(frozen=True, slots=True)
class Regression:
    """A stage whose policy has a lower dev F1 than the policy it started from, on the same questions."""

    stage: str
    against: str
    comparison: Comparison

    def __str__(self) -> str:
        change = signed_text(self.comparison.difference)
        return f"worse than {self.against}: dev F1 {change}, paired, {self.comparison.questions:,} questions"


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The policy of a stage, and why it was chosen."""

    stage: str
    path: Path
    reason: str
    #: Set if the stage ended worse than it began.
    worse: Regression | None = None

    def __str__(self) -> str:
        return f"policy: {self.stage} ({self.reason})" + (f", {self.worse}" if self.worse else "")


def choose_policy(run: RunFolder, stage: str | None = None) -> PolicyChoice:
    """The policy of a stage; by default the one with the best dev score, or the newest if they cannot be compared."""
    stages = run.outputs(POLICY)
    if not stages:
        raise StepladderError(f"the run {run.path} has no policy yet: finish a training stage, or give a --model")
    if stage is not None and stage not in stages:
        raise unknown_name(f"stage of {run.path} with a policy:", stage, stages)
    scores = {name: f1 for name in stages if (f1 := dev_scores(run, name))}
    comparable = len(scores) == len(stages) and len({frozenset(f1) for f1 in scores.values()}) == 1
    means = {name: fmean(f1.values()) for name, f1 in scores.items()} if comparable else {}
    decided = _accepted(run, stages)
    chosen = stage or decided or max(reversed(stages), key=lambda name: means.get(name, 0.0))
    if stage is None and decided is not None:
        reason = f"kept by the comparison of {decided} on dev questions"
    elif len(stages) == 1:
        reason = "the only one"
    elif means:
        others = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items() if name != chosen)
        reason = f"dev F1 {means[chosen]:.3f}, {'' if stage else f'best of {len(stages)}; '}{others}"
    elif stage is not None:
        reason = "as requested"
    elif _dev_questions(run.recipe()):
        reason = f"the newest of {len(stages)}: not all have a dev score yet; resume the run to compare them"
    else:
        reason = f"the newest of {len(stages)}: there are no dev scores to compare them, because dev_questions is 0"
    return PolicyChoice(chosen, stages[chosen], reason, _regression(run, chosen))


def _accepted(run: RunFolder, stages: Mapping[str, Path]) -> str | None:
    """The newest stage with a policy, if it is an `accept`: what a run keeps is then decided."""
    newest = list(stages)[-1]
    record = run.done(newest)
    return newest if record is not None and record.kind == _ACCEPT else None


def regressions(run: RunFolder) -> dict[str, Regression]:
    """The stages that ended worse than they began, by name. Stages without dev scores are left out."""
    return {name: worse for name in run.outputs(POLICY) if (worse := _regression(run, name)) is not None}


def _regression(run: RunFolder, stage: str) -> Regression | None:
    record = run.done(stage)
    if record is None or record.kind == _ACCEPT:  # which may keep a policy for lack of evidence
        return None
    source = record.inputs.get(POLICY, "")
    ours, theirs = dev_scores(run, stage), dev_scores(run, source)
    if not ours or ours.keys() != theirs.keys():
        return None
    comparison = paired_difference(list(ours.values()), [theirs[question] for question in ours])
    return Regression(stage, source, comparison) if comparison.difference.mean < 0 else None


def score_policies(run: RunFolder, recipe: Recipe, context: RunContext) -> None:
    """Evaluate the finished policies of a run on the same dev questions, if there are several.

    There are as many questions as the stage with the most `dev_questions` uses; none if no stage selects by them.
    """
    stages, count = run.outputs(POLICY), _dev_questions(recipe)
    if len(stages) < 2 or not count:
        return
    answerable = [question for question in context.split("dev") if question.answers]
    questions = sample_questions(answerable, count, recipe.stage_seed(DEV))
    for name, policy in stages.items():
        if dev_scores(run, name).keys() == {question.id for question in questions}:
            continue
        limits = context.episode()
        result = evaluate_policy(context, str(policy), questions, limits, seed=recipe.seed, label=f"{name} dev")
        result.save(run.path / name / DEV, {"policy": str(policy), "split": "dev"}, overwrite=True)
        found = interval_text(result.summary().metrics["f1"])
        context.console.print(f"{name}: dev F1 {found}, {len(questions):,} questions", highlight=False, markup=False)


def _dev_questions(recipe: Recipe) -> int:
    """The most dev questions that a stage selects by."""
    return max((selection_questions(stage.settings) for stage in recipe.stages), default=0)


def dev_scores(run: RunFolder, stage: str) -> dict[str, float]:
    """The dev F1 of a stage's policy by question id; empty if it was not evaluated."""
    folder = run.path / stage / DEV
    return {row.question_id: row.f1 for row in load_scores(folder)} if folder.is_dir() else {}
