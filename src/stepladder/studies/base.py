"""What a study is: a recipe carried out in several ways, each with several seeds.

Whatever the ways have in common is computed once a seed, so a difference between two of them is not one of their
beginnings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Study:
    """Ways to carry out a recipe, to be compared."""

    name: str
    #: What it asks, in a sentence.
    about: str
    #: A recipe that comes with Stepladder.
    recipe: str
    #: The ways by name: each a list of changes to the recipe, as `--set` takes them.
    arms: Mapping[str, tuple[str, ...]]
    #: The last of the stages that all arms share.
    shared: str
    #: The stage in which they differ, whose curves are compared.
    stage: str
    #: The evaluation that decides.
    result: str
    #: The arm that the others are compared with.
    baseline: str
    #: Changes to the recipe for all arms and for what they share.
    changes: tuple[str, ...] = ()
    #: Where arms are points of curves: by arm its curve, and its place on it.
    places: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    #: What that place is.
    across: str = ""
