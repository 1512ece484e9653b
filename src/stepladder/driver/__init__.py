"""One driver runs every algorithm: batching, concurrency, caching, progress and cancellation."""

from stepladder.driver.driver import Driver
from stepladder.driver.outcomes import Counts, Failure, Interrupted, Outcome, OutcomeCallback

__all__ = ["Counts", "Driver", "Failure", "Interrupted", "Outcome", "OutcomeCallback"]
