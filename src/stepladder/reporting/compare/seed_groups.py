"""Which sources are one line of a comparison, and what it is called.

In: sources. Out: `Group`s. Sources of one label are one line; of those without a label, those that differ by their seed
alone. Runs that have the seed in common as well stay apart: they are compared for another reason, such as two versions
of the code. A line without a label is called by the shortest name that tells it from the others.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepladder.reporting.compare.evaluations import Source


@dataclass(frozen=True, slots=True)
class Group:
    """A line, before anything is computed."""

    label: str
    sources: tuple[Source, ...]


def lines_of(sources: Sequence[Source]) -> list[Group]:
    """One group a line, in the order in which their first sources were named."""
    alike: dict[str, list[Source]] = defaultdict(list)
    for source in sources:
        if source.label is None:
            alike[source.alike].append(source)
    groups: dict[tuple[str, ...], list[Source]] = defaultdict(list)
    for source in sources:
        if source.label is not None:
            groups["label", source.label].append(source)
        elif _differ_by_seed(alike[source.alike]):
            groups["alike", source.alike].append(source)
        else:
            groups["place", source.place].append(source)
    found = [tuple(group) for group in groups.values()]
    return [Group(label, group) for label, group in zip(_labels(found), found, strict=True)]


def _differ_by_seed(sources: Sequence[Source]) -> bool:
    seeds = [source.seed for source in sources]
    return None not in seeds and len(set(seeds)) == len(seeds)


# --- names ------------------------------------------------------------------------------------------------------

#: What is added to a name that is not enough, in the order in which it is tried.
_ADDED = (("stage",), ("agent",), ("seeds",), ("stage", "agent"), ("stage", "seeds"), ("agent", "seeds"))


def _labels(groups: Sequence[tuple[Source, ...]]) -> list[str]:
    found = [group[0].label or group[0].name for group in groups]
    for name in set(found):
        same = [place for place, each in enumerate(found) if each == name]
        unnamed = [place for place in same if groups[place][0].label is None]
        if len(same) > 1:
            for place, label in zip(unnamed, _told_apart(name, [groups[each] for each in unnamed]), strict=True):
                found[place] = label
    return [
        label if found.count(label) == 1 or group[0].label else group[0].place for label, group in zip(found, groups)
    ]


def _told_apart(name: str, groups: Sequence[tuple[Source, ...]]) -> list[str]:
    """Names of lines whose recipes are called the same: with a stage, an agent or seeds; else by their folders."""
    for fields in _ADDED:
        names = [" ".join([name, *(_field(group, field) for field in fields)]) for group in groups]
        if len(set(names)) == len(names) and all(_field(group, field) for group in groups for field in fields):
            return names
    folders = [Path(group[0].place.rpartition(":")[0] or group[0].place).parts for group in groups]
    for length in range(1, max(map(len, folders)) + 1):
        names = ["/".join(parts[-length:]) for parts in folders]
        if len(set(names)) == len(names):
            return names
    return [group[0].place for group in groups]


def _field(group: tuple[Source, ...], field: str) -> str:
    """What all sources of a line have in common; nothing where they do not agree."""
    if field == "seeds":
        known = [str(source.seed) for source in group if source.seed is not None]
        return f"seed{'s' if len(known) > 1 else ''} {', '.join(known)}" if known else ""
    values = {getattr(source, field) for source in group}
    return str(values.pop()) if len(values) == 1 else ""
