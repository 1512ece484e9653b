"""Runs: a recipe carried out in a folder, stage by stage, so that it can be stopped and gone on with at any time.

    RUN/recipe.yaml          the recipe with every value
    RUN/run.json             versions, machine, command line of every session
    RUN/STAGE/stage.json     written last: the stage is done; its fingerprint, seconds, numbers, outputs
    RUN/STAGE/started.json   the stage has begun and is not done
    RUN/STAGE/...            what the stage made

`fingerprint.py` says when a result still holds, `folder.py` reads and writes these files, `runner.py` does the work,
`report.py` shows what came out.
"""

from stepladder.pipeline.runner import RunReport, run_recipe

__all__ = ["RunReport", "run_recipe"]
