"""`prm` tells how good the reward model of a run is: a stage that is added to the run."""

from typing import Annotated

import typer

from stepladder.cli.options import AsJson, Overrides, Update
from stepladder.cli.recipes import RunToExtend, StageName, extended, given, stages_before
from stepladder.cli.train import carry_out
from stepladder.pipeline.stage import PAIRS, TREES
from stepladder.pipeline.stages import get_stage


def prm_command(
    run: RunToExtend,
    split: Annotated[
        str | None, typer.Option("--split", help="Whose questions are played: test (default), dev or train.")
    ] = None,
    questions: Annotated[int | None, typer.Option("--questions", min=1, help="Questions to play.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="Episodes a question.")] = None,
    name: StageName = None,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Examine a run's reward model: against the gold judge, on held-out pairs, on spoilt chains."""
    name = name or "prm-eval"
    made = {role for stage in stages_before(run, name).values() for role in get_stage(stage["kind"]).outputs}
    entry = given(
        kind="prm-eval",
        split=split,
        questions=questions,
        num_generations=samples,
        held_out_pairs=None if PAIRS in made else False,
        score_trees=True if TREES in made else None,
    )
    carry_out(extended(run, name, entry, overrides), run, update, as_json, only=name)
