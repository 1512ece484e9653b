"""Atlas: generated once per process, and as one checksum."""

from functools import cache
from hashlib import sha256

from stepladder.core.io.records import dumps
from stepladder.data.atlas import Atlas, generate_atlas


@cache
def cached_atlas(size: str = "small", seed: int = 0) -> Atlas:
    """Tests share it, and change nothing in it."""
    return generate_atlas(size, seed)


def fingerprint(atlas: Atlas) -> str:
    lines = [dumps(passage) for passage in atlas.passages]
    lines += [dumps(question) for split in atlas.questions.values() for question in split]
    lines.append(repr(atlas.chains))
    return sha256("\n".join(lines).encode()).hexdigest()
