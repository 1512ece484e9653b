"""Do the paper-size recipes go through their stages with models of the real width? A dry run.

    python checks/paper_shapes.py [prorag-qwen3-8b reasonrag-qwen2.5-7b] [--divide 1] [--device cpu] [--out DIR]

In: the names of recipes. Out: one line per stage with its seconds; an error ends the check. The policy has the real
hidden size, heads and MLP of the recipe's model, with random weights. What is cut:

- layers: two;
- vocabulary and tokenizer: nano's, 4,096 words;
- data: a few questions of Atlas; batches, samples, simulations and steps of an episode are few;
- decoding follows the agent's grammar, because random weights write no format; learning rates are tiny, so that they
  stay random: a policy that has seen four demonstrations often never answers;
- answers: random weights never answer correctly, so that there would be no pairs and no samples to keep. Here about
  half of all answers count as correct, by a checksum of their text. Pairs compare Monte-Carlo values for that reason;
- prm-eval is left out: it needs steps that the gold judge finds good;
- engine: transformers instead of vLLM.

`--divide 16` divides the widths by 16, for a quick look: about two minutes on two slow cores. The real widths take far
longer there; `--device cuda` runs them on a GPU.
"""

import argparse
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from stepladder.core.questions import answer_kinds
from stepladder.core.questions.answer_text import AnswerScore, normalize, score_answer
from stepladder.models.loading import load_tokenizer
from stepladder.pipeline import run_recipe
from stepladder.pipeline.plan.cost_constants import constants
from stepladder.pipeline.plan.model_shape import ModelShape, find_shape
from stepladder.pipeline.recipe import Recipe, load_recipe

#: Overrides of every recipe, and by kind of stage.
SHARED = (
    *("engine=transformers", "batch_size=8", "data={name: atlas}", "search.k=1"),
    *("prompting.format=constrained", "prompting.max_searches=2", "prompting.force_answer=true"),
    *("episode.max_steps=11", "episode.max_tokens=64"),
)
SMALL = {
    "sft": ("questions=4", "batch_size=2", "dev_questions=1", "eval_steps=0"),
    "eval": ("limit=2",),
    "explore": ("questions=3", "simulations=6", "width=3"),
    "pairs": ("judge=mc", "min_state_visits=0", "dev_share=0"),
    "prm": ("num_train_epochs=1", "batch_size=2"),
    "rft": ("questions=3", "num_generations=4", "threshold=-1000", "batch_size=2", "dev_questions=1", "eval_steps=0"),
    "dpo": ("batch_size=2", "dev_questions=1"),
    "grpo": (
        "questions=2",
        "num_generations=2",
        "batch_size=2",
        "engine=transformers",
        "dev_questions=1",
        "eval_steps=1",
    ),
}


def half_correct(prediction: str, answers: Any) -> AnswerScore:
    """About half of all answers count as correct."""
    found = score_answer(prediction, answers)
    lucky = zlib.crc32(normalize(prediction).encode()) % 2 == 0
    return AnswerScore(*[1.0] * 5) if lucky or found.em else found


def write_model(shape: ModelShape, folder: Path, divide: int) -> None:
    """A model of this width with two layers, random weights and nano's tokenizer."""
    tokenizer = load_tokenizer("nano")
    heads = max(shape.heads // divide, shape.heads // shape.kv_heads)
    config = (Qwen3Config if shape.normed else Qwen2Config)(
        hidden_size=shape.hidden // divide,
        intermediate_size=shape.intermediate // divide,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=max(heads * shape.kv_heads // shape.heads, 1),
        head_dim=shape.head_size,
        vocab_size=len(tokenizer),
        max_position_embeddings=4096,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    # Logits of the same size at every width: else wide models hardly ever answer, and rft has nothing to keep.
    torch.nn.init.normal_(model.get_output_embeddings().weight, std=0.5 / config.hidden_size**0.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = sum(each.numel() for each in model.parameters()) / 1e6
    print(f"{shape.name}: hidden size {config.hidden_size}, two layers, {size:,.0f}M weights", flush=True)


def small_recipe(name: str, policy: Path, device: str) -> Recipe:
    """The recipe with few questions, and without stages that random weights cannot pass."""
    whole = load_recipe(name)
    changes = [*SHARED, f"policy={policy}", f"device={device}"]
    for stage in whole.stages:
        changes += [f"stages.{stage.name}.{change}" for change in SMALL.get(stage.kind, ())]
        if hasattr(stage.settings, "learning_rate"):
            changes.append(f"stages.{stage.name}.learning_rate=1e-7")
        if getattr(stage.settings, "gradient_accumulation_steps", 1) > 1:
            changes.append(f"stages.{stage.name}.gradient_accumulation_steps=2")
    plain = load_recipe(name, changes).plain()
    plain["stages"] = {key: each for key, each in plain["stages"].items() if each["kind"] != "prm-eval"}
    return Recipe.read(plain, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=["prorag-qwen3-8b", "reasonrag-qwen2.5-7b"])
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    answer_kinds.score_answer = half_correct
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.recipes:
            folder = (options.out or Path(scratch)) / name
            write_model(
                find_shape(load_recipe(name).shared.policy, constants()["models"]), folder / "model", options.divide
            )
            started = time.monotonic()
            report = run_recipe(small_recipe(name, folder / "model", options.device), folder / "run")
            for stage in report.stages:
                print(f"  {stage.name:<12} {stage.seconds:8.1f} s", flush=True)
            print(f"{name}: all {len(report.stages)} stages in {time.monotonic() - started:,.0f} s", flush=True)


if __name__ == "__main__":
    main()
