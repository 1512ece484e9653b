"""The gates of a study: what the shared stages must have reached before an arm is begun.

In: the shared stages of a seed. Out: the number of each gate, kept as `seed-N/gates.json`; or an error that names the
gates that are not passed. A comparison of methods that start from a policy which cannot improve, or with a reward model
that knows nothing, would only cost time. Gates are part of the definition: they are not moved after a look at results.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.pipeline.run_folder import read_json_object
from stepladder.reporting.report.run_data import RunData, load_run
from stepladder.reporting.studies.study_run_result import number_in, numbers_in, run_folder
from stepladder.reporting.studies.study_spec import SHARED, Gate, Study

FILE = "gates.json"


def check_gates(study: Study, folder: Path, seed: int) -> None:
    """Measure the gates of a seed whose shared stages are done, keep the numbers, and raise if one is not passed."""
    if not study.gates:
        return
    run = load_run(run_folder(folder, seed, SHARED))
    found = {name: _measure(name, gate, run) for name, gate in study.gates.items()}
    with atomic_file(folder / f"seed-{seed}" / FILE) as file:
        file.write(json.dumps(found, indent=1) + "\n")
    expect_passed(study, folder)


def expect_passed(study: Study, folder: Path) -> None:
    """Raise if a gate that was measured is not passed."""
    closed = [
        f"{name} is {value:.3f} with seed {seed}, expected {study.gates[name]}"
        for seed in study.seed_list
        for name, value in measured_gates(study, folder, seed).items()
        if not study.gates[name].passed(value)
    ]
    if closed:
        raise StepladderError(
            f"study {study.name}: {'; '.join(closed)}. No further arm is begun: change the recipe, and start with "
            "another --out, where the changed study is registered"
        )


def measured_gates(study: Study, folder: Path, seed: int) -> dict[str, float]:
    """The numbers of a seed's gates; empty before its shared stages are done."""
    path = folder / f"seed-{seed}" / FILE
    found: Mapping[str, float] = read_json_object(path) if study.gates and path.is_file() else {}
    return {name: float(value) for name, value in found.items() if name in study.gates}


def _measure(name: str, gate: Gate, run: RunData) -> float:
    record = next(each for each in run.report.stages if each.name == gate.stage)
    values = [number_in(record.summary, metric) for metric in gate.metrics]
    if None in values:
        raise StepladderError(
            f"{run.folder}: gate {name}: the stage {gate.stage} has no number '{gate.metric}'. It has: "
            f"{', '.join(numbers_in(record))}"
        )
    first, *others = (value for value in values if value is not None)
    return first - math.fsum(others)
