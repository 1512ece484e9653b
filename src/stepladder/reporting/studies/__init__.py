"""Studies: a question about methods, answered by runs with several seeds. One file an experiment.

base.py      what a study is
runner.py    carries one out, several runs at a time; what was cut goes on
job.py       one of these runs, in a process of its own
results.py   what came of it: means with intervals over seeds, and paired differences
report.py    for its readers: tables, a file, a picture
plot.py      means with bands
"""

from stepladder.core.errors import unknown_name
from stepladder.reporting.studies import data_efficiency, rl_modes
from stepladder.reporting.studies.study_spec import Study

STUDIES: dict[str, Study] = {study.name: study for study in (rl_modes.STUDY, data_efficiency.STUDY)}


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    return STUDIES[name]
