"""Settings of a Ray cluster. Nothing here imports Ray, which is an optional dependency."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from stepladder.core.config import Config

_ADDRESS = re.compile(r"auto|[\w.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


def _known_form(address: str) -> str:
    if not _ADDRESS.fullmatch(address):
        raise ValueError(
            f"expected auto or HOST:PORT (the address that `ray start --head` prints), found {address!r}. This machine "
            "must be part of the cluster: `ray start --address=HOST:PORT`"
        )
    return address


class RayConfig(Config):
    """Where episodes are generated: on workers that each hold an engine and a retriever."""

    #: HOST:PORT of a running cluster that this machine is part of, or auto, to find it; null starts a cluster on this
    #: machine and ends it with the run.
    address: Annotated[str, AfterValidator(_known_form)] | None = None
    #: Worker processes; null is as many as the GPUs allow, or without `gpus_per_worker` one per CPU core.
    workers: int | None = Field(default=None, ge=1)
    #: GPUs that each worker has for itself; a fraction shares a GPU, 0 computes on the CPU.
    gpus_per_worker: float = Field(default=0, ge=0)
