"""An agent of one's own, from a Python file.

In: the path of a file with one class that implements `Agent`. Out: the agent, after `check_agent` has found nothing
wrong with it. The file is run, as any program of one's own is: it is named by the user, and never by a model.
"""

import importlib.util
import inspect
import sys
import traceback
from hashlib import blake2b
from pathlib import Path

from stepladder.agents.base import Agent, check_agent
from stepladder.core.contract import ContractViolation
from stepladder.core.errors import StepladderError

_checked: dict[str, Agent] = {}


def is_agent_file(name: str) -> bool:
    """Whether a name is that of a Python file rather than of an agent that comes along."""
    return name.endswith(".py")


def load_agent(path: Path) -> Agent:
    """The agent in a file. One that was loaded before is not run again unless the file has changed."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise StepladderError(f"the agent file {path.absolute()} cannot be read: {error.strerror or error}") from error
    module_name = f"stepladder_own_agent_{blake2b(str(path.absolute()).encode() + source, digest_size=8).hexdigest()}"
    if module_name not in _checked:
        _checked[module_name] = _checked_agent(path, module_name)
    return _checked[module_name]


def _checked_agent(path: Path, module_name: str) -> Agent:
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise StepladderError(f"the agent file {path} does not run: {_said(error, path)}") from error
    found = {
        each: None
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, Agent) and each.__module__ == module_name
    }
    whole = [each for each in found if not inspect.isabstract(each)]
    if len(whole) != 1:
        why = ""
        if whole:
            why = f": {', '.join(each.__name__ for each in whole)}"
        elif found:
            why = f" ({', '.join(sorted(next(iter(found)).__abstractmethods__))} missing)"
        raise StepladderError(f"{path} must hold one class that implements Agent; it holds {len(whole)}{why}")
    try:
        agent = whole[0]()
        check_agent(agent)
    except ContractViolation as error:
        raise StepladderError(f"the agent in {path} breaks the contract of agents: {error}") from error
    except Exception as error:
        raise StepladderError(f"the agent in {path} fails when it is tried: {_said(error, path)}") from error
    return agent


def _said(error: BaseException, path: Path) -> str:
    """What went wrong, and in which line of the file."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"
