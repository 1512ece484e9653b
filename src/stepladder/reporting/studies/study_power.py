"""How many seeds a study needs, from the paired differences of a pilot.

In: a study with a smallest effect, and the results of a pilot (`study.json`, or the folder with it), or a standard
deviation for all contrasts. Out: for each contrast the standard deviation of the pilot's differences, the seeds needed
and the power of the planned ones, at the level of a single test and at Holm's strictest level for all contrasts.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from stepladder.core.errors import StepladderError, unknown_name
from stepladder.evaluation.statistics import Interval
from stepladder.pipeline.run_folder import read_json_object
from stepladder.reporting.studies.study_report import RESULTS, result_table, say_line
from stepladder.reporting.studies.study_spec import Study
from stepladder.reporting.studies.study_statistics import ALPHA, MIN_SEEDS, POWER, power, seeds_needed, spread


@dataclass(frozen=True, slots=True)
class ContrastPower:
    """The plan for one contrast."""

    contrast: str
    #: None: the standard deviation is given.
    pilot_seeds: int | None
    #: Standard deviation of the pilot's paired differences, with its 95% interval.
    deviation: Interval
    seeds_needed: int
    seeds_needed_holm: int
    power: float
    power_holm: float


@dataclass(frozen=True, slots=True)
class PowerPlan:
    """The plan of a study."""

    study: str
    estimand: str
    pilot: str
    #: The estimand of the pilot, as far as it says so.
    pilot_estimand: str | None
    smallest_effect: float
    planned_seeds: int
    #: Number of contrasts of the study, for Holm's correction.
    count: int
    contrasts: tuple[ContrastPower, ...]
    #: Contrasts with an arm that the pilot does not have.
    not_in_pilot: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON-compatible data."""
        return {**asdict(self), "alpha": ALPHA, "wanted_power": POWER}


def plan_power(study: Study, pilot: Path) -> PowerPlan:
    """The seeds that each contrast needs."""
    if study.smallest_effect is None:
        raise StepladderError(
            f"study {study.name}: --power needs the smallest difference that matters: add smallest_effect to the file"
        )
    if (given := _given_deviation(pilot)) is not None:
        exact = Interval(given, given, given)
        contrasts = tuple(_contrast_power(study, name, None, exact) for name in study.contrasts)
        return _plan(study, str(pilot), None, contrasts, ())
    path = pilot / RESULTS if pilot.is_dir() else pilot
    if not path.is_file():
        raise StepladderError(
            f"--power: {path} does not exist; expected the folder of a finished study, its {RESULTS}, or a standard "
            "deviation such as 0.06"
        )
    data = read_json_object(path)
    values = _values_of(data, path)
    known = [name for name, pair in study.contrasts.items() if set(pair) <= values.keys()]
    if not known:
        arm = next(iter(study.contrasts.values()))[0]
        raise StepladderError(f"--power: {path} has no contrast of the study: {unknown_name('arm', arm, values)}")
    contrasts = tuple(_from_pilot(study, name, values, path) for name in known)
    return _plan(
        study, str(path), data.get("estimand"), contrasts, [each for each in study.contrasts if each not in known]
    )


def _given_deviation(pilot: Path) -> float | None:
    """The standard deviation, if it is not a file."""
    try:
        given = float(str(pilot))
    except ValueError:
        return None
    if not 0 < given < 1 or pilot.exists():
        return None
    return given


def _plan(
    study: Study,
    pilot: str,
    estimand: str | None,
    contrasts: tuple[ContrastPower, ...],
    missing: Iterable[str],
) -> PowerPlan:
    effect, counts = study.smallest_effect or 0.0, (len(study.seed_list), len(study.contrasts))
    return PowerPlan(study.name, str(study.estimand), pilot, estimand, effect, *counts, contrasts, tuple(missing))


def _values_of(data: dict[str, Any], path: Path) -> dict[str, dict[str, float]]:
    try:
        return {arm: dict(each["by_seed"]) for arm, each in data["arms"].items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StepladderError(f"--power: {path} is not the results of a study: it has no arms with by_seed") from error


def _from_pilot(study: Study, name: str, values: dict[str, dict[str, float]], path: Path) -> ContrastPower:
    first, second = study.contrasts[name]
    common = [seed for seed in values[first] if seed in values[second]]
    differences = [values[first][seed] - values[second][seed] for seed in common]
    if len(differences) < 2:
        raise StepladderError(
            f"--power: {path} has {len(differences)} finished seeds of {name}; two or more are needed"
        )
    deviation = spread(differences)
    if deviation.mean < 1e-12:
        raise StepladderError(f"--power: {path}: the difference {name} is the same in all seeds; take a larger pilot")
    return _contrast_power(study, name, len(differences), deviation)


def _contrast_power(study: Study, name: str, seeds: int | None, deviation: Interval) -> ContrastPower:
    effect, level, planned = study.smallest_effect or 0.0, ALPHA / len(study.contrasts), len(study.seed_list)
    return ContrastPower(
        name,
        seeds,
        deviation,
        seeds_needed(effect, deviation.mean),
        seeds_needed(effect, deviation.mean, level),
        power(planned, effect, deviation.mean),
        power(planned, effect, deviation.mean, level),
    )


def print_power(console: Console, plan: PowerPlan) -> None:
    """Print the plan as a table."""
    say_line(console, f"{plan.study}: seeds for a difference of {plan.smallest_effect:g} in {plan.estimand}")
    if any(each.pilot_seeds is not None for each in plan.contrasts):
        say_line(console, f"pilot: {plan.pilot}")
    if plan.pilot_estimand is not None and plan.pilot_estimand != plan.estimand:
        say_line(console, f"the pilot measured something else: {plan.pilot_estimand}")
    holm = ("seeds (Holm)", "power (Holm)") if plan.count > 1 else ()
    table = result_table("contrast", "SD", "95% CI of SD", "seeds", "power", *holm)
    for each in plan.contrasts:
        deviation = each.deviation
        strict = (f"{each.seeds_needed_holm:,}", f"{each.power_holm:.0%}") if holm else ()
        interval = "given" if each.pilot_seeds is None else f"{deviation.low:.3f} - {deviation.high:.3f}"
        needed = (f"{each.seeds_needed:,}", f"{each.power:.0%}")
        table.add_row(each.contrast, f"{deviation.mean:.3f}", interval, *needed, *strict)
    console.print(table, highlight=False)
    counts = sorted({each.pilot_seeds for each in plan.contrasts if each.pilot_seeds is not None})
    pilot = f", {' and '.join(map(str, counts))} pilot seeds" if counts else ""
    say_line(console, f"SD: of the differences paired by seed{pilot}")
    say_line(
        console, f"seeds: for a power of {POWER:.0%}, two-sided paired t test, alpha {ALPHA:g}; {MIN_SEEDS} or more"
    )
    say_line(console, f"power: of the {plan.planned_seeds} planned seeds")
    if plan.count > 1:
        say_line(console, f"Holm: at alpha {ALPHA / plan.count:.2g}, the strictest level for {plan.count} contrasts")
    if plan.not_in_pilot:
        say_line(console, f"not in the pilot: {', '.join(plan.not_in_pilot)}")
