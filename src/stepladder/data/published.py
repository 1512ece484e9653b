"""Where published question sets are looked for on this machine, and where to get them from.

In: the name of a set. Out: the folder it lies in, or an error with what to get and where to put it. Nothing is
downloaded.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from stepladder.core.errors import StepladderError

#: The environment variable with the folder of question sets.
FOLDER = "STEPLADDER_DATA"
HUB = "RUC-NLPIR/FlashRAG_datasets"


@dataclass(frozen=True, slots=True)
class Published:
    """A published set."""

    #: Where its own files are.
    address: str
    #: What they are called.
    files: tuple[str, ...]


PUBLISHED = {
    "hotpotqa": Published(
        "http://curtis.ml.cmu.edu/datasets/hotpot/", ("hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json")
    ),
    "2wikimultihopqa": Published(
        "https://github.com/Alab-NII/2wikimultihop (data_ids_april7.zip)", ("train.json", "dev.json", "id_aliases.json")
    ),
    "musique": Published(
        "https://github.com/StonyBrookNLP/musique (download_data.sh)",
        ("musique_ans_v1.0_train.jsonl", "musique_ans_v1.0_dev.jsonl"),
    ),
    "popqa": Published("https://huggingface.co/datasets/akariasai/PopQA", ("test.tsv",)),
    "bamboogle": Published("https://github.com/ofirpress/self-ask (bamboogle)", ("Bamboogle Prerelease - Sheet1.csv",)),
}


def places(name: str) -> list[Path]:
    """The folders in which a set is looked for, in this order."""
    own = os.environ.get(FOLDER)
    return [*([Path(own).expanduser() / name] if own else []), Path("data") / name]


def find(name: str) -> Path | None:
    """The folder of a set; None where it is not there."""
    return next((place.absolute() for place in places(name) if place.is_dir()), None)


def missing(name: str) -> StepladderError:
    """The error that says how to get a set."""
    published = PUBLISHED[name]
    looked = " and ".join(str(place) for place in places(name))
    return StepladderError(
        f"the questions of {name} are not here: looked in {looked}. Get {', '.join(published.files)} from "
        f"{published.address}, or {name}/*.jsonl of {HUB} from the Hugging Face hub; put them into {places(name)[0]}"
        + ("" if os.environ.get(FOLDER) else f" (or into {name} of the folder that the variable {FOLDER} names)")
    )
