"""Agents: how a question and its steps are rendered for a model, and how the model's text is parsed.

Each built-in agent is one module of this package: every class in it that sets `name` is registered. Adding an agent
means adding a file here.
"""

from functools import cache
from importlib import import_module
from inspect import isclass
from pathlib import Path
from pkgutil import iter_modules

from stepladder.agents.agent_file import Check, load_agent
from stepladder.agents.agent_trust import is_agent_file, name_agent
from stepladder.agents.base import Agent
from stepladder.agents.formats.custom_texts import with_texts
from stepladder.agents.formats.play import Format, Play
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.core.registry import Registry

__all__ = ["AGENTS", "Agent", "Format", "Play", "agent_named", "is_agent_file", "make_agent", "name_agent"]

#: The built-in agents by name. The package is scanned on first access.
AGENTS: Registry[type[Agent]]
#: The agents of files that this process has loaded, by name.
_FROM_FILES: dict[str, Agent] = {}


def make_agent(
    name: str,
    check: Check | None = None,
    *,
    play: Play | None = None,
    prompt: Path | None = None,
    hint: Path | None = None,
) -> Agent:
    """Build an agent by name, or from a Python file (`my_agent.py`).

    `play` is how its text is read, by default strictly: `Play.of("lenient")` for a model that was not trained on the
    format. `prompt` and `hint` are files that replace its texts (`formats/custom_texts.py`).

    Building an agent from a file executes that file, which the user must have named (`name_agent`) or trusted. `check`
    (`stepladder.oracle.agent_check.check_agent`) then tests it; built-in agents are not tested.
    """
    if is_agent_file(name):
        agent = load_agent(expand_path(name), check)
        _FROM_FILES[agent.name] = agent
    else:
        agent = _scan().get(name)()
    agent = agent if play is None else agent.playing(play)
    return agent if prompt is None and hint is None else with_texts(agent, prompt, hint)


def agent_named(name: str) -> Agent:
    """The agent that a transcript names: a built-in one, or one of a file that this process has loaded."""
    found = _FROM_FILES.get(name)
    if found is None and name not in _scan():
        raise StepladderError(
            f"the agent '{name}' of a transcript is not known here: load its file first, with make_agent(FILE)"
        )
    return found or _scan().get(name)()


@cache
def _scan() -> Registry[type[Agent]]:
    registry: Registry[type[Agent]] = Registry("agent")
    for module in iter_modules(__path__, f"{__name__}."):
        for each in vars(import_module(module.name)).values():
            if isclass(each) and issubclass(each, Agent) and each.__module__ == module.name and "name" in vars(each):
                registry.register(each.name, each, each.summary)
    return registry


def __getattr__(name: str) -> Registry[type[Agent]]:
    if name == "AGENTS":
        return _scan()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
