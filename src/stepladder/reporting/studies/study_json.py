"""The results of a study as plain data for `study.json`: numbers, verdicts, ledgers, and how they came about.

In: `StudyResults`. Out: JSON-compatible data. `--power` of another study reads `arms.*.by_seed` and `estimand`.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple
from typing import Any

from stepladder.evaluation.statistics import Interval
from stepladder.pipeline.session_info import commit_of, describe_process, hardware_of
from stepladder.reporting.studies.study_results import StudyResults, curve_differences, method_interval
from stepladder.reporting.studies.study_statistics import MIN_SEEDS
from stepladder.reporting.studies.study_verdict import breaches, verdicts

#: The fields of a point of a learning curve.
_CURVE_KEYS = ("update", "mean", "low", "high", "runs")


def plain_results(results: StudyResults) -> dict[str, Any]:
    """The results as JSON-compatible data."""
    study, answers, registration = results.study, verdicts(results), results.registration
    return {
        "study": study.name,
        "question": study.question,
        "estimand": str(study.estimand),
        "baseline": study.baseline,
        "seeds": list(study.seed_list),
        "unfinished": [asdict(each) for each in results.unfinished],
        "registration": None
        if registration is None
        else {name: value for name, value in asdict(registration).items() if name != "definition"},
        "budget": None if study.budget is None else study.budget.model_dump(mode="json", exclude_none=True),
        "gates": {
            name: {"expected": str(study.gates[name]), "by_seed": _by_seed(values)}
            for name, values in results.gates.items()
        },
        "budget_breaches": [str(each) for each in breaches(results)],
        "start": {"by_seed": _by_seed(results.start), **_interval(results.start)},
        "shared": None if results.shared is None else results.shared.plain(),
        "arms": {
            arm.name: {
                **_interval(arm.values),
                "by_seed": _by_seed(arm.values),
                "ledger": arm.ledger.plain(),
                "ledger_by_seed": {str(seed): each.plain() for seed, each in arm.ledgers.items()},
                "total_by_seed": {str(seed): each.plain() for seed, each in arm.totals.items()},
                **({"by_hops": arm.by_hops} if arm.by_hops else {}),
                "curve": [dict(zip(_CURVE_KEYS, astuple(point), strict=True)) for point in arm.curve],
            }
            for arm in results.arms
        },
        "contrasts": {
            each.name: {
                "first": each.first,
                "second": each.second,
                **_interval(each.differences),
                "differences": _by_seed(each.differences),
                "p": each.p,
                "p_holm": each.p_holm,
                "verdict": answers[each.name],
            }
            for each in results.contrasts
        },
        "over_curves": {
            pair: {**_interval(found), "differences": _by_seed(found)}
            for pair, found in curve_differences(results).items()
        },
        "provenance": provenance(results),
    }


def provenance(results: StudyResults) -> dict[str, Any]:
    """Command, commit, versions and hardware of this process and of all runs, and the seconds of all runs."""
    here = describe_process()
    runs = {name: _provenance_of(sessions) for name, sessions in results.sessions.items()}
    return {
        "command": shlex.join(here["command"]),
        "commit": commit_of(here),
        "reported": here["started"],
        "versions": here["versions"],
        "platform": here["platform"],
        "hardware": _distinct(hardware for run in runs.values() for hardware in run["hardware"]),
        "seconds": round(results.seconds, 1),
        "runs": runs,
    }


def codes_of(results: StudyResults) -> list[str]:
    """The versions of the code that the runs were made with."""
    return _distinct(
        f"Stepladder {session.get('versions', {}).get('stepladder')}, commit {commit_of(session) or 'not known'}"
        for sessions in results.sessions.values()
        for session in sessions
    )


def _provenance_of(sessions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How a run came about; each list has one entry, unless the run was resumed by another version or elsewhere."""
    listed = list(sessions)
    versions = {json.dumps(each.get("versions"), sort_keys=True): each.get("versions") for each in listed}
    return {
        "commits": _distinct(commit_of(each) or "not known" for each in listed),
        "versions": list(versions.values()),
        "hardware": _distinct(map(hardware_of, listed)),
        "started": [each.get("started") for each in listed],
    }


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _by_seed(values: Mapping[int, float]) -> dict[str, float]:
    return {str(seed): value for seed, value in values.items()}


def _interval(values: Mapping[int, float]) -> dict[str, Any]:
    """The mean with its interval; of too few seeds, why there is none."""
    found: Interval | None = method_interval(list(values.values()))
    if found is not None:
        return asdict(found)
    reason = f"{len(values)} seeds; an interval needs at least {MIN_SEEDS}"
    return {"mean": None, "low": None, "high": None, "reason": reason}
