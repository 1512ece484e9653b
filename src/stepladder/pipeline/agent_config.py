"""Settings that the user gives: of an agent outside of a recipe (`ask`, `eval`, `load_policy` ...), or of a recipe.

In: a run or a model, and the settings that the user gave. Out: `SharedConfig`. A run supplies all settings, an adapter
its agent; what the user gave takes precedence. An agent file that the user gave may be executed (`name_agent`); one
that only a recipe file, a run or an adapter names may not.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepladder.agents import is_agent_file, name_agent
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.core.io.known_servers import name_servers, servers_from_files
from stepladder.models.adapters import agent_of
from stepladder.pipeline.fingerprint import agent_content
from stepladder.pipeline.recipe import Recipe, find_recipe, load_recipe, with_value
from stepladder.pipeline.resources import SharedConfig
from stepladder.pipeline.run_folder import RunFolder, is_run

#: Settings by the names that users give them, and the recipe keys that they set.
KEYS = {
    "agent": "agent",
    "format": "prompting.format",
    "max_format_errors": "prompting.max_format_errors",
    "force_answer": "prompting.force_answer",
    "max_searches": "prompting.max_searches",
    "prime": "prompting.prime",
    "prompt": "prompting.prompt",
    "hint": "prompting.hint",
    "chat_options": "prompting.chat_options",
    "data": "data.name",
    "world_seed": "data.world_seed",
    "index": "data.index",
    "topk": "search.k",
    "max_steps": "episode.max_steps",
    "max_tokens": "episode.max_tokens",
    "engine": "engine",
    "base_url": "server.base_url",
    "api": "server.api",
    "concurrency": "server.concurrency",
    "timeout": "server.timeout",
    "grammar": "server.grammar",
    "policy_budget": "server.budget",
    "prices": "server.prices",
    "device": "device",
    "dtype": "dtype",
    "batch_size": "batch_size",
    "memory": "memory",
    "ray": "ray",
    "max_model_len": "vllm.max_model_len",
    "tensor_parallel_size": "vllm.tensor_parallel_size",
    "gpu_memory_utilization": "vllm.gpu_memory_utilization",
}


def agent_config(run: RunFolder | None, model: str | None, given: Mapping[str, Any]) -> SharedConfig:
    """The settings of a run, or else of an adapter, with those that were given. `given`: by the names of `KEYS`."""
    plain: object = {}
    if run is not None:
        plain = run.recipe().shared.model_dump(mode="json")
        if given.get("agent") is None:
            _check_agent_unchanged(run)
    elif model is not None and given.get("agent") is None and (agent := agent_of(expand_path(model))) is not None:
        if is_agent_file(agent):  # a downloaded adapter must not run code
            raise StepladderError(f"the adapter {model} names the agent file {agent}: --agent {agent} runs its code")
        plain = {"agent": agent}
    return with_settings(plain, given)


def with_settings(plain: object, given: Mapping[str, Any]) -> SharedConfig:
    """Settings as plain data, with those that were given. `trust_agent` among them: remember the agent file."""
    name_agent(given.get("agent"), trust=bool(given.get("trust_agent")))
    name_servers(dict(given))
    if given.get("data") is not None:  # replaces the question files of the run
        for key in ("train", "dev", "test"):
            plain = with_value(plain, ["data", key], None)
        for key in ("holdout", "warmup"):
            plain = with_value(plain, ["data", key], 0)
        plain = with_value(plain, ["data", "train_questions"], None)
    if given.get("engine") == "openai":  # OpenAI's own server, unless another is given
        plain = with_value(plain, ["server"], plain.get("server") or {} if isinstance(plain, Mapping) else {})
    for name, key in KEYS.items():
        if given.get(name) is not None:
            value = given[name]
            plain = with_value(plain, key.split("."), str(value) if isinstance(value, os.PathLike) else value)
    return SharedConfig.read(plain)


def users_recipe(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str] = (), *, trust_agent: bool = False
) -> Recipe:
    """`load_recipe` for a user, who names the agent in the overrides or in a recipe as plain data, not in a file."""
    overrides = tuple(overrides)
    recipe = load_recipe(source, overrides)
    name_servers([*overrides, source])
    if isinstance(source, str | Path) and is_run(find_recipe(source).parent):  # maybe somebody else's
        servers_from_files(recipe.plain())
    keys = [change.partition("=")[0].strip() for change in overrides]
    named = "agent" in (*keys, *(source if isinstance(source, Mapping) else ()))
    name_agent(recipe.shared.agent if named else None, trust=trust_agent)
    return recipe


def _check_agent_unchanged(run: RunFolder) -> None:
    """Raise if the agent file has changed since the run's stages used it."""
    agent = run.recipe().shared.agent
    records = [record for name in run.stage_names() if (record := run.known(name)) is not None]
    if is_agent_file(agent) and any(record.ingredients.get("agent") != agent_content(agent) for record in records):
        raise StepladderError(
            f"the agent file {agent} has changed since the run {run.path} used it: restore it, or add --agent {agent} "
            "to use it as it is now"
        )
