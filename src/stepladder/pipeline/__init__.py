"""Pipelines: a recipe is run in a folder, stage by stage, and can be interrupted and resumed at any time.

    RUN/recipe.yaml          the recipe with every value
    RUN/run.json             run format, versions, machine and command line of every session
    RUN/STAGE/stage.json     written last, when the stage is done: fingerprint, seconds, summary, outputs
    RUN/STAGE/started.json   the stage was started and is not done
    RUN/STAGE/...            outputs of the stage

`recipe.py` reads recipes, `fingerprint.py` decides whether a result is stale, `run_folder.py` reads and writes these
files, `runner.py` runs the stages in `stages/`.
"""

from stepladder.pipeline.runner import RunReport, run_recipe

__all__ = ["RunReport", "run_recipe"]
