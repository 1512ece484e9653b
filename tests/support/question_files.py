"""Files of published question sets, in small."""

import gzip
import json
from pathlib import Path
from typing import Any

RAIN = ["Rain (film)", ["Rain is a 1950 film.", " It was directed by Ada Orm."]]
ADA = ["Ada Orm", ["Ada Orm was a painter and film director.", " She died in Velm."]]
DUST = ["Dust", ["Dust is a 1960 film."]]
HOTPOT = {
    "_id": "5ade",
    "question": "Where did the director of Rain die?",
    "answer": "Velm",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Rain (film)", 1], ["Ada Orm", 1], ["Ada Orm", 99]],
    "context": [RAIN, DUST, ADA],
}
TWOWIKI = {
    **HOTPOT,
    "type": "compositional",
    "evidences": [["Rain", "director", "Ada Orm"], ["Ada Orm", "place of death", "Velm"]],
    "evidences_id": [["Q1", "director", "Q2"], ["Q2", "place of death", "Q3"]],
    "answer_id": "Q3",
}


def write(path: Path, *objects: Any) -> Path:
    text = "".join(f"{json.dumps(each)}\n" for each in objects) if ".jsonl" in path.name else json.dumps(list(objects))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
