"""Engines by name. In: a name and options. Out: the engine.

To add an engine, write one module with a function `build(options: EngineOptions) -> Engine` and add a line to
`ENGINES`. Modules are imported on first use, so heavy libraries are loaded only for the engine that needs them.
"""

from collections.abc import Callable
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.registry import Registry
from stepladder.engines.base import Engine, EngineOptions

#: The engines that can be named on the command line and in recipes.
ENGINES: Registry[Callable[[EngineOptions], Engine]] = Registry(
    "engine",
    {
        "oracle": ("stepladder.oracle.engine:build", "replays gold decompositions: an upper bound"),
        "openai": ("stepladder.engines.openai.openai_engine:build", "any OpenAI-compatible server"),
        "transformers": ("stepladder.engines.transformers.engine:build", "a model in this process, on CPU or CUDA"),
        "auto": ("stepladder.engines.auto:build", "transformers or vllm, whichever was measured to be faster"),
        "vllm": ("stepladder.engines.vllm.engine:build", "a model in this process, in vLLM on CUDA"),
    },
)


def make_engine(name: str, agent: Any, **options: Any) -> Engine:
    """Build an engine by name; `options` are the fields of `EngineOptions`."""
    if name == "gold":
        raise StepladderError("the engine 'gold' was renamed to 'oracle'")
    return ENGINES.get(name)(EngineOptions(agent, **options))
