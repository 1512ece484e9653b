"""Passages of an index, encoded by the workers of a Ray cluster.

In: the settings of a cluster. Out: a context (`encoding_on_workers`) in which index builds encode on the workers. The
groups of passages are the same as in one process, and so are the vectors.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage
from stepladder.driver.cluster import RayConfig
from stepladder.driver.cluster.pool import Lost, WorkerPool
from stepladder.retrieval.index.dense_config import EncoderConfig

if TYPE_CHECKING:
    from stepladder.retrieval.index.encoder import Encoder, Vectors

_TARGET = "stepladder.pipeline.workers.encoding:PassageEncoder"


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """The encoder that a worker opens."""

    settings: dict[str, Any]
    device: str
    dtype: str
    batch: int


class PassageEncoder:
    """A worker: encodes groups of passages."""

    def __init__(self, plan: EncodePlan) -> None:
        from stepladder.retrieval.index.encoder import Encoder

        settings = EncoderConfig.read(plan.settings)
        self.encoder = Encoder(settings, device=plan.device, dtype=plan.dtype, batch=plan.batch)

    def work(self, items: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[int, Any]]:
        """The vectors of each group."""
        for item in items:
            if item is not None:
                yield item[0], self.encoder.passages(item[1])

    def report(self) -> None:
        """Nothing to report."""


@contextmanager
def encoding_on_workers(config: RayConfig | None, paths: Sequence[str] = ()) -> Iterator[None]:
    """Index builds encode on the workers of this cluster; without one, in this process. `paths`: what they need."""
    if config is None:
        yield
        return
    from stepladder.driver.cluster.ray_cluster import RayCluster
    from stepladder.retrieval.index.vectors import encoding_with

    with ExitStack() as stack:
        cluster = stack.enter_context(closing(RayCluster(config, paths)))
        pools: list[WorkerPool] = []

        def encode(encoder: "Encoder", groups: Sequence[Sequence[Passage]]) -> Iterable[tuple[int, "Vectors"]]:
            if not pools:  # one encoder per build
                settings = encoder.settings.model_dump(mode="json", include=set(EncoderConfig.model_fields))
                dtype = "bf16" if encoder.bf16 else "fp32"
                plan = EncodePlan(settings, encoder.device.type, dtype, encoder.batch)
                pools.append(stack.enter_context(closing(WorkerPool(cluster.workers(_TARGET, plan)))))
            for index, found in pools[0].map(groups, 2):
                if isinstance(found, Lost):
                    raise StepladderError(f"{len(groups[index])} passages could not be encoded: {found.reason}")
                yield index, found

        with encoding_with(encode):
            yield
