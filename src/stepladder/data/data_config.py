"""The settings of questions and corpus: the key `data` of a recipe.

In: YAML. Out: `DataConfig`, whose `open` gives the `DataSet` with its splits: questions that are held out, set aside
for the warm-up, or left out. Paths are stored absolute, so that a run can be continued from elsewhere.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from stepladder.core.config import Config
from stepladder.core.io.files import expand_path
from stepladder.data import DATA_SETS, PUBLISHED, SPLITS, DataSet, absolute_name, load_dataset, open_files
from stepladder.data.sampling import held_out, with_fewer, with_warmup
from stepladder.retrieval.factory import absolute_location


def absolute_path(path: Path) -> Path:
    """The path, with `~` and relative parts resolved."""
    return expand_path(path).absolute()


AbsolutePath = Annotated[Path, AfterValidator(absolute_path)]


class DataConfig(Config):
    """Questions and corpus: a data set by `name`, or question files by split; an index if there is no corpus."""

    #: A data set, a folder of question files, or one question file (split `all`); several are joined by +.
    name: Annotated[str, AfterValidator(absolute_name)] | None = "atlas"
    #: Seed of the Atlas world.
    world_seed: int = 0
    train: AbsolutePath | None = None
    dev: AbsolutePath | None = None
    test: AbsolutePath | None = None
    #: Number of train questions held out as `dev` for checkpoint selection. The former `dev` becomes `test` unless
    #: there is one; if there is neither, as many questions again are held out as `test`.
    holdout: int = Field(default=0, ge=0)
    #: Number of the remaining train questions reserved for `sft`. Other stages use the rest, so that no policy is
    #: rolled out on questions whose solution it was shown.
    warmup: int = Field(default=0, ge=0)
    #: Use only this many of the train questions that then remain, the same ones in all stages and runs, to compare
    #: methods at equal questions. null: all of them.
    train_questions: int | None = Field(default=None, ge=1)
    #: An index folder or URLs of search servers, or several joined by +. null: an index of the data set's own passages.
    index: Annotated[str, Field(min_length=1), AfterValidator(absolute_location)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _files_have_no_name(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if not any(data.get(split) for split in SPLITS):
            if "name" in data and data["name"] is None:
                known = ", ".join((*DATA_SETS, *PUBLISHED))
                raise ValueError(f"expected a name ({known}, a folder, a question file) or files by split")
            return data
        if data.get("name") is not None:
            raise ValueError(f"found both the name {data['name']!r} and files by split; give only one of them")
        return {**data, "name": None}

    @property
    def files(self) -> dict[str, Path]:
        """The given question files, by split."""
        return {split: path for split in SPLITS if (path := getattr(self, split)) is not None}

    def open(self) -> DataSet:
        """The questions and their passages."""
        name = self.name
        data = open_files("the data", self.files) if name is None else load_dataset(name, seed=self.world_seed)
        data = held_out(data, self.holdout) if self.holdout else data
        data = with_warmup(data, self.warmup) if self.warmup else data
        return data if self.train_questions is None else with_fewer(data, self.train_questions)
