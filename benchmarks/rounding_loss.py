"""How much of what LoRA has learnt is left in bf16: rounded by chance, as policies are written, and to the nearest.

    python benchmarks/rounding_loss.py --model smollm2-135m

The same model learns a few lines with LoRA, then its weights are rounded in both ways, and the loss on these lines is
told as a share of what was gained. All is computed in fp32: what differs is the weights alone.
"""

import argparse
import copy
from typing import Any

import torch

from stepladder.models.loading import load_model
from stepladder.models.stochastic_rounding import cast_model
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.policy_weights import add_lora

LINES = (
    "Question: Who is the mother of the director of The Silent Harbour?\nSearch: director of The Silent Harbour",
    "Question: Which opened first, the museum of Orm or the library of Kesh?\nSearch: when the museum of Orm opened",
    "Question: When did the father of the painter Ilva Brandt die?\nSearch: father of the painter Ilva Brandt",
    "Question: In which country was the architect of Tower Hall born?\nSearch: architect of Tower Hall",
)


def learnt(model: Any, batch: dict[str, torch.Tensor], lr: float, updates: int, source: str) -> Any:
    """The model after so many updates, LoRA merged, in fp32."""
    torch.manual_seed(0)
    adapted: Any = add_lora(copy.deepcopy(model), LoraConfig(r=16, lora_alpha=32), source, "CAUSAL_LM")
    optimizer = torch.optim.AdamW([each for each in adapted.parameters() if each.requires_grad], lr=lr, weight_decay=0)
    for _ in range(updates):
        adapted(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return adapted.merge_and_unload()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--lr", type=float, action="append", help="may be given several times")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any
    model, tokenizer = load_model(chosen.model, None, torch.bfloat16)  # begins with weights that bf16 can hold
    model = model.to(device, torch.float32)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    batch: Any = tokenizer(list(LINES), return_tensors="pt", padding=True, return_token_type_ids=False).to(device)
    batch = {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}

    @torch.no_grad()
    def loss(given: Any) -> float:
        return float(given(**batch).loss)

    print(f"{chosen.model}, LoRA of rank 16, {chosen.updates} updates, {device}")
    print(f"{'learning rate':>14}{'loss before':>13}{'after':>9}{'left: to the nearest':>23}{'by chance':>12}")
    before = loss(model)
    for lr in chosen.lr or (1e-5, 1e-4):
        exact = learnt(model, batch, lr, chosen.updates, chosen.model)
        nearest, by_chance = copy.deepcopy(exact), copy.deepcopy(exact)
        nearest.to(torch.bfloat16).float()
        cast_model(by_chance, torch.bfloat16)
        after = loss(exact)
        left = [(before - loss(each.float())) / (before - after) for each in (nearest, by_chance)]
        print(f"{lr:>14g}{before:>13.3f}{after:>9.3f}{left[0]:>23.0%}{left[1]:>12.0%}", flush=True)


if __name__ == "__main__":
    main()
