"""A folder for LLaMA-Factory: data, its `dataset_info.json`, and ready-to-run DPO training files.

In: pairs by split. Out: `pairs*.jsonl` (ranking data), `steps*.jsonl` (chosen steps, for SFT) and two training files
with ReasonRAG's settings: `dpo.yaml` for full fine-tuning, `dpo_lora.yaml` for LoRA.

LLaMA-Factory puts every `instruction` into the model's chat template. For the policy only the agent's prompt was there,
followed by the transcript. The `instruction` of a pair is therefore that prompt alone, and both answers start with the
transcript. Equal prefixes cancel in DPO's sigmoid loss. Without a chat template all of it is one text.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from stepladder.core.trace import Pair
from stepladder.preferences.export.base import Deduplicated, ExportFiles, Format, Row, pair_texts, write_rows

_PAIRS, _STEPS = "stepladder_pairs", "stepladder_steps"


def _ranked(pair: Pair) -> Row:
    texts = pair_texts(pair)
    return {
        "instruction": texts.prompt,
        "chosen": texts.transcript + texts.chosen,
        "rejected": texts.transcript + texts.rejected,
    }


def _step(pair: Pair) -> Row:
    # Here the transcript is part of the question: in the answer, retrieved text would be trained on.
    texts = pair_texts(pair)
    return {"instruction": texts.context, "output": texts.chosen}


def _write(folder: Path, pairs: Mapping[str, Iterable[Pair]], model: str | None) -> ExportFiles:
    rows: dict[str, int] = {}
    info: dict[str, object] = {}
    for split, each in pairs.items():
        suffix = "" if split == "train" else f"_{split}"
        ranked, steps = f"pairs{suffix}.jsonl", f"steps{suffix}.jsonl"
        rows |= write_rows(folder, each, {ranked: _ranked, steps: Deduplicated(_step)})
        info[_PAIRS + suffix] = {
            "file_name": ranked,
            "ranking": True,
            "columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"},
        }
        info[_STEPS + suffix] = {"file_name": steps, "columns": {"prompt": "instruction", "response": "output"}}
    (folder / "dataset_info.json").write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")
    has_dev = "dev" in pairs
    (folder / "dpo.yaml").write_text(_training("dpo.yaml", _FULL, model, has_dev), encoding="utf-8")
    (folder / "dpo_lora.yaml").write_text(_training("dpo_lora.yaml", _LORA, model, has_dev), encoding="utf-8")
    return ExportFiles(rows, _usage(model))


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


def _usage(model: str | None) -> str:
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


FORMAT = Format("data, dataset_info.json and DPO training files for LLaMA-Factory", _write)
