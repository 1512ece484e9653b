"""Measures this machine: how fast it generates and trains with a model of some shape.

In: the shape of a model. Out: an entry as in `constants.yaml`, which `save_rates` stores in the user's cache. Weights
are random, because speed does not depend on them, and a large model is cut to a few layers: achieved FLOP/s depend on
the width of a model and not on its depth. It takes about half a minute on a CPU.
"""

import gc
import math
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import yaml  # type: ignore[import-untyped]

from stepladder.core.io.files import atomic_file
from stepladder.pipeline.plan.cost_constants import measured_file, stored_rates
from stepladder.pipeline.plan.gpu_cluster import Cluster
from stepladder.pipeline.plan.model_shape import ModelShape

#: The measured model is cut to about this many weights, and its vocabulary to this many words.
_MOST_PARAMETERS, _MOST_WORDS = 60e6, 49_152
#: (rows of a small and of a large batch, rows and tokens of training) on a CPU and on a GPU.
_SIZES = {True: (2, 32, 4, 320), False: (8, 256, 16, 1024)}
_WRITTEN, _READ = 24, 320
#: The least that a request takes: the agent and the driver, which are not measured.
_REQUEST_SECONDS = 1e-3


def measure_rates(shape: ModelShape, cluster: Cluster) -> dict[str, Any]:
    """The entry of this machine, from a measurement with a model of this shape."""
    import torch

    device = torch.device("cpu" if cluster.is_cpu else "cuda")
    cut = _cut(shape)
    model = _random_model(cut, device)
    small, large, rows, length = _SIZES[cluster.is_cpu]
    bandwidth = _bandwidth(device)
    step, row, read, request = _generation(model, cut, small, large)
    width = 4 if cluster.is_cpu else 2
    layer = max((step - width * cut.computed_parameters / bandwidth) / cut.layers, 1e-6)
    trained, update = _training(model, cut, rows, length)
    name = platform.processor() or platform.machine() if cluster.is_cpu else torch.cuda.get_device_name()
    flops = 2 * cut.computed_parameters
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "source": f"stepladder plan --measure, {name}, {torch.get_num_threads()} threads",
        "bandwidth": bandwidth,
        "generation": {
            "transformers": {
                "layer_seconds": layer,
                "row_seconds": 0.0,
                "flops": {shape.hidden: flops / read},
                "decode_flops": {shape.hidden: flops / row},
                "overlap": False,
            }
        },
        "training": {"flops": {shape.hidden: trained}, "update_seconds": update},
        "request_seconds": request,
    }


def save_rates(device: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Store an entry, with what was measured before on this machine with models of another width."""
    stored = stored_rates()
    merged = {**entry, "generation": {**entry["generation"]}}
    if (before := stored.get(device)) is not None and before["source"] == entry["source"]:
        for engine, each in entry["generation"].items():
            old = before["generation"].get(engine, {})
            points = {name: {**old.get(name, {}), **each[name]} for name in ("flops", "decode_flops")}
            merged["generation"][engine] = {**each, **points}
        flops = {**before["training"]["flops"], **entry["training"]["flops"]}
        merged["training"] = {**entry["training"], "flops": flops}
    path = measured_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        yaml.safe_dump({**stored, device: merged}, file, sort_keys=False)
    return merged


def _cut(shape: ModelShape) -> ModelShape:
    """The shape with few enough layers and words."""
    words = min(shape.vocabulary, _MOST_WORDS)
    room = max(_MOST_PARAMETERS - words * shape.hidden, 0.0)
    layers = min(max(math.floor(room / shape.layer_parameters), 2), shape.layers)
    return replace(shape, layers=layers, vocabulary=words, tied=True)


def _random_model(shape: ModelShape, device: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        vocab_size=shape.vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=256,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made: Any = AutoModelForCausalLM
        model = made.from_config(config)
    return model.to(device)


def _bandwidth(device: Any) -> float:
    """Bytes per second that are read from memory."""
    import torch

    values = torch.ones(16 * 2**20 if device.type == "cpu" else 512 * 2**20, device=device)
    seconds = _seconds(lambda: float(values.sum()), 3)
    return float(values.numel() * 4 / seconds)


def _generation(model: Any, shape: ModelShape, small: int, large: int) -> tuple[float, float, float, float]:
    """Seconds of a decoding step, of a row in it, of a token that is read, and of a request beside all these."""
    import torch

    from stepladder.core.requests import Generate, Sampling
    from stepladder.core.trace import Author, Segment
    from stepladder.engines.transformers.engine import TransformersEngine
    from stepladder.models.tiny import tiny_tokenizer

    writer = model.eval() if model.device.type == "cpu" else model.to(torch.bfloat16).eval()
    engine = TransformersEngine(writer, tiny_tokenizer(), max_batch=large)
    engine.end_tokens = frozenset()
    drawn = torch.Generator().manual_seed(0)

    def write(rows: int, read: int, written: int) -> float:
        requests = []
        for number in range(rows):
            tokens = tuple(torch.randint(5, min(shape.vocabulary, 250), (read,), generator=drawn).tolist())
            context = (Segment(Author.ENVIRONMENT, "?", tokens, (), engine.encoding.vocabulary),)
            sampling = Sampling(1.0, 1.0, written)
            requests.append(Generate(context, stop=("</never written>",), sampling=sampling, seed=number))
        return _seconds(lambda: engine.generate(requests), 1)

    write(2, 16, 4)
    few, many = (min(write(rows, 8, _WRITTEN) for _ in range(2)) for rows in (small, large))
    read = min(write(4, _READ, 1) for _ in range(2))
    short = min(write(large, 8, 1) for _ in range(2))
    engine.close()
    row = max((many - few) / _WRITTEN / (large - small), 1e-9)
    step = max(few / _WRITTEN - small * row, 1e-6)
    token = max((read - step) / (4 * _READ), 1e-9)
    return step, row, token, max(short / large - step / large - row - 8 * token, _REQUEST_SECONDS)


def _training(model: Any, shape: ModelShape, rows: int, length: int) -> tuple[float, float]:
    """FLOP/s of training, and seconds of an update beside forward and backward passes."""
    import torch

    from stepladder.models.devices import pick_dtype
    from stepladder.train.transcripts.fine_tune import Batch, weighted_nll

    model = model.float().train()
    bf16 = pick_dtype("bf16", model.device) is torch.bfloat16
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(5, 250, (rows, length), device=model.device)
    weights = (torch.arange(length, device=model.device) % 3 == 0).float().expand(rows, length)
    batch = Batch(input_ids=ids, attention_mask=torch.ones_like(ids), weights=weights, question_ids=[])

    def passes() -> float:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            loss = weighted_nll(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    passes()
    optimizer.step()
    seconds = _seconds(passes, 2)
    update = _seconds(lambda: optimizer.step(), 2)
    optimizer.zero_grad()
    gc.collect()
    return 6 * shape.computed_parameters * rows * length / seconds, 0.03 + min(update, 0.1)


def _seconds(run: Callable[[], object], times: int) -> float:
    """The shortest of several runs. With one thread it is the processor's time: other programs do not count."""
    import torch

    alone = not torch.cuda.is_available() and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    found = []
    for _ in range(times):
        started = clock()
        run()
        found.append(clock() - started)
    return max(min(found), 1e-9)
