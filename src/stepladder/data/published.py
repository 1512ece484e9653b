"""Find published question sets on this machine.

In: the name of a set. Out: its folder, or an error with what to download and where to put it. Nothing is downloaded.
"""

import os
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.data.formats import question_formats
from stepladder.data.formats.base import PublishedSet

#: The environment variable with the folder of question sets.
FOLDER = "STEPLADDER_DATA"
#: The hub repository that has these sets in FlashRAG's format.
HUB = "RUC-NLPIR/FlashRAG_datasets"

PUBLISHED: dict[str, PublishedSet] = {
    each.published.name: each.published for each in question_formats() if each.published is not None
}


def search_folders(name: str) -> list[Path]:
    """The folders in which a set is searched, in this order."""
    own = os.environ.get(FOLDER)
    return [*([Path(own).expanduser() / name] if own else []), Path("data") / name]


def find_published(name: str) -> Path | None:
    """The folder of a set; None if it is not on this machine."""
    return next((folder.absolute() for folder in search_folders(name) if folder.is_dir()), None)


def missing(name: str) -> StepladderError:
    """The error for a set that is not on this machine, which says how to get it."""
    published, folders = PUBLISHED[name], search_folders(name)
    return StepladderError(
        f"the questions of {name} are not on this machine: looked in {' and '.join(map(str, folders))}. Get "
        f"{', '.join(published.files)} from {published.url}, or {name}/*.jsonl of {HUB} from the Hugging Face hub; put "
        f"them into {folders[0]}" + ("" if os.environ.get(FOLDER) else f" (or into ${FOLDER}/{name})")
    )
