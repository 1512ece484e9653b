"""The definition of a study: a question, a recipe in several variants (arms), each with several seeds.

In: a YAML file, or the name of a built-in study (`recipes/studies`). Out: a `Study`, or an error that names the file,
the key and the value expected. Whether the arms fit the recipe is checked by study_arms.py.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.io.files import expand_path
from stepladder.pipeline.recipe import read_yaml, shipped

#: The name of an arm is the name of a folder.
_ARM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: The folder of the stages that all arms share.
SHARED = "shared"
EQUAL: Literal["equal"] = "equal"

Text = Annotated[str, Field(min_length=1)]
Amount = Literal["equal"] | PositiveFloat
Overrides = dict[str, Any]


def _pair(value: object) -> object:
    """A contrast as a pair of arms, from `a - b`."""
    if not isinstance(value, str):
        return value
    arms = tuple(each.strip() for each in value.split(" - "))
    if len(arms) != 2:
        raise ValueError(f"expected two arms as `first - second`, found {value!r}")
    return arms


class Estimand(Config):
    """The number that a run of an arm gives, fixed before the first run."""

    #: A stage behind the shared ones.
    stage: Text
    #: A number of the stage's summary, nested ones with a dot (`auc.mean`); of a group with a mean, the mean. With
    #: `last_checkpoints` a number of its evaluations during training, such as dev_f1.
    metric: Text = "f1"
    #: The mean over this many last evaluations of the stage, whichever checkpoint it keeps.
    last_checkpoints: PositiveInt | None = None

    def __str__(self) -> str:
        last = self.last_checkpoints
        return f"{self.metric} of {self.stage}" + (f", mean of its last {last} checkpoints" if last else "")


class Gate(Config):
    """What a shared stage must have reached before an arm is begun."""

    stage: Text
    #: A number of the stage's summary, nested ones with a dot; or the difference of two, `best_of.oracle - f1`.
    metric: Text
    least: float | None = None
    most: float | None = None

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.least is None and self.most is None:
            raise ValueError("expected `least`, `most` or both")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise ValueError(f"expected least <= most, found {self.least:g} and {self.most:g}")
        return self

    @property
    def metrics(self) -> list[str]:
        """The number, or the two of a difference."""
        return [each.strip() for each in self.metric.split(" - ")]

    def passed(self, value: float) -> bool:
        """Whether the number is within the bounds."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        bounds = {"at least": self.least, "at most": self.most}
        return " and ".join(f"{name} {bound:g}" for name, bound in bounds.items() if bound is not None)


class Budget(Config):
    """What the arms have in common: `equal` to the baseline, or a number, within a tolerance.

    Counted are the stages that an arm does not share, evaluations excepted, as means over seeds.
    """

    #: Count the evaluation of the estimand too: in a study of inference it is what the tokens are spent on.
    evaluation: bool = False
    #: What `equal` compares: every arm with the baseline, or the two arms of each contrast.
    between: Literal["baseline", "contrasts"] = "baseline"

    updates: Amount | None = None
    episodes: Amount | None = None
    questions: Amount | None = None
    answers: Amount | None = None
    decompositions: Amount | None = None
    judge_calls: Amount | None = None
    #: Read and sampled by models that generate.
    tokens: Amount | None = None
    tokens_sampled: Amount | None = None
    #: That training went over, repeats included.
    tokens_trained: Amount | None = None
    seconds: Amount | None = None
    #: The share by which an arm may differ.
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.05
    #: What follows from a difference beyond the tolerance: no verdict about the arm, or a verdict with a remark.
    unequal: Literal["no verdict", "remark"] = "no verdict"

    def amounts(self) -> dict[str, Literal["equal"] | float]:
        """The amounts that are stated, by name."""
        rules = ("evaluation", "between", "tolerance", "unequal")
        return {name: value for name, value in self if value is not None and name not in rules}


class Study(Config):
    """Variants of a recipe to compare."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    #: The question it answers, in one sentence.
    question: Text
    #: A built-in recipe, or a recipe file, beside the file of the study.
    recipe: Text
    #: The model that all runs start from, instead of the recipe's `policy`; registered by the content of its files.
    policy: Text | None = None
    #: Settings of all arms, as for `--set`: `stages.grpo.questions: 800`. Those without effect in an arm are left out.
    overrides: Overrides = Field(default={})
    #: Settings of each arm.
    arms: dict[Text, Overrides]
    #: The arm that the others are compared with.
    baseline: Text
    #: How many (0, 1, 2 ...), or which.
    seeds: PositiveInt | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = 5
    estimand: Estimand
    #: Planned comparisons: name -> `first - second`. By default each arm with the baseline.
    contrasts: dict[Text, Annotated[tuple[Text, Text], BeforeValidator(_pair)]] = Field(
        default={}, validate_default=True
    )
    budget: Budget | None = None
    #: What the shared stages of every seed must have reached, by name.
    gates: dict[Text, Gate] = Field(default={})
    #: An evaluation of the arms whose numbers are shown by number of hops: what was found, and what was made of it.
    by_hops: Text | None = None
    #: The smallest difference that matters: what the number of seeds is planned for.
    smallest_effect: PositiveFloat | None = None
    #: The last stage that the arms share; null: all stages before the first one that differs.
    shared: str | None = None
    #: The last stage to run; null is the last of the recipe.
    last: str | None = None
    #: Runs are never excluded. A study may say so.
    exclusions: Literal["none"] = "none"
    #: Why seeds were added after the first start. Nothing else can be amended.
    amended: Text | None = None
    #: If the arms are points on curves: [curve, x] by arm, and the label of the x axis.
    points: dict[Text, tuple[str, float]] = Field(default={})
    x_label: str = ""

    @field_validator("arms", mode="before")
    @classmethod
    def _arms_without_overrides(cls, arms: object) -> object:
        return {name: each or {} for name, each in arms.items()} if isinstance(arms, Mapping) else arms

    @field_validator("contrasts", mode="after")
    @classmethod
    def _named_contrasts(cls, contrasts: dict[str, tuple[str, str]], info: Any) -> dict[str, tuple[str, str]]:
        if contrasts or not {"arms", "baseline"} <= info.data.keys():
            return contrasts
        baseline = info.data["baseline"]
        return {f"{arm} - {baseline}": (arm, baseline) for arm in info.data["arms"] if arm != baseline}

    @model_validator(mode="after")
    def _names_are_arms(self) -> Self:
        if len(self.arms) < 2:
            raise ValueError(f"arms: expected two or more to compare, found {len(self.arms)}")
        for arm in self.arms:
            if not _ARM.fullmatch(arm) or arm == SHARED:
                raise ValueError(f"arms: {arm!r} cannot be the name of an arm: use letters, digits, . - _")
        named = {"baseline": [self.baseline], "points": list(self.points)}
        named |= {f"contrasts.{name}": list(pair) for name, pair in self.contrasts.items()}
        for key, arms in named.items():
            for arm in arms:
                if arm not in self.arms:
                    raise ValueError(f"{key}: {unknown_name('arm', arm, self.arms)}")
        for name, (first, second) in self.contrasts.items():
            if first == second:
                raise ValueError(f"contrasts.{name}: expected two arms, found {first} twice")
        if self.points and set(self.points) != set(self.arms):
            raise ValueError("points: expected [curve, x] of every arm, or of none")
        return self

    @model_validator(mode="after")
    def _overrides_name_settings(self) -> Self:
        groups = {"overrides": self.overrides, **{f"arms.{arm}": each for arm, each in self.arms.items()}}
        for key, overrides in groups.items():
            for name in overrides:
                if name.partition(".")[0] == "stages" and name.count(".") < 2:
                    raise ValueError(f"{key}: expected settings such as stages.grpo.mode, found {name!r}")
                if name == "seed":
                    raise ValueError(f"{key}: the seed of a run is set by `seeds`")
        return self

    @model_validator(mode="after")
    def _seeds_differ(self) -> Self:
        if len(set(self.seed_list)) != len(self.seed_list):
            raise ValueError(f"seeds: expected distinct seeds, found {list(self.seed_list)}")
        return self

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


# --- finding studies ----------------------------------------------------------------------------------------------


def built_in_studies() -> dict[str, Path]:
    """The files of the built-in studies, by name."""
    folder = next(iter(shipped().values())).parent / "studies"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_study(source: str | Path) -> Study:
    """The study in a file, or the built-in one of this name."""
    path = expand_path(source)
    if path.is_file():
        if path.suffix not in (".yaml", ".yml"):
            raise StepladderError(f"{path} is not the file of a study (.yaml). `stepladder study` lists the studies")
        return load_study(path)
    if str(source) in built_in_studies():
        return load_study(built_in_studies()[str(source)])
    if isinstance(source, Path) or path.suffix or len(path.parts) > 1:
        raise StepladderError(f"study file {path} does not exist. Built-in studies: {', '.join(built_in_studies())}")
    raise unknown_name("study", source, built_in_studies())


def load_study(path: Path) -> Study:
    """The study in a file. Its name is that of the file, unless it has one."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise StepladderError(f"{path}: expected settings as `name: value`, such as `question: ...`")
    study = Study.read({"name": path.stem, **data}, str(path))
    beside = path.absolute().parent / study.recipe
    return study.model_copy(update={"recipe": str(beside)}) if beside.is_file() else study
