"""The rates of a device: measured on it, or scaled from a measured one by the datasheets.

In: `constants.yaml`, and `plan-rates.yaml` in the user's cache, which `stepladder plan --measure` writes. Out: `Rates`,
with their source and date. What is scaled is marked: achieved FLOP/s by the ratio of peak FLOP/s, memory traffic by the
device's own bandwidth; what the host does per layer and row stays.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from stepladder.core.errors import StepladderError
from stepladder.models.resolve import cache_folder
from stepladder.pipeline.plan.gpu_cluster import CPU, Cluster

#: The measured GPU that others are scaled from.
_REFERENCE = "H200-141G"
#: FLOP/s by hidden size.
Points = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class EngineRates:
    """How fast an engine generates."""

    #: Per layer and decoding step, whatever the number of rows; and per new token.
    layer_seconds: float
    row_seconds: float
    #: Achieved when many tokens are read at once, by hidden size.
    flops: Points
    #: Achieved when one token per row is decoded; None: as above.
    decode_flops: Points | None = None
    #: Whether the work per row runs beside the GPU's.
    overlap: bool = False
    #: Per decoding step, whatever the number of layers.
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device achieves."""

    device: str
    source: str
    date: str
    #: The measured device that these figures are scaled from; None if they were measured.
    scaled_from: str | None
    #: Bytes per second that decoding reads.
    bandwidth: float
    generation: Mapping[str, EngineRates]
    #: FLOP/s of a forward and a backward pass, by hidden size; the least seconds per layer; and per update beside them.
    training: Points
    pass_layer_seconds: float
    update_seconds: float
    #: To start an engine, and how much longer the first start on a new machine takes; to generate again after its cache
    #: was dropped; and once per run: imports, data, index.
    start_seconds: Mapping[str, float]
    first_start_seconds: Mapping[str, float]
    warm_seconds: float
    process_seconds: float
    #: Memory of a process beside its tensors; and what allocations take, relative to the tensors.
    process_bytes: float
    memory_factor: float
    #: Reading weights, and writing them.
    disk_bytes_per_second: float
    write_bytes_per_second: float
    search_seconds: float
    #: What a request costs beside the engine: rendering, reading, the driver.
    request_seconds: float

    def engine(self, name: str) -> EngineRates:
        """The rates of an engine; of one that was not measured here, those of `transformers`."""
        return self.generation.get(name, self.generation["transformers"])

    def label(self) -> str:
        """Where the figures come from, in one line."""
        scaled = f", scaled from {self.scaled_from} by the datasheets (not measured)" if self.scaled_from else ""
        return f"{self.device}: {self.source}, {self.date}{scaled}"


def interpolate(points: Points, hidden: int) -> float:
    """A rate at a hidden size: between two measured ones by powers, beyond them that of the nearest.

    >>> interpolate({100: 1.0, 400: 4.0}, 200), interpolate({100: 1.0, 400: 4.0}, 1600)
    (2.0, 4.0)
    """
    known = sorted(points.items())
    if hidden <= known[0][0]:
        return known[0][1]
    for (left, low), (right, high) in pairwise(known):
        if hidden <= right:
            share = math.log(hidden / left) / math.log(right / left)
            return float(round(low * (high / low) ** share, 12))
    return known[-1][1]


@cache
def constants() -> dict[str, Any]:
    """The contents of `constants.yaml`."""
    text = Path(__file__).with_name("constants.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def measured_file() -> Path:
    """Where `--measure` stores the rates of this machine."""
    return cache_folder() / "plan-rates.yaml"


def stored_rates() -> dict[str, Any]:
    """The rates that `--measure` stored, by device."""
    path = measured_file()
    if not path.is_file():
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        for entry in found.values():
            _measured(_read(CPU, constants()["rates"][CPU]), entry)
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise StepladderError(
            f"{path} is damaged ({type(error).__name__}: {error}): delete it, and measure again with --measure"
        ) from error
    return dict(found)


def rates_of(cluster: Cluster) -> Rates:
    """The rates of a device: those of `constants.yaml`, or scaled ones, with what was measured here instead."""
    stored = constants()["rates"]
    if cluster.device in stored:
        found = _read(cluster.device, stored[cluster.device])
    else:
        devices = constants()["devices"]
        own, reference = devices[cluster.device], devices[_REFERENCE]
        factor = own["flops"] / reference["flops"]
        found = _scaled(_read(_REFERENCE, stored[_REFERENCE]), cluster.device, own, factor)
    measured = stored_rates().get(cluster.device)
    return found if measured is None else _measured(found, measured)


def _measured(rates: Rates, entry: Mapping[str, Any]) -> Rates:
    """Rates with those that `--measure` stored."""
    return replace(
        rates,
        source=str(entry["source"]),
        date=str(entry["date"]),
        scaled_from=None,
        bandwidth=float(entry["bandwidth"]),
        generation={**rates.generation, **_engines(entry)},
        training=_points(entry["training"]["flops"]) or {},
        update_seconds=float(entry["training"]["update_seconds"]),
        request_seconds=float(entry.get("request_seconds", rates.request_seconds)),
    )


def _scaled(rates: Rates, device: str, own: Mapping[str, float], factor: float) -> Rates:
    def scale(points: Points) -> Points:
        return {hidden: value * factor for hidden, value in points.items()}

    engines = {
        name: replace(each, flops=scale(each.flops), decode_flops=None) for name, each in rates.generation.items()
    }
    return replace(
        rates,
        device=device,
        scaled_from=rates.device,
        bandwidth=float(own["bandwidth"]),
        generation=engines,
        training=scale(rates.training),
    )


def _points(found: Mapping[Any, Any] | None) -> Points | None:
    return None if found is None else {int(hidden): float(value) for hidden, value in found.items()}


def _engines(entry: Mapping[str, Any]) -> dict[str, EngineRates]:
    return {
        name: EngineRates(
            float(each["layer_seconds"]),
            float(each["row_seconds"]),
            _points(each["flops"]) or {},
            _points(each.get("decode_flops")),
            bool(each.get("overlap", False)),
            float(each.get("step_seconds", 0.0)),
        )
        for name, each in entry["generation"].items()
    }


def _read(device: str, entry: Mapping[str, Any]) -> Rates:
    return Rates(
        device,
        str(entry["source"]),
        str(entry["date"]),
        None,
        float(entry["bandwidth"]),
        _engines(entry),
        _points(entry["training"]["flops"]) or {},
        float(entry["training"].get("pass_layer_seconds", 0.0)),
        float(entry["training"]["update_seconds"]),
        {name: float(value) for name, value in entry["start_seconds"].items()},
        {name: float(value) for name, value in entry.get("first_start_seconds", {}).items()},
        float(entry["warm_seconds"]),
        float(entry["process_seconds"]),
        float(entry["process_bytes"]),
        float(entry["memory_factor"]),
        float(entry["disk_bytes_per_second"]),
        float(entry["write_bytes_per_second"]),
        float(entry["search_seconds"]),
        float(entry["request_seconds"]),
    )
