"""Groups evaluations into the arms of a comparison, and names the arms.

In: evaluations. Out: `SeedGroup`s. Evaluations with the same label form one arm; so do unlabeled ones that differ only
in their seed. Runs with the same configuration and the same seed stay separate: they may be, for example, two versions
of the code. An unlabeled arm gets the shortest name that is unique.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from stepladder.reporting.compare.evaluations import EvaluationSource
from stepladder.reporting.eval_table import UPPER_BOUND


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """The evaluations of one arm."""

    label: str
    sources: tuple[EvaluationSource, ...]


def group_by_seed(sources: Sequence[EvaluationSource]) -> list[SeedGroup]:
    """One group per arm, in the order of their first evaluations."""
    same_config: dict[str, list[EvaluationSource]] = defaultdict(list)
    for source in sources:
        if source.label is None:
            same_config[source.config_key].append(source)
    groups: dict[tuple[str, ...], list[EvaluationSource]] = defaultdict(list)
    for source in sources:
        if source.label is not None:
            groups["label", source.label].append(source)
        elif _differ_by_seed(same_config[source.config_key]):
            groups["config", source.config_key].append(source)
        else:
            groups["path", source.path].append(source)
    found = [tuple(group) for group in groups.values()]
    return [
        SeedGroup(f"{label}{UPPER_BOUND if group[0].upper_bound else ''}", group)
        for label, group in zip(_labels(found), found, strict=True)
    ]


def _differ_by_seed(sources: Sequence[EvaluationSource]) -> bool:
    seeds = [source.seed for source in sources]
    return None not in seeds and len(set(seeds)) == len(seeds)


# --- names ------------------------------------------------------------------------------------------------------


def _labels(groups: Sequence[tuple[EvaluationSource, ...]]) -> list[str]:
    found = [group[0].label or group[0].name for group in groups]
    for name in set(found):
        same = [index for index, each in enumerate(found) if each == name]
        unlabeled = [index for index in same if groups[index][0].label is None]
        if len(same) > 1:
            for index, label in zip(unlabeled, _unique_names(name, [groups[each] for each in unlabeled]), strict=True):
                found[index] = label
    return [
        label if found.count(label) == 1 or group[0].label else group[0].path for label, group in zip(found, groups)
    ]


def _unique_names(name: str, groups: Sequence[tuple[EvaluationSource, ...]]) -> list[str]:
    """Unique names of arms whose recipes have the same name: with stage, agent or seeds, else by folder."""
    for count in (1, 2):
        for fields in combinations(("stage", "agent", "seeds"), count):
            added = [[_field(group, field) for field in fields] for group in groups]
            names = [" ".join([name, *each]) for each in added]
            if len(set(names)) == len(names) and all(map(all, added)):
                return names
    folders = [Path(group[0].path.rpartition(":")[0] or group[0].path).parts for group in groups]
    for length in range(1, max(map(len, folders)) + 1):
        names = ["/".join(parts[-length:]) for parts in folders]
        if len(set(names)) == len(names):
            return names
    return [group[0].path for group in groups]


def _field(group: tuple[EvaluationSource, ...], field: str) -> str:
    """The value that all evaluations of an arm share; empty if they differ."""
    if field == "seeds":
        known = [str(source.seed) for source in group if source.seed is not None]
        return f"seed{'s' if len(known) > 1 else ''} {', '.join(known)}" if known else ""
    values = {getattr(source, field) for source in group}
    return str(values.pop()) if len(values) == 1 else ""
