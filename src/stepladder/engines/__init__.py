"""Engines generate text: transformers and vLLM in process, any OpenAI-compatible server, the oracle, a script."""

from stepladder.engines.base import Engine, EngineOptions, check_engine
from stepladder.engines.registry import ENGINES, make_engine

__all__ = ["ENGINES", "Engine", "EngineOptions", "check_engine", "make_engine"]
