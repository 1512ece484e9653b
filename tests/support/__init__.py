"""What several tests share: data, builders, servers of their own. Test modules do not import each other."""

from pathlib import Path

#: The repository.
ROOT = Path(__file__).parents[2]
