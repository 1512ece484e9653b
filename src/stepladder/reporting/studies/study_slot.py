"""A slot: the minutes for which a machine is there. What cannot be finished in it is not begun.

In: the minutes, and how long earlier runs of the study took. Out: whether a job still fits. The shared stages of a seed
are begun only if its arms fit as well, behind those of the seeds that have been begun: arms of one seed should start
from the same weights, and the next slot may be on another machine, to which only results are carried.
"""

import math
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from stepladder.reporting.studies.jobs.study_job import Job
from stepladder.reporting.studies.study_run_result import RunReader
from stepladder.reporting.studies.study_spec import SHARED, Study

#: What a run may take longer than earlier ones.
_RESERVE = 1.1


class Slot:
    """The time that is left for a study."""

    def __init__(self, minutes: float, study: Study, folder: Path, jobs: int) -> None:
        """`jobs`: number of parallel runs. Finished runs in the folder tell how long one takes."""
        self.minutes, self.ends = minutes, time.monotonic() + 60 * minutes
        self._arms, self._jobs = tuple(study.arms), jobs
        #: Seconds of finished runs by arm.
        self._seconds: dict[str, list[float]] = defaultdict(list)
        #: Folders of arms to be run of seeds whose shared stages have been begun.
        self._pending: set[Path] = set()
        reader = RunReader(study, folder)
        for seed in study.seed_list:
            for arm in study.arms:
                if not isinstance(run := reader.read(seed, arm), str):
                    self._seconds[arm].append(run.seconds)
                    self._seconds[SHARED].append(run.shared_seconds)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.ends - time.monotonic()

    def began(self, job: Job) -> None:
        """A run has been started."""
        if job.folder.name == SHARED:
            arms = {job.folder.with_name(arm) for arm in self._arms}
            self._pending |= {arm for arm in arms if not arm.with_name(f"{arm.name}.json").exists()}

    def failed(self, job: Job) -> None:
        """A run has failed: of shared stages, its arms will not be run."""
        if job.folder.name == SHARED:
            self._pending -= {job.folder.with_name(arm) for arm in self._arms}
        self._pending.discard(job.folder)

    def took(self, job: Job, seconds: float) -> None:
        """A run has finished."""
        self._seconds[job.folder.name].append(seconds)
        self._pending.discard(job.folder)

    def fits(self, job: Job) -> bool:
        """Whether a job can be finished; of shared stages, whether the arms behind them can be, too."""
        needed = self._expected(job.folder.name)
        if job.folder.name == SHARED:
            rounds = math.ceil((len(self._pending) + len(self._arms)) / self._jobs)
            needed += rounds * max(map(self._expected, self._arms))
        return needed * _RESERVE <= self.left

    def _expected(self, name: str) -> float:
        """Seconds of the shared stages or of an arm; of an arm that was never finished those of the others."""
        known = self._seconds.get(name)
        if not known and name != SHARED:
            known = [seconds for arm in self._arms for seconds in self._seconds.get(arm, ())]
        return fmean(known) if known else 0.0
