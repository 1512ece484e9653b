"""Memory limits of index builds: parsing and formatting."""

from pydantic import ByteSize, TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError

#: Default memory limit of an index build, in bytes.
DEFAULT_MEMORY = 4 * 10**9


def parse_bytes(text: str) -> int:
    """Parse an amount of memory.

    >>> parse_bytes("4GB"), parse_bytes("500 M")
    (4000000000, 500000000)
    """
    try:
        found = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        found = 0
    if not found:
        raise StepladderError(f"'{text}' is not an amount of memory; write it as 500MB or 4GB")
    return found


def format_bytes(count: float) -> str:
    """Format an amount of memory.

    >>> format_bytes(3_500_000_000)
    '3.5 GB'
    """
    return ByteSize(count).human_readable(decimal=True, separator=" ")
