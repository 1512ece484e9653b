"""The definition of a study: a recipe in several variants (arms), each with several seeds.

The stages that all arms share are computed once per seed. Two arms of the same seed start from the same policy, so they
can be compared paired by seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Study:
    """Variants of a recipe to compare."""

    name: str
    #: The question it answers, in one sentence.
    about: str
    #: Name of a built-in recipe.
    recipe: str
    #: Overrides of the recipe by arm, in the form of `--set`.
    arms: Mapping[str, tuple[str, ...]]
    #: The last stage that all arms share: an evaluation on the same questions as `result`.
    shared: str
    #: The stage in which the arms differ, and whose curves are plotted.
    stage: str
    #: The final evaluation.
    result: str
    #: The arm that each arm is compared with.
    against: Mapping[str, str]
    #: Overrides for all arms and for the shared stages.
    overrides: tuple[str, ...] = ()
    #: If the arms are points on curves: (curve, x) by arm.
    points: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    #: Label of the x axis of these curves.
    x_label: str = ""
