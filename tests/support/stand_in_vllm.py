"""What our engine uses of vLLM, acted out on a CPU: requests that are stepped together, one token each.

It holds what vLLM documents (ids in, ids out, stop strings, log-probs of the chosen token, seeds, adapters by request,
weights by name), and of how vLLM does it only what our engine relies on: a scheduler that takes in the sampled tokens
of each step (`update_from_output`), request ids of its own, and a step that is begun ahead of time, whose tokens for
aborted requests are dropped. The tests of the engine run on it everywhere, and on vLLM itself where that is installed.
"""

import sys
from collections import deque
from collections.abc import Iterable
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stepladder.engines.transformers.constrained import GrammarMasks, unpack_bits
from stepladder.engines.transformers.tokenization import Encoding


class RequestOutputKind(Enum):
    FINAL_ONLY = 2


class StructuredOutputsParams(SimpleNamespace):
    """Only regular expressions."""

    def __init__(self, regex: str) -> None:
        super().__init__(regex=regex)


sampling_params = SimpleNamespace(RequestOutputKind=RequestOutputKind, StructuredOutputsParams=StructuredOutputsParams)


class SamplingParams(SimpleNamespace):
    structured_outputs: StructuredOutputsParams | None = None
    detokenize = True
    stop: list[str] | None = None
    skip_special_tokens = True


class LoRARequest(SimpleNamespace):
    def __init__(self, lora_name: str, lora_int_id: int, lora_path: str) -> None:
        super().__init__(lora_name=lora_name, lora_int_id=lora_int_id, lora_path=lora_path)


class Platform:
    """The GPU, with the memory pool that all vLLMs of a process capture their CUDA graphs into."""

    _global_graph_pool: object | None = None


#: The process groups that were ended.
ended_groups: list[str] = []


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this module and its parts what `import vllm` finds."""
    ended_groups.clear()
    groups = {
        name: partial(ended_groups.append, name)
        for name in ("destroy_model_parallel", "destroy_distributed_environment")
    }
    parts = {
        "": sys.modules[__name__],
        ".lora": SimpleNamespace(),
        ".lora.request": SimpleNamespace(LoRARequest=LoRARequest),
        ".distributed": SimpleNamespace(parallel_state=SimpleNamespace(**groups)),
        ".platforms": SimpleNamespace(current_platform=Platform()),
    }
    for name, part in parts.items():
        monkeypatch.setitem(sys.modules, f"vllm{name}", part)


class LLM:
    def __init__(self, model: str, **arguments: Any) -> None:
        self.arguments = arguments
        assert arguments["generation_config"] == "vllm"
        assert arguments["logprobs_mode"] == "raw_logprobs"
        self.llm_engine = _Engine(model, arguments)


class _WithLoRA(torch.nn.Module):
    """What vLLM puts around a layer where adapters may come: its weights have other names then."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.base_layer = layer

    def forward(self, values: torch.Tensor) -> Any:
        return self.base_layer(values)


class _Scheduler:
    """Takes in the tokens of a step; ends requests at their limit and at stop tokens."""

    def __init__(self) -> None:
        self.requests: dict[str, dict[str, Any]] = {}
        #: Ends every request for this reason, without a token.
        self.gives_up: str | None = None

    def update_from_output(self, scheduled: list[str], model_output: Any) -> dict[int, Any]:
        outputs = []
        for name in scheduled:
            state = self.requests.get(name)
            if state is None:  # aborted while the step was under way
                continue
            if self.gives_up is not None:
                del self.requests[name]
                failed = SimpleNamespace(
                    request_id=name, new_token_ids=[], new_logprobs=None, finish_reason=self.gives_up
                )
                outputs.append(failed)
                continue
            place = model_output.req_id_to_index[name]
            (token,) = model_output.sampled_token_ids[place]
            logprobs = model_output.logprobs and model_output.logprobs.slice_request(place)
            state["written"].append(token)
            params, reason = state["params"], None
            if token in params.stop_token_ids:
                reason = "stop"
            elif len(state["written"]) >= params.max_tokens:
                reason = "length"
            if reason is not None:
                del self.requests[name]
            output = SimpleNamespace(
                request_id=name, new_token_ids=[token], new_logprobs=logprobs, finish_reason=reason
            )
            outputs.append(output)
        return {0: SimpleNamespace(outputs=outputs)}


class _Logprobs(SimpleNamespace):
    """One row per request, the sampled token's in the first column."""

    def slice_request(self, place: int) -> Any:
        return self.logprobs[place]


class _Engine:
    """vLLM's engine: what is stepped, and what turns tokens into outputs."""

    def __init__(self, model: str, arguments: dict[str, Any]) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.limit = arguments["max_model_len"]
        #: What is known of requests outside of the scheduler.
        self.states: dict[str, dict[str, Any]] = {}
        self.resets = self.num_requests = 0
        self.aborted: list[str] = []
        if arguments.get("enable_lora"):
            for name, layer in list(self.model.named_modules()):
                if isinstance(layer, torch.nn.Linear):
                    parent, _, child = name.rpartition(".")
                    setattr(self.model.get_submodule(parent), child, _WithLoRA(layer))
        self.model.load_weights = self._load_weights
        runner = SimpleNamespace(model=self.model)
        self.model_executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.scheduler = _Scheduler()
        core = SimpleNamespace(scheduler=self.scheduler, batch_queue=deque[Any]())
        self.engine_core = SimpleNamespace(engine_core=core)

    @property
    def requests(self) -> dict[str, dict[str, Any]]:
        """The requests that have not ended."""
        return self.scheduler.requests

    def _load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        own = dict(self.model.named_parameters())
        for name, value in weights:
            own[name].data.copy_(value)

    def add_request(self, name: str, prompt: dict[str, Any], params: Any, lora_request: Any = None) -> str:
        assert len(prompt["prompt_token_ids"]) + params.max_tokens <= self.limit
        assert params.detokenize or not params.stop, "stop strings are only supported when detokenize is True"
        generator = None if params.seed is None else torch.Generator().manual_seed(params.seed)
        regex = params.structured_outputs and params.structured_outputs.regex
        if regex and "(?=" in regex:
            raise ValueError("lookaheads are not supported")
        self.num_requests += 1
        own = f"{name}-{self.num_requests:08x}"
        self.requests[own] = self.states[own] = {
            "name": name,
            "ids": list(prompt["prompt_token_ids"]),
            "params": params,
            "generator": generator,
            "lora": lora_request,
            "written": [],
            "sampled": [],
            "logprobs": [],
            "constraint": regex and self._start(regex),
        }
        return own

    def abort_request(self, names: list[str], internal: bool = False) -> None:
        assert internal, "these are the ids that add_request returned"
        for name in names:
            self.aborted.append(name)
            del self.requests[name], self.states[name]

    def _start(self, regex: str) -> Any:
        ends = frozenset({self.tokenizer.eos_token_id})
        return GrammarMasks(Encoding(self.tokenizer), ends).compile(regex)

    @torch.inference_mode()
    def step(self) -> list[Any]:
        """Begin the next step, then take in the one before: rows are one token ahead of what is known of them."""
        queue = self.engine_core.engine_core.batch_queue
        scheduled = [
            name for name, state in self.requests.items() if len(state["sampled"]) < state["params"].max_tokens
        ]
        if scheduled:
            queue.append((scheduled, self._sample(scheduled)))
            if len(queue) < 2 and any(
                len(state["sampled"]) < state["params"].max_tokens for state in self.requests.values()
            ):
                return []
        return self._outputs(*queue.popleft()) if queue else []

    @torch.inference_mode()
    def step_at_once(self) -> list[Any]:
        """A step whose tokens are taken in at once."""
        scheduled = list(self.requests)
        return self._outputs(scheduled, self._sample(scheduled)) if scheduled else []

    def _sample(self, names: list[str]) -> Any:
        sampled = [self._token(self.requests[name]) for name in names]
        asked = any(self.requests[name]["params"].logprobs is not None for name in names)
        values = _Logprobs(logprobs=np.array([[value] for _, value in sampled]), cu_num_generated_tokens=None)
        return SimpleNamespace(
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[[token] for token, _ in sampled],
            logprobs=values if asked else None,
        )

    def _outputs(self, scheduled: list[str], model_output: Any) -> list[Any]:
        """vLLM's output processor: text, stop strings and objects for log-probs."""
        ended = []
        for output in self.scheduler.update_from_output(scheduled, model_output)[0].outputs:
            name, reason = output.request_id, output.finish_reason
            state = self.states[name]
            params, tokens = state["params"], state["written"]
            if output.new_logprobs is not None:
                state["logprobs"].append({tokens[-1]: SimpleNamespace(logprob=float(output.new_logprobs[0]))})
            if params.detokenize and params.stop:
                text = self.tokenizer.decode(tokens, skip_special_tokens=params.skip_special_tokens)
                if any(stop in text for stop in params.stop):
                    reason = "stop"
                    self.requests.pop(name, None)
            if reason is not None:
                del self.states[name]
                written = SimpleNamespace(token_ids=tokens, logprobs=state["logprobs"], finish_reason=reason)
                ended.append(SimpleNamespace(request_id=state["name"], finished=True, outputs=[written]))
        return ended

    def _token(self, state: dict[str, Any]) -> tuple[int, float]:
        params = state["params"]
        logits = self.model(torch.tensor([state["ids"] + state["sampled"]])).logits[0, -1].float()
        if state["constraint"]:
            bits = np.frombuffer(state["constraint"].compute_bitmask(), dtype=np.uint8)
            logits = logits.masked_fill(~unpack_bits([bits], len(logits), logits.device)[0], -torch.inf)
        token, logprob = self._sample_token(logits, params, state["generator"])
        state["sampled"].append(token)
        if state["constraint"]:
            state["constraint"].consume_token(token)
        return token, logprob

    @staticmethod
    def _sample_token(logits: torch.Tensor, params: Any, generator: Any) -> tuple[int, float]:
        if params.temperature == 0:
            token = int(logits.argmax())
        else:
            assert params.top_p == 1.0
            token = int(torch.multinomial((logits / params.temperature).softmax(-1), 1, generator=generator))
        return token, float(logits.log_softmax(-1)[token])

    def reset_prefix_cache(self) -> bool:
        self.resets += 1
        return not self.requests
