"""Questions and corpora: the embedded fictional world, and files of the usual layouts.

In: a name (`atlas`, `atlas-large`) or the path of a question file. Out: a `DataSet`: its questions by split, and its
passages where they come with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepladder.data.atlas import SIZES, generate_atlas
from stepladder.data.flashrag import load_questions
from stepladder.errors import StepladderError, unknown_name
from stepladder.trace import Passage, Question

__all__ = ["DATA_SETS", "DataSet", "open_data"]

#: Data sets by name. `atlas` is `atlas-small`.
DATA_SETS = ("atlas", *(f"atlas-{size}" for size in SIZES))


@dataclass(frozen=True, slots=True)
class DataSet:
    """Questions by split, and the passages they are about; None when an index has to be given beside them."""

    name: str
    questions: dict[str, tuple[Question, ...]]
    passages: Sequence[Passage] | None = None

    def split(self, name: str) -> tuple[Question, ...]:
        """The questions of one split."""
        if name not in self.questions:
            raise unknown_name(f"split of {self.name}", name, self.questions)
        return self.questions[name]


def open_data(name: str, *, seed: int = 0) -> DataSet:
    """A data set by name, or a FlashRAG-style question file, which has the one split `all`."""
    if name in DATA_SETS:
        atlas = generate_atlas(name.partition("-")[2] or "small", seed)
        return DataSet(name, atlas.questions, atlas.passages)
    path = Path(name).expanduser()
    if path.is_file():
        return DataSet(path.name, {"all": load_questions(path)})
    if path.suffix in (".gz", ".jsonl") or "/" in name:
        raise StepladderError(f"question file {path} does not exist")
    raise unknown_name("data set", name, DATA_SETS)
