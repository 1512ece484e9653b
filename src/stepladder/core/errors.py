"""Errors for the user: what was found, what was expected, what to do next."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from stepladder.core.io.masking import masked


class StepladderError(Exception):
    """An error in the input or the setup. The command line prints its message without a traceback.

    Secrets in the message are masked: it may be printed, logged, stored and sent to clients.
    """

    def __init__(self, *values: object) -> None:
        super().__init__(*masked(values))


class UnknownName(StepladderError):
    """A name that is not registered."""


class BackendError(StepladderError):
    """One request to an engine, retriever or scorer failed. Its episode is recorded as failed; the run continues."""


class BackendDown(StepladderError):
    """An engine or a retriever cannot work at all (wrong key, unknown model, no server). The run stops."""

    #: Set by `Driver.run`: the outcomes of its jobs so far.
    outcomes: Sequence[Any] = ()


def unknown_name(what: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for an unknown name, with the nearest valid one.

    >>> print(unknown_name("agent", "proragg", ["prorag", "rag", "cot"]))
    unknown agent 'proragg'. Did you mean 'prorag'? Known: cot, prorag, rag
    """
    names = sorted(known)
    return UnknownName(f"unknown {what} '{name}'.{nearest(name, names)} Known: {', '.join(names)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: " Did you mean 'x'?" with the nearest known name, or nothing if none is near."""
    near = get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""


class ContractViolation(AssertionError):
    """An implementation breaks its interface's contract (`check_engine`, `check_agent`, `check_retriever`, ...)."""


def expect(condition: bool, message: str) -> None:
    """Raise `ContractViolation` with the message unless the condition holds."""
    if not condition:
        raise ContractViolation(message)
