"""A dataset folder for TRL: preference pairs for DPOTrainer and RewardTrainer, chosen steps for SFTTrainer.

In: pairs by split. Out: JSONL files and a card whose front matter names three configurations for
`datasets.load_dataset(FOLDER, NAME)`:

    preference          prompt, chosen, rejected   plain text, as the policy saw and wrote it
    conversational      prompt, chosen, rejected   the same as chat messages, for models with a chat template
    prompt_completion   prompt, completion         the chosen steps, without duplicates
"""

from collections.abc import Callable, Sequence

import yaml  # type: ignore[import-untyped]

from stepladder.preferences.export.base import Format, PairTexts, Row, RowFile


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
    return f"""```python
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

data = load_dataset("FOLDER", "preference")  # or "conversational", or "prompt_completion" for SFTTrainer
settings = DPOConfig("dpo", beta=0.3, learning_rate=1e-6, num_train_epochs=1, max_length=None)
DPOTrainer({model or "MODEL"!r}, args=settings, train_dataset=data["train"]{dev}).train()
```

- `preference`: `prompt` is everything that the policy saw, `chosen` and `rejected` are the steps it wrote. Concatenated
  they are exactly the text of the agent: **no chat template has been applied**. For models without one.
- `conversational`: the same for a model with a chat template. The agent's prompt is the user message; the transcript
  that followed starts the assistant message of both answers. Use it with DPO's sigmoid loss and for reward models;
  losses that average over tokens would count the shared prefix.
- `prompt_completion`: the chosen steps as above, without duplicates.

`max_length=None` matters: TRL truncates texts to 1,024 tokens by default, which would remove the step itself. It
adds an end-of-sequence token to every step. RewardTrainer reads `preference` and `conversational` as well.
"""


FORMAT = Format(_data, _usage, header=_header)
