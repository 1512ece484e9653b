"""Can a warmed-up nano still learn? A plain policy-gradient loop on Atlas, with the library's own episodes and engine.

    python -m pretrain.rl_probe --policy runs/demo/sft/policy --arm steps --seed 1 --out probe-steps-1.jsonl

Two arms. `outcome`: the advantage of a trajectory is its F1 (a broken one gets -0.2), normalised over the samples of
its question. `steps`: to the tokens of each step is added that step's gold reward, normalised over the same step of the
other samples: a search counts 1 if it found a gold passage that was still needed, a sub-answer if it is the right one.
Retrieved tokens are read, never trained on. Nothing else: no clipping, no reference model, one update a batch.

Rows of the output: the step, sampled reward, and on the test questions greedy EM, F1, validity, searches, F1 by hops.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepladder.agents import make_agent
from stepladder.core.answer_metrics import normalize, score
from stepladder.core.requests import Sampling
from stepladder.core.seeding import seed_of
from stepladder.core.trace import ActionKind, Author, Trajectory
from stepladder.data import load_dataset
from stepladder.driver import Driver
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.evaluation.evaluator import evaluate
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.retrieval.index.bm25 import BM25Index

BROKEN = -0.2


def outcome(trajectory: Trajectory) -> float:
    """F1 of the answer; less than nothing for a transcript that did not come to one."""
    return score(trajectory).f1 if trajectory.answer is not None else BROKEN


def step_rewards(trajectory: Trajectory) -> list[float]:
    """For every step, whether it did what the gold decomposition still needed. The answer's reward is its F1."""
    hops = [hop for hop in trajectory.question.hops if hop.passages]
    needed = set(range(len(hops)))
    current: int | None = None
    rewards = []
    for step in trajectory.steps:
        action = step.action
        if action.kind is ActionKind.QUERY:
            found = {passage.id for passage in step.passages}
            current = next((n for n in sorted(needed) if not found.isdisjoint(hops[n].passages)), None)
            needed.discard(-1 if current is None else current)
            rewards.append(float(current is not None))
        elif action.kind is ActionKind.SUB_ANSWER:
            right = {normalize(text) for n in [current] if n is not None for text in (hops[n].answer, *hops[n].aliases)}
            rewards.append(float(normalize(action.content) in right))
        else:
            rewards.append(outcome(trajectory))
    return rewards


def normalised(values: Sequence[float]) -> np.ndarray[Any, Any]:
    array = np.array(values)
    return (array - array.mean()) / (array.std() + 1e-4) if array.std() > 1e-6 else np.zeros(len(array))


def advantages(group: Sequence[Trajectory], weight: float) -> list[list[float]]:
    """One number a step, for all samples of one question."""
    whole = normalised([outcome(trajectory) for trajectory in group])
    result = [[float(value)] * len(trajectory.steps) for value, trajectory in zip(whole, group)]
    if weight:
        rewards = [step_rewards(trajectory) for trajectory in group]
        for index in range(max(map(len, rewards))):
            reached = [n for n, each in enumerate(rewards) if index < len(each)]
            for n, value in zip(reached, normalised([rewards[n][index] for n in reached])):
                result[n][index] += weight * float(value)
    return result


def flatten(trajectory: Trajectory, values: Sequence[float]) -> tuple[list[int], list[float]]:
    """All tokens of a transcript, and for each its advantage: zero unless the policy wrote it."""
    ids: list[int] = []
    weights: list[float] = []
    for step, value in zip(trajectory.steps, values):
        for segment in (*step.read, step.written):
            ids += segment.tokens
            weights += [value if segment.author is Author.POLICY else 0.0] * len(segment.tokens)
    return ids, weights


def update(model: Any, optimizer: torch.optim.Optimizer, rows: list[tuple[list[int], list[float]]]) -> None:
    """One step of plain policy gradient over all tokens of the batch."""
    rows = sorted((row for row in rows if any(row[1])), key=lambda row: len(row[0]))
    if not rows:
        return
    total = sum(sum(1 for weight in weights if weight) for _, weights in rows)
    for start in range(0, len(rows), 64):
        part = rows[start : start + 64]
        width = max(len(ids) for ids, _ in part)
        ids_BT = torch.zeros(len(part), width, dtype=torch.long)
        weights_BT = torch.zeros(len(part), width)
        for n, (ids, weights) in enumerate(part):
            ids_BT[n, : len(ids)] = torch.tensor(ids)
            weights_BT[n, : len(ids)] = torch.tensor(weights)
        ids_BT, weights_BT = ids_BT.to(model.device), weights_BT.to(model.device)
        logits_BTV = model(input_ids=ids_BT[:, :-1]).logits.float()
        logp_BT = logits_BTV.log_softmax(-1).gather(2, ids_BT[:, 1:, None])[..., 0]
        (-(logp_BT * weights_BT[:, 1:]).sum() / total).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arm", choices=("outcome", "steps"), required=True)
    parser.add_argument("--weight", type=float, default=1.0, help="of the step reward, in the arm `steps`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many, if that comes first")
    parser.add_argument("--questions", type=int, default=32, help="a step")
    parser.add_argument("--samples", type=int, default=8, help="a question")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--test", type=int, default=300, help="test questions")
    parser.add_argument("--every", type=int, default=20, help="steps between test scores")
    arguments = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(arguments.policy, dtype=torch.float32).to(device)
    engine = TransformersEngine(model, AutoTokenizer.from_pretrained(arguments.policy), max_batch=512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, betas=(0.9, 0.95), weight_decay=0.0)
    data = load_dataset("atlas")
    assert data.passages is not None
    driver = Driver(engine, BM25Index.from_passages(data.passages))
    agent = make_agent("prorag-brief")
    greedy = EpisodeConfig(max_steps=10, k=1, sampling=Sampling(max_tokens=160))
    sampled = EpisodeConfig(max_steps=10, k=1, sampling=Sampling(temperature=1.0, max_tokens=160))
    train, test = data.split("train"), data.split("test")[: arguments.test]
    rng = random.Random(seed_of("rl probe", arguments.seed))
    weight = arguments.weight if arguments.arm == "steps" else 0.0

    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    began = time.time()
    with arguments.out.open("w") as log:
        for number in range(arguments.steps + 1):
            row: dict[str, Any] = {"step": number, "arm": arguments.arm, "seed": arguments.seed}
            late = time.time() - began > arguments.seconds
            if number % arguments.every == 0 or number == arguments.steps or late:
                summary = evaluate(driver, agent, test, greedy).summary()
                row |= {name: round(summary.metrics[name].mean, 4) for name in ("em", "f1", "searches")}
                row["valid"] = round(1 - summary.metrics["malformed"].mean, 4)
                row["f1_by_hops"] = {hops: round(each["f1"], 4) for hops, each in summary.by_hops.items()}
            if number == arguments.steps or late:
                log.write(json.dumps(row | {"seconds": round(time.time() - began, 1)}) + "\n")
                break
            asked = rng.sample(train, arguments.questions)
            jobs = [
                partial(episode, agent, question, sampled, seed_of(arguments.seed, number, question.id, sample))
                for question in asked
                for sample in range(arguments.samples)
            ]
            outcomes = driver.run(jobs)
            rows = []
            rewards = []
            for start in range(0, len(outcomes), arguments.samples):
                group = [each.value for each in outcomes[start : start + arguments.samples] if each.value is not None]
                if not group:  # every episode of this question broke
                    continue
                rewards += [outcome(trajectory) for trajectory in group]
                rows += [flatten(*pair) for pair in zip(group, advantages(group, weight))]
            rolled = time.time()
            update(model, optimizer, rows)
            row |= {"reward": round(float(np.mean(rewards)), 4), "used": sum(any(weights) for _, weights in rows)}
            row["failed"] = sum(each.failure is not None for each in outcomes)
            row |= {"update_seconds": round(time.time() - rolled, 2), "seconds": round(time.time() - began, 1)}
            print(json.dumps(row), flush=True)
            log.write(json.dumps(row) + "\n")
            log.flush()


if __name__ == "__main__":
    main()
