"""What was found out about the reward model: how well it tells good steps from faulty ones.

In: a `Run`. Out: one `Examination` a `prm-eval` stage, with its two pictures. They go into the page as images, so that
their style sheets touch nothing else and still follow light and dark.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepladder.evaluate.statistics import Interval, interval_text
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stages.prm_eval import EXAMINATION
from stepladder.reporting.report.run_data import Run
from stepladder.reporting.stage_summaries import stage_summary

_PICTURES = {
    "chains.svg": "How scores are spread over gold chains and over chains that were spoilt on purpose",
    "calibration.svg": "What scores promise against the share of steps that is good",
}
#: Lines of what a stage tells that are tables here.
_TABLES = ("by kind", "faults noticed at 0")


@dataclass(frozen=True, slots=True)
class Kind:
    """How well the steps of a kind are told apart."""

    name: str
    auc: str
    steps: int
    faulty: int


@dataclass(frozen=True, slots=True)
class Noticed:
    """How many steps with a fault are scored below 0."""

    fault: str
    share: str
    steps: int


@dataclass(frozen=True, slots=True)
class Picture:
    """An image in the page itself."""

    alt: str
    source: str


@dataclass(frozen=True, slots=True)
class Examination:
    """What a stage found out."""

    stage: str
    headline: str
    lines: Mapping[str, str]
    kinds: tuple[Kind, ...]
    faults: tuple[Noticed, ...]
    pictures: tuple[Picture, ...]


def examinations_of(run: Run) -> tuple[Examination, ...]:
    """Every examination of a reward model."""
    return tuple(_examination(run, stage) for stage in run.report.stages if stage.kind == "prm-eval")


def _examination(run: Run, stage: StageRecord) -> Examination:
    numbers = stage.summary
    headline, lines = stage_summary(stage) or ("", {})
    folder = run.folder / stage.name / EXAMINATION
    return Examination(
        stage.name,
        headline,
        {name: line for name, line in lines.items() if line and name not in _TABLES},
        tuple(
            Kind(name.replace("_", "-"), _auc(each["auc"]), each["steps"], each["faulty"])
            for name, each in numbers.get("by_kind", {}).items()
        ),
        tuple(
            Noticed(fault, f"{each['below_0']:.0%}", each["steps"]) for fault, each in numbers.get("faults", {}).items()
        ),
        tuple(
            Picture(alt, "data:image/svg+xml;base64," + b64encode((folder / name).read_bytes()).decode())
            for name, alt in _PICTURES.items()
            if (folder / name).is_file()
        ),
    )


def _auc(found: dict[str, Any] | None) -> str:
    """An AUC with its interval; where all steps of a kind are good or all are faulty, there is none."""
    return interval_text(Interval(**found), 2) if found else "–"
