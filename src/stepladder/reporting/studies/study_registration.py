"""Pre-registration: what a study is going to measure is written down before its first run.

In: a prepared study and its folder. Out: `registration.json` with the definition, its hash, the time and the version of
the code. Once a run has started, another definition is refused. Seeds may be added if the study says why (`amended`);
the amendment is kept, and shown with the results.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.masking import masked
from stepladder.core.version import __version__
from stepladder.pipeline.fingerprint import changes, flat, policy_content
from stepladder.pipeline.recipe import find_recipe, read_yaml
from stepladder.pipeline.run_folder import read_json_object
from stepladder.pipeline.session_info import commit_of, describe_process
from stepladder.reporting.studies.study_spec import Study

FILE = "registration.json"
#: Settings that change where and how fast a study runs, and its results only by rounding.
_NOT_DEFINING = ("device", "batch_size", "memory", "ray", "report_to")


@dataclass(frozen=True, slots=True)
class Amendment:
    """Seeds that were added after the first start."""

    why: str
    seeds_before: tuple[int, ...]
    seeds: tuple[int, ...]
    when: str
    #: Hash of the amended definition.
    sha256: str


@dataclass(frozen=True, slots=True)
class Registration:
    """What was written down."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    sha256: str
    registered: str
    stepladder: str
    commit: str | None
    definition: dict[str, Any]
    amendments: tuple[Amendment, ...] = ()


_REGISTRATION = TypeAdapter(Registration)


def definition(study: Study) -> dict[str, Any]:
    """Everything that defines a study, as plain data: with its recipe, without the reason of an amendment."""
    plain = study.model_dump(mode="json", exclude={"amended", "name", "recipe"})
    plain["seeds"] = list(study.seed_list)
    for newer in ("gates", "policy", "by_hops"):  # a study without them is defined as before there were any
        if not plain[newer]:
            plain.pop(newer)
    if study.policy is not None:
        plain["policy"] = policy_content(study.policy)
    plain["overrides"] = _defining(study.overrides)
    path = find_recipe(study.recipe)
    recipe = read_yaml(path)
    plain["recipe"] = {"name": path.stem, **_defining(recipe if isinstance(recipe, Mapping) else {})}
    return dict(masked(plain))


def _defining(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name.partition(".")[0] not in _NOT_DEFINING}


def hash_of(defined: Mapping[str, Any]) -> str:
    """The hash of a definition, regardless of the order of its keys."""
    return sha256(json.dumps(defined, sort_keys=True).encode()).hexdigest()


def read_registration(folder: Path) -> Registration:
    """The registration of a study. Raises if there is none."""
    try:
        return _REGISTRATION.validate_python(read_json_object(folder / FILE))
    except FileNotFoundError as error:
        raise StepladderError(f"{folder} has no {FILE}: it is not the folder of a study") from error
    except ValidationError as error:
        raise StepladderError(f"{folder / FILE} is not a valid registration") from error


def register(study: Study, folder: Path) -> Registration:
    """Write the definition before the first run; later, check that it is still the same, or amended.

    Until a run has started, a changed definition takes the place of the earlier one.
    """
    now, path = definition(study), folder / FILE
    if not path.exists():
        if runs := sorted(each.parent.parent.name for each in folder.glob("seed-*/*/run.json")):
            raise StepladderError(
                f"{folder} holds runs ({runs[0]} ...) of a study that was not registered before they started: choose "
                "another --out, or move them away"
            )
        return _write(path, _new(now))
    before = read_registration(folder)
    if hash_of(now) == _latest_hash(before):
        return before
    if not _has_runs(folder):  # the first start failed: nothing was measured yet
        return _write(path, _new(now))
    return _write(path, _amended(study, now, before, folder))


def registered(study: Study, folder: Path) -> Registration:
    """The registration of results that are only shown. The model that runs start from need not be on this machine."""
    before = read_registration(folder)
    now, known = (
        {name: value for name, value in each.items() if name != "policy"}
        for each in (definition(study.model_copy(update={"policy": None})), before.definition)
    )
    if {**known, "seeds": _seeds(before)} != now:
        raise StepladderError(f"{folder} is registered with another definition: {_listed_changes(known, now)}")
    return before


def _has_runs(folder: Path) -> bool:
    """Whether a run was started in the folder of a study, or its result is kept."""
    return any(any(folder.glob(pattern)) for pattern in ("seed-*/*/run.json", "seed-*/*.json"))


def _new(defined: dict[str, Any]) -> Registration:
    return Registration(hash_of(defined), _now(), __version__, commit_of(describe_process()), defined)


def _amended(study: Study, now: dict[str, Any], before: Registration, folder: Path) -> Registration:
    """The registration with added seeds. Any other change is an error that names it."""
    known = {**before.definition, "seeds": _seeds(before)}
    only_seeds = {**known, "seeds": None} == {**now, "seeds": None}
    where = f"{folder} is registered with another definition: {_listed_changes(known, now)}."
    if not only_seeds or not set(known["seeds"]) < set(now["seeds"]):
        raise StepladderError(
            f"{where} What is measured is fixed before the first run: undo the change, or choose another --out"
        )
    if study.amended is None or study.amended in [each.why for each in before.amendments]:
        raise StepladderError(
            f"{where} To add seeds, say why in the file of the study (`amended: <why>`); it is shown with the results"
        )
    added = Amendment(study.amended, tuple(known["seeds"]), tuple(now["seeds"]), _now(), hash_of(now))
    return Registration(
        before.sha256,
        before.registered,
        before.stepladder,
        before.commit,
        before.definition,
        (*before.amendments, added),
    )


def _listed_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    found = changes(*(dict(flat("", each)) for each in (before, now)))
    return "; ".join(each.removeprefix(".") for each in found)


def _seeds(registration: Registration) -> list[int]:
    amendments = registration.amendments
    return list(amendments[-1].seeds if amendments else registration.definition["seeds"])


def _latest_hash(registration: Registration) -> str:
    return registration.amendments[-1].sha256 if registration.amendments else registration.sha256


def _write(path: Path, registration: Registration) -> Registration:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, what="registration") as file:
        json.dump(asdict(registration), file, indent=2, ensure_ascii=False)
        file.write("\n")
    return registration


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
