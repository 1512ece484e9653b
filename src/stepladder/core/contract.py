"""How the public contract tests (`check_engine`, `check_agent`, `check_retriever`) say that something is broken."""


class ContractViolation(AssertionError):
    """What an implementation does is not what the others rely on."""


def expect(condition: bool, message: str) -> None:
    """Raise `ContractViolation` with the message unless the condition holds."""
    if not condition:
        raise ContractViolation(message)
