"""The assertion behind the public contract tests (`check_engine`, `check_agent`, `check_retriever`)."""


class ContractViolation(AssertionError):
    """An implementation breaks its interface's contract."""


def expect(condition: bool, message: str) -> None:
    """Raise `ContractViolation` with the message unless the condition holds."""
    if not condition:
        raise ContractViolation(message)
