"""Work spread over the processes of a Ray cluster: one machine or many."""

from stepladder.driver.cluster.config import RayConfig

__all__ = ["RayConfig"]
