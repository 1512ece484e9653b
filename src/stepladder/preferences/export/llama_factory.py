"""A folder for LLaMA-Factory: data, its `dataset_info.json`, and ready-to-run DPO training files.

In: pairs by split. Out: `pairs*.jsonl` (ranking data), `steps*.jsonl` (chosen steps, for SFT) and two training files
with ReasonRAG's settings: `dpo.yaml` for full fine-tuning, `dpo_lora.yaml` for LoRA.

LLaMA-Factory puts every `instruction` into the model's chat template. For the policy only the agent's prompt was there,
followed by the transcript. The `instruction` of a pair is therefore that prompt alone, and both answers start with the
transcript. Equal prefixes cancel in DPO's sigmoid loss. Without a chat template all of it is one text.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from stepladder.core.io.yaml_tables import read_table
from stepladder.preferences.export.base import Format, PairTexts, Row, RowFile

_PAIRS, _STEPS = "stepladder_pairs", "stepladder_steps"
_TEXTS = read_table(Path(__file__).with_suffix(".yaml"))


def _ranked(texts: PairTexts) -> Row:
    return {
        "instruction": texts.prompt,
        "chosen": texts.transcript + texts.chosen,
        "rejected": texts.transcript + texts.rejected,
    }


def _step(texts: PairTexts) -> Row:
    # Here the transcript is part of the question: in the answer, retrieved text would be trained on.
    return {"instruction": texts.context, "output": texts.chosen}


def _suffix(split: str) -> str:
    return "" if split == "train" else f"_{split}"


def _data(split: str) -> list[RowFile]:
    suffix = _suffix(split)
    return [RowFile(f"pairs{suffix}.jsonl", _ranked), RowFile(f"steps{suffix}.jsonl", _step, distinct=True)]


def _files(splits: Sequence[str], model: str | None) -> dict[str, str]:
    info: dict[str, object] = {}
    for split in splits:
        ranked, steps = _data(split)
        info[_PAIRS + _suffix(split)] = {
            "file_name": ranked.name,
            "ranking": True,
            "columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"},
        }
        columns = {"prompt": "instruction", "response": "output"}
        info[_STEPS + _suffix(split)] = {"file_name": steps.name, "columns": columns}
    named = json.dumps(model) if model else "MODEL  # name or folder of the policy that generated these pairs"
    held_out = f"eval_dataset: {_PAIRS}_dev" if "dev" in splits else "val_size: 0.1"
    training = {
        name: _TEXTS["training"].format(name=name, model=named, method=method, pairs=_PAIRS, held_out=held_out)
        for name, method in _TEXTS["methods"].items()
    }
    return {"dataset_info.json": json.dumps(info, indent=2) + "\n", **training}


def _usage(splits: Sequence[str], model: str | None) -> str:  # noqa: ARG001
    first = "" if model else "Set the model in `dpo.yaml` first (`model_name_or_path`), then:\n\n"
    return str(_TEXTS["usage"].format(first=first, steps=_STEPS))


FORMAT = Format(_data, _usage, _files)
