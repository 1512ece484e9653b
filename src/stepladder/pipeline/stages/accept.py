"""The stage `accept`: keeps the policy of a training stage only if it is better than the one that it started from.

In: a policy that a stage of this run trained. Out: that policy, or the one before it, as a policy of its own for later
stages. Both are compared on the dev questions of the run (policy_choice.py). A policy is accepted if its F1 is
significantly higher (paired, one-sided). The summary also has the gain that these questions detect with a power of 80%.
"""

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.evaluation.statistics import Interval, paired_difference, signed_text
from stepladder.pipeline.policy_choice import DEV, dev_scores
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import POLICY, StageResult, StageSpec, Task, never, no_labels, no_questions
from stepladder.pipeline.stage_summary import Numbers, StageSummary

#: The power that the smallest effect is to be found with.
_POWER = 0.8


class AcceptConfig(Config):
    """When a policy is accepted."""

    #: Dev questions that all policies of the run answer; at most those that there are.
    dev_questions: PositiveInt = 1000
    #: Significance level of the paired one-sided test.
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    #: The smallest gain of F1 that matters: the summary says how many questions detect it with a power of 80%.
    smallest_effect: PositiveFloat = 0.05


def run_accept(settings: AcceptConfig, context: RunContext, task: Task) -> StageResult:
    """Compare, and keep one of the two."""
    run = RunFolder.open(task.folder.parent)
    stage, before = _compared(run, Path(task.inputs[POLICY]), task.name)
    ours, theirs = dev_scores(run, stage), dev_scores(run, before)
    if not ours or ours.keys() != theirs.keys():
        raise StepladderError(
            f"{task.name}: {stage} and {before} have no scores on the same dev questions: repeat the command"
        )
    scores, others = list(ours.values()), [theirs[question] for question in ours]
    compared = paired_difference(scores, others)
    p = compared.p_value / 2 if compared.difference.mean > 0 else 1 - compared.p_value / 2
    accepted = compared.difference.mean > 0 and p <= settings.alpha
    kept = stage if accepted else before
    _keep(run, kept, task.folder)
    context.console.print(f"{task.name}: keeps the policy of {kept}", highlight=False, markup=False)
    summary = {
        "accepted": accepted,
        "kept": kept,
        "stage": stage,
        "before": before,
        "f1": fmean(scores),
        "f1_before": fmean(others),
        "difference": asdict(compared.difference),
        "p": p,
        "questions": compared.questions,
        **power([a - b for a, b in zip(scores, others, strict=True)], settings),
    }
    return StageResult(summary, {POLICY: task.folder / POLICY})


def power(differences: Sequence[float], settings: AcceptConfig) -> dict[str, float | int]:
    """The gain detected by these questions with a power of 80%, and how many questions detect the smallest effect."""
    normal = NormalDist()
    spread = stdev(differences) if len(differences) > 1 else 0.0
    both = normal.inv_cdf(1 - settings.alpha) + normal.inv_cdf(_POWER)
    return {
        "smallest_effect": settings.smallest_effect,
        "detectable": both * spread / math.sqrt(len(differences)),
        "questions_needed": math.ceil((both * spread / settings.smallest_effect) ** 2),
    }


def _compared(run: RunFolder, policy: Path, name: str) -> tuple[str, str]:
    """The stage whose policy this is, and the stage that it started from."""
    policies = run.outputs(POLICY)
    stage = next((each for each, path in policies.items() if path == policy or path.resolve() == policy.resolve()), "")
    record = run.done(stage) if stage else None
    if record is None:
        raise StepladderError(f"{name}: the stage that wrote {policy} is no longer in the run: repeat the command")
    return stage, record.inputs[POLICY]  # a stage of the run, too: checked when the recipe was read


def _keep(run: RunFolder, stage: str, folder: Path) -> None:
    """The policy of a stage and its dev scores, as the outputs of this one; on the same disk without copying."""
    for source, name in ((run.outputs(POLICY)[stage], POLICY), (run.path / stage / DEV, DEV)):
        with atomic_folder(folder / name, what=name) as fresh:
            shutil.copytree(source, fresh, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)


def summarize(numbers: Numbers) -> StageSummary:
    """The decision, the difference, and what the questions could tell."""
    decision = "accepted" if numbers["accepted"] else f"not accepted, {numbers['before']} is kept"
    change = signed_text(Interval(**numbers["difference"]))
    enough = numbers["detectable"] <= numbers["smallest_effect"]
    needed = "" if enough else f"; {numbers['smallest_effect']:g} needs {numbers['questions_needed']:,} dev questions"
    return (
        f"{numbers['stage']} {decision}; dev F1 {numbers['f1_before']:.3f} -> {numbers['f1']:.3f}, {change}, "
        f"p = {numbers['p']:.4f} (one-sided, {numbers['questions']:,} questions)",
        {"gain found with a power of 80%": f"{numbers['detectable']:.3f}{needed}"},
    )


STAGE = StageSpec(
    AcceptConfig,
    run_accept,
    (POLICY,),
    (POLICY,),
    compares=True,
    check=lambda settings, context: context.expect_dev("accept", settings.dev_questions),
    summarize=summarize,
    questions=no_questions,
    labels=no_labels,
    generates=never,
)
