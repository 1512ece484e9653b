"""What our engine uses of vLLM, acted out on a CPU: requests that are stepped together, one token each.

It holds what vLLM documents (ids in, ids out, stop strings, log-probs of the chosen token, seeds, adapters by request,
weights by name), and nothing of how vLLM does it. The tests of the engine run on it everywhere, and on vLLM itself
where that is installed.
"""

from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
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


class LoRARequest(SimpleNamespace):
    def __init__(self, lora_name: str, lora_int_id: int, lora_path: str) -> None:
        super().__init__(lora_name=lora_name, lora_int_id=lora_int_id, lora_path=lora_path)


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


class _Engine:
    def __init__(self, model: str, arguments: dict[str, Any]) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.limit = arguments["max_model_len"]
        self.requests: dict[str, dict[str, Any]] = {}
        self.resets = 0
        if arguments.get("enable_lora"):
            for name, layer in list(self.model.named_modules()):
                if isinstance(layer, torch.nn.Linear):
                    parent, _, child = name.rpartition(".")
                    setattr(self.model.get_submodule(parent), child, _WithLoRA(layer))
        self.model.load_weights = self._load_weights
        runner = SimpleNamespace(model=self.model)
        self.model_executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))

    def _load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        own = dict(self.model.named_parameters())
        for name, value in weights:
            own[name].data.copy_(value)

    def add_request(self, name: str, prompt: dict[str, Any], params: Any, lora_request: Any = None) -> None:
        assert len(prompt["prompt_token_ids"]) + params.max_tokens <= self.limit
        generator = None if params.seed is None else torch.Generator().manual_seed(params.seed)
        state = {
            "ids": list(prompt["prompt_token_ids"]),
            "params": params,
            "generator": generator,
            "lora": lora_request,
        }
        regex = params.structured_outputs and params.structured_outputs.regex
        if regex and "(?=" in regex:
            raise ValueError("lookaheads are not supported")
        self.requests[name] = state | {"written": [], "logprobs": [], "constraint": regex and self._start(regex)}

    def _start(self, regex: str) -> Any:
        ends = frozenset({self.tokenizer.eos_token_id})
        return GrammarMasks(Encoding(self.tokenizer), ends).compile(regex)

    @torch.inference_mode()
    def step(self) -> list[Any]:
        ended = []
        for name, state in list(self.requests.items()):
            reason = self._token(state)
            if reason is None:
                continue
            del self.requests[name]
            output = SimpleNamespace(token_ids=state["written"], logprobs=state["logprobs"], finish_reason=reason)
            ended.append(SimpleNamespace(request_id=name, finished=True, outputs=[output]))
        return ended

    def _token(self, state: dict[str, Any]) -> str | None:
        params, written = state["params"], state["written"]
        logits = self.model(torch.tensor([state["ids"] + written])).logits[0, -1].float()
        if state["constraint"]:
            bits = np.frombuffer(state["constraint"].compute_bitmask(), dtype=np.uint8)
            logits = logits.masked_fill(~unpack_bits([bits], len(logits), logits.device)[0], -torch.inf)
        logprobs = logits.log_softmax(-1)
        if params.temperature == 0:
            token = int(logits.argmax())
        else:
            assert params.top_p == 1.0
            token = int(torch.multinomial((logits / params.temperature).softmax(-1), 1, generator=state["generator"]))
        written.append(token)
        if state["constraint"]:
            state["constraint"].consume_token(token)
        state["logprobs"].append({token: SimpleNamespace(logprob=float(logprobs[token]))})
        text = self.tokenizer.decode(written, skip_special_tokens=params.skip_special_tokens)
        if token in params.stop_token_ids or any(stop in text for stop in params.stop or ()):
            return "stop"
        return "length" if len(written) >= params.max_tokens else None

    def reset_prefix_cache(self) -> bool:
        self.resets += 1
        return not self.requests
