"""Atlas, as one checksum."""

from hashlib import sha256

from stepladder.core.io.records import dumps
from stepladder.data.atlas import Atlas


def fingerprint(atlas: Atlas) -> str:
    lines = [dumps(passage) for passage in atlas.passages]
    lines += [dumps(question) for split in atlas.questions.values() for question in split]
    lines.append(repr(atlas.chains))
    return sha256("\n".join(lines).encode()).hexdigest()
