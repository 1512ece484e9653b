"""Load a custom agent from a Python file.

In: the path of a file with exactly one class that implements `Agent`. Out: an instance of it, tested if a check is
given. Loading executes the file, so the user must have named or trusted it (agent_trust.py).
"""

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from stepladder.agents.agent_trust import check_may_execute, read_agent_file
from stepladder.agents.base import Agent
from stepladder.core.errors import ContractViolation, StepladderError

Check = Callable[[Agent], None]


def load_agent(path: Path, check: Check | None) -> Agent:
    """Execute an agent file and test its agent with `check`. Cached by content: an unchanged file is executed once."""
    source = read_agent_file(path)
    check_may_execute(path, source)
    return _checked_agent(path, source, check)


@cache
def _checked_agent(path: Path, source: bytes, check: Check | None) -> Agent:
    module_name = f"stepladder_own_agent_{blake2b(os.fsencode(path.absolute()) + source, digest_size=8).hexdigest()}"
    agent_class = _agent_class(path, _execute(path, source, module_name))
    try:
        agent = agent_class()
        if check is not None:
            check(agent)
    except ContractViolation as error:
        raise StepladderError(f"the agent in {path} violates the agent contract: {error}") from error
    except Exception as error:
        raise StepladderError(f"the agent in {path} failed its check: {_describe(error, path)}") from error
    return agent


class _BytesLoader(SourceFileLoader):
    """Executes the source that was checked: the file may have changed since, and cached bytecode is not its content."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self.source = source

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the interface of a loader
        """The compiled source."""
        return self.source_to_code(self.source, self.path)


def _execute(path: Path, source: bytes, module_name: str) -> ModuleType:
    loader = _BytesLoader(module_name, path, source)
    spec = spec_from_file_location(module_name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look up their module here
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise StepladderError(f"the agent file {path} cannot be executed: {_describe(error, path)}") from error
    return module


def _agent_class(path: Path, module: ModuleType) -> type[Agent]:
    """The only class in the module that implements `Agent`."""
    classes = {
        each: None
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, Agent) and each.__module__ == module.__name__
    }
    concrete = [each for each in classes if not inspect.isabstract(each)]
    if len(concrete) == 1:
        return concrete[0]
    details = ""
    if concrete:
        details = f": {', '.join(each.__name__ for each in concrete)}"
    elif classes:
        details = f" ({', '.join(sorted(next(iter(classes)).__abstractmethods__))} missing)"
    raise StepladderError(f"{path} must define one class that implements Agent; found {len(concrete)}{details}")


def _describe(error: BaseException, path: Path) -> str:
    """The error and the line of the agent file that raised it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{line}"
