"""A registry: maps names to objects that are imported on first use, with a one-line description of each.

In: a name, a target ("package.module:attribute" or the object itself) and a description. Out: the object of a name, or
an `UnknownName` error that suggests the nearest name.
"""

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Generic, TypeVar, cast

from stepladder.core.errors import StepladderError, unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects (never strings) by name, in the order of registration. Listing names and descriptions imports nothing.

    >>> shapes = Registry("shape", {"dict": ("collections:OrderedDict", "a mapping with an order")})
    >>> shapes.register("list", list, "a sequence")
    >>> shapes.get("dict")
    <class 'collections.OrderedDict'>
    >>> list(shapes), shapes.description("list"), "set" in shapes
    (['dict', 'list'], 'a sequence', False)
    >>> shapes.get("lists")
    Traceback (most recent call last):
    stepladder.core.errors.UnknownName: unknown shape 'lists'. Did you mean 'list'? Known: dict, list
    """

    def __init__(self, what: str, entries: Mapping[str, tuple[str | T, str]] | None = None):
        #: What an entry is, for error messages: "agent", "kind of index".
        self.what = what
        self._targets: dict[str, str | T] = {}
        self._descriptions: dict[str, str] = {}
        for name, (target, description) in (entries or {}).items():
            self.register(name, target, description)

    def register(self, name: str, target: str | T, description: str) -> None:
        """Add an entry. `target` is the object, or "module:attribute", imported by the first `get`."""
        if name in self:
            raise StepladderError(f"{self.what} '{name}' is already registered: {self._descriptions[name]}")
        self._targets[name] = target
        self._descriptions[name] = description

    def get(self, name: str) -> T:
        """The object of that name; raises `UnknownName` if there is none."""
        if name not in self:
            raise unknown_name(self.what, name, self)
        target = self._targets[name]
        if isinstance(target, str):
            target = self._targets[name] = cast(T, resolve_name(target))
        return target

    __getitem__ = get

    def checked(self, name: str) -> str:
        """The name, if it is registered. Raises `ValueError`, which pydantic reports with the name of the setting."""
        if name not in self:
            raise ValueError(str(unknown_name(self.what, name, self)))
        return name

    def description(self, name: str) -> str:
        return self._descriptions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)

    def __contains__(self, name: object) -> bool:
        return name in self._targets
