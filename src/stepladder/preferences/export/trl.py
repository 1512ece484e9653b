"""A dataset folder for TRL: preference pairs for DPOTrainer and RewardTrainer, chosen steps for SFTTrainer.

In: pairs by split. Out: JSONL files and a card whose front matter names three configurations for
`datasets.load_dataset(FOLDER, NAME)`:

    preference          prompt, chosen, rejected   plain text, as the policy saw and wrote it
    conversational      prompt, chosen, rejected   the same as chat messages, for models with a chat template
    prompt_completion   prompt, completion         the chosen steps, without duplicates
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from stepladder.core.io.yaml_tables import read_table
from stepladder.preferences.export.base import Format, PairTexts, Row, RowFile

_USAGE: str = read_table(Path(__file__).with_suffix(".yaml"))["usage"]


def _preference(texts: PairTexts) -> Row:
    return {"prompt": texts.context, "chosen": texts.chosen, "rejected": texts.rejected}


def _conversational(texts: PairTexts) -> Row:
    # The transcript starts the assistant's turn, as it did for the policy. It is the same in both answers, and equal
    # prefixes cancel in DPO's loss.
    return {
        "prompt": [{"role": "user", "content": texts.prompt}],
        "chosen": [{"role": "assistant", "content": texts.transcript + texts.chosen}],
        "rejected": [{"role": "assistant", "content": texts.transcript + texts.rejected}],
    }


def _prompt_completion(texts: PairTexts) -> Row:
    return {"prompt": texts.context, "completion": texts.chosen}


_CONFIGS: dict[str, Callable[[PairTexts], Row]] = {
    "preference": _preference,
    "conversational": _conversational,
    "prompt_completion": _prompt_completion,
}


def _data(split: str) -> list[RowFile]:
    return [RowFile(f"{name}/{split}.jsonl", row, name == "prompt_completion") for name, row in _CONFIGS.items()]


def _header(splits: Sequence[str]) -> str:
    configs = [
        {
            "config_name": name,
            **({"default": True} if name == "preference" else {}),
            "data_files": [{"split": split, "path": f"{name}/{split}.jsonl"} for split in splits],
        }
        for name in _CONFIGS
    ]
    return str(yaml.safe_dump({"configs": configs}, sort_keys=False))


def _usage(splits: Sequence[str], model: str | None) -> str:
    dev = ', eval_dataset=data["dev"]' if "dev" in splits else ""
    return _USAGE.format(model=model or "MODEL", dev=dev)


FORMAT = Format(_data, _usage, header=_header)
