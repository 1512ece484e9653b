"""What a study is: a recipe carried out in several ways, its arms, each with several seeds.

The stages that all arms share are computed once a seed. So two arms of a seed begin with the same policy, and what they
differ in later is not a difference of their beginnings.
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
    #: The last of the stages that all arms share: an evaluation, with the questions of the last one.
    shared: str
    #: The stage in which they differ, whose curves are compared.
    stage: str
    #: The evaluation that decides.
    result: str
    #: By arm: the arm that it is compared with.
    against: Mapping[str, str]
    #: Changes to the recipe for all arms and for what they share.
    changes: tuple[str, ...] = ()
    #: Where arms are points of curves: by arm its curve, and its place on it.
    places: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    #: What that place is.
    across: str = ""
