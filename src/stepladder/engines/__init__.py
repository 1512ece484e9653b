"""Engines write text: transformers and vLLM in process, any OpenAI-compatible server, the gold oracle, a script."""

from typing import Literal

from stepladder.core.errors import StepladderError, unknown_name
from stepladder.engines.base import Engine, check_engine
from stepladder.oracle.engine import OracleEngine, Writer

__all__ = ["ENGINES", "Engine", "check_engine", "make_engine"]

#: Engines that can be named on the command line, and what they are.
ENGINES = {
    "gold": "the oracle: plays the gold decomposition of a question",
    "openai": "any OpenAI-compatible server",
    "transformers": "a model in this process, on CPU or CUDA",
    "vllm": "a model in this process, in vLLM on CUDA",
}


def make_engine(
    name: str,
    agent: Writer,
    *,
    model: str | None = None,
    base_url: str | None = None,
    api: Literal["chat", "completions"] = "chat",
    device: str = "auto",
    dtype: str = "auto",
    max_batch: int = 64,
    concurrency: int = 32,
) -> Engine:
    """The engine of that name. Heavy libraries are imported only for the engine that needs them."""
    if name == "gold":
        if model or base_url:
            raise StepladderError("the gold engine is no model: leave out --model and --base-url, or choose an engine")
        return OracleEngine(agent)
    if name == "openai":
        from stepladder.engines.openai import OpenAIEngine

        if model is None:
            raise StepladderError("the openai engine needs the name of a model that the server knows: --model NAME")
        return OpenAIEngine(model, base_url=base_url, api=api, concurrency=concurrency)
    if name == "transformers":
        from stepladder.engines.transformers.engine import TransformersEngine

        return TransformersEngine(model or "nano", device=device, dtype=dtype, max_batch=max_batch)
    if name == "vllm":
        from stepladder.engines.vllm import VLLMEngine

        if model is None:
            raise StepladderError("the vllm engine needs a model: --model FOLDER or a hub name")
        return VLLMEngine(model, dtype=dtype, max_batch=max_batch)
    raise unknown_name("engine", name, ENGINES)
