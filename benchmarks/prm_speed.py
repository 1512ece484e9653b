"""How fast a reward model scores steps: one pass a trajectory, against one text a step.

The same trajectories, weights and dtype in one run, taking turns:

- one text a call: how the published scripts score, a call for every step with all that came before it read again;
- texts in batches: the same texts, sorted by length and padded, as a careful user of the plain model would do it;
- Stepladder: every step of a trajectory in one pass, trajectories in batches.

The first two call a plain `AutoModelForSequenceClassification`, and get their token ids for nothing. Trajectories are
gold-played test questions of Atlas. The model is nano with a head drawn at random; `--reward` takes another. The last
column is the largest difference to the scores of one text a call: it is the same work.

How many times fewer tokens are read is the gain where computing is the limit, as on a CPU. A GPU waits most of the time
when it is given one text a call; there, batches add to it.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from stepladder.agents import make_agent
from stepladder.core.trace import Segment, Trajectory
from stepladder.data import load_dataset
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.explore.episode import EpisodeConfig
from stepladder.judges.prm.reward_model import ProcessRewardModel, with_scalar_head
from stepladder.models.loading import load_model, quiet_libraries
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.train.sft.demonstrations import gold_demonstrations


def nano_with_head(folder: Path) -> Path:
    model, tokenizer = load_model("nano", None, torch.float32)
    scoring: Any = with_scalar_head(model, tokenizer, "nano")
    torch.nn.init.normal_(scoring.score.weight, generator=torch.Generator().manual_seed(0))
    ProcessRewardModel(scoring, tokenizer).save(folder / "reward")
    return folder / "reward"


def trajectories_with_ids(encoding: Encoding, count: int, k: int) -> list[Trajectory]:
    """Gold episodes with the token ids that an engine would have left in them."""
    data = load_dataset("atlas", seed=0)
    index = BM25Index.from_passages(data.passages or ())
    questions = data.split("test")[:count]
    played = gold_demonstrations(make_agent("prorag-brief"), questions, index, EpisodeConfig(k=k), seed=0).kept

    def encoded(segments: Sequence[Segment]) -> tuple[Segment, ...]:
        return tuple(map(encoding.encode, segments))

    return [
        replace(
            trajectory,
            steps=tuple(
                replace(step, read=encoded(step.read), written=encoding.encode(step.written))
                for step in trajectory.steps
            ),
        )
        for trajectory in played
    ]


def texts_of(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """One text a step: all that was in view, to the last token of the step."""
    return [
        [token for segment in (*trajectory.consumed(place), step.written) for token in segment.tokens]
        for trajectory in trajectories
        for place, step in enumerate(trajectory.steps)
    ]


@torch.inference_mode()
def one_text_a_call(model: Any, texts: Sequence[list[int]]) -> list[float]:
    device = model.device
    return [float(model(input_ids=torch.tensor([text], device=device)).logits[0, 0]) for text in texts]


@torch.inference_mode()
def texts_in_batches(model: Any, texts: Sequence[list[int]], batch: int) -> list[float]:
    scores = [0.0] * len(texts)
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        width = len(texts[places[-1]])
        padding = model.config.pad_token_id
        ids = torch.tensor([texts[place] + [padding] * (width - len(texts[place])) for place in places])
        mask = torch.tensor([[1] * len(texts[place]) + [0] * (width - len(texts[place])) for place in places])
        found = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device)).logits[:, 0].tolist()
        for place, score in zip(places, found):
            scores[place] = score
    return scores


def compare(label: str, ways: dict[str, Callable[[], list[float]]], rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    scores: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            scores[name] = way()  # a list of numbers: they have left the device
            seconds[name].append(time.perf_counter() - started)
    first = next(iter(ways))
    low, high = min(scores[first]), max(scores[first])
    if not low < high:
        raise SystemExit(f"all scores are {low}: the reward model says nothing, so equal scores prove nothing")
    slowest = statistics.median(seconds[first])
    for name in ways:
        median = statistics.median(seconds[name])
        off = max(abs(a - b) for a, b in zip(scores[name], scores[first], strict=True))
        rate = len(scores[name]) / median
        print(f"{label:<22}{name:<24}{median:>9.2f}{rate:>10,.0f}{slowest / median:>9.1f}x{off:>14.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reward", type=Path, help="a reward model; without one, nano with a head drawn at random")
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = given.reward or nano_with_head(Path(temporary))
        ours = ProcessRewardModel.load(folder, max_batch=given.batch)
        dtype, device = ours.model.dtype, ours.model.device
        with quiet_libraries():
            plain = AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype).to(device).eval()
    size = sum(weights.numel() for weights in plain.parameters()) / 1e6
    threads = torch.get_num_threads()
    print(f"{size:.1f}M parameters, {dtype}, {device}, {threads} threads, batches of {given.batch}, prorag-brief")
    print(f"{'trajectories':<22}{'way':<24}{'seconds':>9}{'steps/s':>10}{'times':>10}{'difference':>14}")
    for k in (1, 3):
        trajectories = trajectories_with_ids(ours.builder.encoding, given.questions, k)
        texts = texts_of(trajectories)
        ours.score_logits(trajectories[:2])  # warm up
        one_text_a_call(plain, texts[:2])
        label = f"k={k}, {len(texts) / len(trajectories):.1f} steps of {sum(map(len, texts)) / len(texts):.0f}"
        ways: dict[str, Callable[[], list[float]]] = {
            "one text a call": lambda texts=texts: one_text_a_call(plain, texts),  # type: ignore[misc]
            "texts in batches": lambda texts=texts: texts_in_batches(plain, texts, given.batch),  # type: ignore[misc]
            "Stepladder": lambda played=trajectories: [*chain.from_iterable(ours.score_logits(played))],  # type: ignore[misc]
        }
        compare(label, ways, given.rounds)
        again, once = sum(map(len, texts)), sum(len(r.tokens) for t in trajectories for r in ours.builder.trajectory(t))
        print(f"{'':<22}tokens read: {again:,} by texts, {once:,} by trajectories ({again / once:.1f} times as many)")
    print("aim: 10 times as many steps a second as with one text a call")


if __name__ == "__main__":
    main()
