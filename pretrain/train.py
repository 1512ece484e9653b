"""Pre-train nano on plain documents about other Atlas worlds. Minutes on one GPU.

    python -m pretrain.tokenizer --out build/tokenizer
    python -m pretrain.train --tokenizer build/tokenizer --out build/nano --tokens 600e6
    python -m pretrain.train --critic build/nano --out build/nano-critic --tokens 500e6 --lr 1e-3

Writes an ordinary transformers folder (bf16) and `log.jsonl`: loss, learning rate, tokens a second and, on worlds that
are never trained on, how many answers of each kind of document come out exactly right.
"""

import argparse
import json
import math
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from pretrain.checks import Checks
from pretrain.documents import FIRST_WORLD, WorldWriter
from pretrain.shards import read_batches, start_writers
from pretrain.source import Source
from pretrain.styles import ANSWER, tidy
from stepladder.data.atlas import generate_atlas

#: Layers, width, heads, key-value heads, width of the feed-forward part.
SHAPES = {
    "4x256": (4, 256, 4, 2, 704),
    "5x256": (5, 256, 4, 2, 704),
    "6x256": (6, 256, 4, 2, 704),
    "6x320": (6, 320, 5, 5, 864),
}
CONTEXT = 2048
HELD_OUT_WORLDS = (FIRST_WORLD + 500, FIRST_WORLD + 501)
KINDS = ("reading", "looking_up", "plans", "conclusions")
CHECKED_KINDS = ("reading", "looking_up", "asking", "conclusions", "chains")


def build_model(shape: str, vocabulary: int, end: int, seed: int) -> LlamaForCausalLM:
    layers, width, heads, kv_heads, inner = SHAPES[shape]
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            rms_norm_eps=1e-5,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=end,
        )
    )


def held_out(tokenizer: Any, count: int, checked: bool) -> dict[str, list[tuple[list[int], list[tuple[int, int]]]]]:
    """By kind: documents of unseen worlds as token ids, with the spans that a reader can work out."""
    avoid = generate_atlas().name_words
    kinds = CHECKED_KINDS if checked else KINDS
    found: dict[str, list[tuple[list[int], list[tuple[int, int]]]]] = {kind: [] for kind in kinds}
    for seed in HELD_OUT_WORLDS:
        atlas, rng = generate_atlas("small", seed=seed, avoid=avoid), random.Random(seed)
        writer: Any = Checks(Source(atlas, rng), avoid) if checked else WorldWriter(atlas, rng)
        for kind in kinds:
            for _ in range(count // len(HELD_OUT_WORLDS)):
                ids: list[int] = []
                spans: list[tuple[int, int]] = []
                for text, weight in tidy(getattr(writer, kind)()):
                    piece = tokenizer(text, add_special_tokens=False)["input_ids"]
                    if weight >= ANSWER and text.strip("\n ."):
                        spans.append((len(ids), len(ids) + len(piece)))
                    ids += piece
                if len(ids) <= CONTEXT:
                    found[kind].append((ids, spans))
    return found


@torch.inference_mode()
def exactly_right(model: Any, documents: list[tuple[list[int], list[tuple[int, int]]]], device: str) -> float:
    """The share of spans whose every token is the likeliest: those that greedy writing would get right."""
    right = total = 0
    for start in range(0, len(documents), 32):
        group = documents[start : start + 32]
        width = max(len(ids) for ids, _ in group)
        ids_BT = torch.zeros(len(group), width, dtype=torch.long)
        for row, (ids, _) in enumerate(group):
            ids_BT[row, : len(ids)] = torch.tensor(ids)
        with torch.autocast(device, torch.bfloat16):
            best_BT = model(input_ids=ids_BT.to(device)).logits.argmax(-1).cpu()
        for row, (_, spans) in enumerate(group):
            for begin, end in spans:
                if begin > 0:
                    total += 1
                    right += int(torch.equal(best_BT[row, begin - 1 : end - 1], ids_BT[row, begin:end]))
    return right / max(total, 1)


def save(model: LlamaForCausalLM, tokenizer: Any, folder: Path) -> None:
    """An ordinary transformers folder with weights in bf16."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--critic", type=Path, help="a model to go on from, with documents that are checked")
    parser.add_argument("--chains", type=float, default=0.0, help="with --critic: share of questions worked through")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="5x256")
    parser.add_argument("--tokens", type=float, default=600e6)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--rows", type=int, default=64, help="rows of 2,048 tokens a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=Path, default=Path("/dev/shm/nano-shards"))
    parser.add_argument("--workers", type=int, default=14, help="processes that write documents; 0: others do")
    parser.add_argument("--probe-every", type=int, default=500)
    arguments = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    source = arguments.critic or arguments.tokenizer
    tokenizer = AutoTokenizer.from_pretrained(source)
    batch_tokens = arguments.rows * CONTEXT
    steps = int(arguments.tokens // batch_tokens)
    writers = []
    if arguments.workers:
        shards = int(arguments.tokens / 1.8e6) + 2
        chains = None if arguments.critic is None else arguments.chains
        writers = start_writers(shards, str(source), arguments.shards, arguments.workers, chains)
    if arguments.critic:
        model = LlamaForCausalLM.from_pretrained(arguments.critic, dtype=torch.float32).to(device)
    else:
        model = build_model(arguments.shape, len(tokenizer), tokenizer.eos_token_id, arguments.seed).to(device)
    probes = held_out(tokenizer, 160, arguments.critic is not None)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}],
        lr=arguments.lr,
        betas=(0.9, 0.95),
        fused=device == "cuda",
    )

    def loss_of(ids_BT: torch.Tensor, weights_BT: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            logits_BTV = model(input_ids=ids_BT[:, :-1]).logits
        losses = cross_entropy(logits_BTV.flatten(0, 1).float(), ids_BT[:, 1:].flatten(), reduction="none")
        weights = weights_BT[:, 1:].flatten()
        return (losses * weights).sum() / weights.sum()

    backbone = torch.compile(model.model) if device == "cuda" else model.model

    def verdict_loss(ids_BT: torch.Tensor, weights_BT: torch.Tensor) -> torch.Tensor:
        """The same where few tokens have a weight: only these are predicted."""
        with torch.autocast(device, torch.bfloat16):
            hidden_BTD = backbone(input_ids=ids_BT[:, :-1]).last_hidden_state
            logits_NV = model.lm_head(hidden_BTD[weights_BT[:, 1:] > 0])
        return cross_entropy(logits_NV.float(), ids_BT[:, 1:][weights_BT[:, 1:] > 0])

    plain_loss = torch.compile(loss_of) if device == "cuda" else loss_of
    trained = verdict_loss if arguments.critic else plain_loss
    arguments.out.mkdir(parents=True, exist_ok=True)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{arguments.shape}: {parameters / 1e6:.2f}M parameters, {steps} steps of {batch_tokens} tokens", flush=True)
    with (arguments.out / "log.jsonl").open("w") as log:
        started = time.time()
        total = torch.zeros((), device=device)
        since = 0
        for step, (ids, weights) in enumerate(read_batches(arguments.shards, arguments.rows, CONTEXT)):
            progress = step / steps
            warmup = min(1.0, (step + 1) / 300)
            rate = arguments.lr * warmup * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))
            for group in optimizer.param_groups:
                group["lr"] = rate
            ids_BT = torch.from_numpy(ids.astype(np.int64)).to(device, non_blocking=True)
            weights_BT = torch.from_numpy(weights).to(device, non_blocking=True).float() / 100
            loss = trained(ids_BT, weights_BT)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += loss.detach()
            since += 1
            done = step + 1 >= steps
            if (step + 1) % 100 == 0 or done:
                record = {"step": step + 1, "tokens": (step + 1) * batch_tokens, "loss": round(total.item() / since, 4)}
                record |= {"lr": round(rate, 6), "seconds": round(time.time() - started, 1)}
                total.zero_()
                since = 0
                if (step + 1) % arguments.probe_every == 0 or done:
                    model.eval()
                    record["right"] = {
                        kind: round(exactly_right(model, found, device), 4) for kind, found in probes.items()
                    }
                    model.train()
                    save(model, tokenizer, arguments.out)
                print(json.dumps(record), flush=True)
                log.write(json.dumps(record) + "\n")
            if done:
                break
    for writer in writers:
        writer.terminate()
    if writers:
        shutil.rmtree(arguments.shards, ignore_errors=True)
    save(model, tokenizer, arguments.out)


if __name__ == "__main__":
    main()
