"""One driver runs every algorithm: batching, concurrency, caching, progress and cancellation."""

from stepladder.driver.driver import Counts, Driver, Failure, Interrupted, Outcome, Watcher

__all__ = ["Counts", "Driver", "Failure", "Interrupted", "Outcome", "Watcher"]
