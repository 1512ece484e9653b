"""Seeds derived from what is computed, independent of order and batching."""

from hashlib import blake2b

_PLAIN = frozenset({str, int})


def seed_of(*parts: str | int) -> int:
    """A 63-bit seed from the parts that identify a piece of work (run seed, question id, sample, step ...).

    Equal parts give equal seeds on every machine; changing any part gives an unrelated seed.

    >>> seed_of(0, "q1", 3) == seed_of(0, "q1", 3), seed_of(0, "q1", 3) == seed_of(0, "q13")
    (True, False)
    """
    plain = parts
    if not _PLAIN.issuperset(map(type, parts)):  # such as an enum, or an integer of numpy
        plain = tuple(str(part) if isinstance(part, str) else int(part) for part in parts)
    digest = blake2b(repr(plain).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
