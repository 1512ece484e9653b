"""The size of the demo: the largest recipe that this machine is expected to finish in ten minutes.

In: the machine, which is measured in some seconds, and the recipes. Out: the name of a size. The plan of `stepladder
plan` predicts the time; a run that exists already keeps its size.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from stepladder.pipeline.agent_config import users_recipe
from stepladder.pipeline.plan.cost_constants import constants
from stepladder.pipeline.plan.gpu_cluster import CPU, parse_cluster
from stepladder.pipeline.plan.model_shape import find_shape
from stepladder.pipeline.plan.planner import plan_recipe
from stepladder.pipeline.run_folder import RunFolder, is_run

#: The recipe of each size, from the least work to the most.
RECIPES = {"small": "prorag-nano-small", "full": "prorag-nano", "large": "prorag-nano-large"}
#: Sizes that `auto` chooses among, from the smallest.
_AUTOMATIC = ("small", "full")
#: A size is chosen if it is expected to take so many seconds: within ten minutes, also if it takes a fifth longer.
_SECONDS = 500


def size_of_run(folder: Path) -> str | None:
    """The size that a run was started with; None if there is no run, or it has another recipe."""
    if not is_run(folder):
        return None
    name = RunFolder.open(folder).recipe().name
    return next((size for size, recipe in RECIPES.items() if recipe == name), None)


def expected_seconds(changes: Sequence[str]) -> dict[str, float]:
    """Measure this machine; returns the time that each size is expected to take. `changes`: overrides."""
    from stepladder.pipeline.plan.machine_rates import measure_rates, save_rates  # imports torch

    recipes = {size: users_recipe(RECIPES[size], changes) for size in _AUTOMATIC}
    cluster = parse_cluster(CPU, constants()["devices"])
    shape = find_shape(recipes["small"].shared.policy, constants()["models"])
    save_rates(CPU, measure_rates(shape, cluster))
    return {size: plan_recipe(recipe, cluster).seconds()[0] for size, recipe in recipes.items()}


def fitting_size(seconds: Mapping[str, float]) -> str:
    """The largest size that ends in time, and the smallest if none does.

    >>> fitting_size({"small": 200, "full": 480}), fitting_size({"small": 200, "full": 900})
    ('full', 'small')
    >>> fitting_size({"small": 700, "full": 3000})
    'small'
    """
    fitting = [size for size, each in seconds.items() if each <= _SECONDS]
    return fitting[-1] if fitting else next(iter(seconds))
