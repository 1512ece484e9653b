"""In place of the library `ray`: one node, and actors and tasks that are called at once, in this process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


class RayError(Exception):
    """Base of Ray's errors."""


class RayTaskError(RayError):
    """A task raised `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class GetTimeoutError(RayError, TimeoutError):
    """No reply in time."""


class Reference:
    """A reply: a value, an error, or none at all."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Exceptions:
    RayError, RayTaskError, GetTimeoutError = RayError, RayTaskError, GetTimeoutError


@dataclass
class FakeRay:
    """`replies`: by the name of a method or task, what it returns in place of its result; `None` is never done."""

    nodes_found: list[dict[str, Any]] = field(default_factory=list)
    replies: dict[str, Any] = field(default_factory=dict)
    killed: list[Any] = field(default_factory=list)
    exceptions = _Exceptions

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return self.nodes_found

    def remote(self, what: Any) -> "_Remote":
        return _Remote(self, what)

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        if reference.value is None:
            raise GetTimeoutError("no reply")
        if isinstance(reference.value, Exception):
            raise reference.value
        return None if reference.value == "none" else reference.value

    def wait(self, references: Sequence[Reference], **limits: Any) -> tuple[list[Reference], list[Reference]]:
        done = [each for each in references if each.value is not None]
        return done, [each for each in references if each.value is None]

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def call(self, function: Callable[..., Any], *values: Any) -> Reference:
        if function.__name__ in self.replies:
            return Reference(self.replies[function.__name__])
        found = function(*values)
        return Reference("none" if found is None else found)


class _Remote:
    """A remote class or function."""

    def __init__(self, ray: FakeRay, what: Any) -> None:
        self.ray, self.what = ray, what

    def options(self, **given: Any) -> "_Remote":
        return self

    def remote(self, *values: Any, **named: Any) -> Any:
        if isinstance(self.what, type):
            return _Actor(self.ray, self.what())
        return self.ray.call(self.what, *values, **named)


class _Actor:
    def __init__(self, ray: FakeRay, instance: Any) -> None:
        self._ray, self._instance = ray, instance

    def __getattr__(self, name: str) -> _Remote:
        return _Remote(self._ray, getattr(self._instance, name))
