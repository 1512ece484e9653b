"""The learning curves of runs.

In: a run. Out: the curves of each stage that has any, as JSON-compatible data. The files that were used last are kept,
so that only what is new in them is read.
"""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.pipeline.run_folder import RunFolder
from stepladder.reporting.report.training_curves import CURVES
from stepladder.serve.studio.watch.curve_file import CurveFile

#: Files that are kept.
_KEPT = 32


class CurveLibrary:
    """The curves of all runs. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files: OrderedDict[Path, tuple[CurveFile, int]] = OrderedDict()

    def changed(self, folder: Path, seen: dict[str, int]) -> Iterator[dict[str, Any]]:
        """The curves of a run that have changed. `seen`: what a page has, by stage, which is updated."""
        try:
            stages = RunFolder(folder).recipe().stages
        except (StepladderError, OSError):  # damaged, which its state says, or replaced at this moment
            return
        for stage in stages:
            path = folder / stage.name / CURVES
            if not path.is_file():
                continue
            with self._lock:
                file, version = self._files.pop(path) if path in self._files else (CurveFile(path), 0)
                version += file.update()
                self._files[path] = file, version
                while len(self._files) > _KEPT:
                    self._files.popitem(last=False)
                if seen.get(stage.name) == version:
                    continue
                seen[stage.name] = version
                data = {"stage": stage.name, "kind": stage.kind, **file.plain(stage.settings)}
            yield data
