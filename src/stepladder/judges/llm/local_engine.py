"""A model on this machine as judge: costs time and no money, and its replies are kept like those of a paid one.

In: a model folder, a folder for the replies. Out: an engine for the driver.
"""

from pathlib import Path

from stepladder.judges.llm.spend.paid import REPLIES, Spend
from stepladder.judges.llm.spend.response_cache import CachedEngine, ResponseCache


class LocalEngine(CachedEngine):
    """Remembers replies, and knows what they took."""

    def spend(self) -> Spend:
        """What the folder's replies took, over all runs in it. They are free."""
        calls, usage = self.replies.total()
        return Spend(calls, 0, usage.read, usage.written, 0.0, self.cached)


def open_local_judge(model: Path, folder: Path, batch: int, device: str = "auto") -> LocalEngine:
    """An engine around the model in a folder, asked `batch` questions at once."""
    from stepladder.engines.transformers.engine import TransformersEngine  # brings torch

    return LocalEngine(TransformersEngine(str(model), device=device, max_batch=batch), folder / REPLIES, str(model))


def local_replies_in(folder: Path, model: str) -> ResponseCache:
    """The replies that a folder holds of a model of this machine."""
    return ResponseCache(folder / REPLIES, model)
