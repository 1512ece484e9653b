"""A folder for LLaMA-Factory: data, its `dataset_info.json`, and ready-to-run DPO training files.

In: pairs by split. Out: `pairs*.jsonl` (ranking data), `steps*.jsonl` (chosen steps, for SFT) and two training files
with ReasonRAG's settings: `dpo.yaml` for full fine-tuning, `dpo_lora.yaml` for LoRA.

LLaMA-Factory puts every `instruction` into the model's chat template. For the policy only the agent's prompt was there,
followed by the transcript. The `instruction` of a pair is therefore that prompt alone, and both answers start with the
transcript. Equal prefixes cancel in DPO's sigmoid loss. Without a chat template all of it is one text.
"""

import json
from collections.abc import Sequence

from stepladder.preferences.export.base import Format, PairTexts, Row, RowFile

_PAIRS, _STEPS = "stepladder_pairs", "stepladder_steps"


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
    training = {"dpo.yaml": _FULL, "dpo_lora.yaml": _LORA}
    return {
        "dataset_info.json": json.dumps(info, indent=2) + "\n",
        **{name: _training(name, method, model, "dev" in splits) for name, method in training.items()},
    }


_FULL = """finetuning_type: full
output_dir: saves/dpo
gradient_accumulation_steps: 2
learning_rate: 1.0e-6
num_train_epochs: 1.0
"""

_LORA = """finetuning_type: lora
lora_target: all
output_dir: saves/dpo_lora
gradient_accumulation_steps: 8
learning_rate: 5.0e-6
num_train_epochs: 3.0
"""


def _training(name: str, method: str, model: str | None, has_dev: bool) -> str:
    named = json.dumps(model) if model else "MODEL  # name or folder of the policy that generated these pairs"
    held_out = f"eval_dataset: {_PAIRS}_dev" if has_dev else "val_size: 0.1"
    return f"""# From inside this folder: llamafactory-cli train {name}
model_name_or_path: {named}
# No template is set: the model's own chat template is used, if it has one.

stage: dpo
do_train: true
pref_beta: 0.3
pref_loss: sigmoid
{method}per_device_train_batch_size: 1
lr_scheduler_type: cosine
warmup_ratio: 0.2
bf16: true

dataset_dir: .
dataset: {_PAIRS}
cutoff_len: 10000
{held_out}
per_device_eval_batch_size: 1
eval_strategy: epoch
save_strategy: epoch
logging_steps: 10
report_to: none
"""


def _usage(splits: Sequence[str], model: str | None) -> str:  # noqa: ARG001
    first = "" if model else "Set the model in `dpo.yaml` first (`model_name_or_path`), then:\n\n"
    return f"""{first}```sh
cd FOLDER && llamafactory-cli train dpo.yaml       # or dpo_lora.yaml
```

- `pairs`: `instruction` is the agent's prompt, which LLaMA-Factory puts into the model's chat template. The transcript
  since then, if any, is the prefix of both answers, followed by the step. `instruction` plus `chosen` is exactly the
  text that the policy saw and wrote. Keep `pref_loss: sigmoid` and `pref_ftx: 0`: other losses would count the shared
  prefix, which contains retrieved passages. Of the logged rewards only the margins are meaningful.
- `steps`: the chosen steps without duplicates, for `stage: sft` with `dataset: {_STEPS}`. `instruction` is everything
  that the policy saw, `output` what it wrote. This is exact with `template: empty`; with a chat template the transcript
  is part of the user message.
- Answers longer than `cutoff_len` tokens are truncated at the end, which is the step: raise it for long transcripts.
"""


FORMAT = Format(_data, _usage, _files)
