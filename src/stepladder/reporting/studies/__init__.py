"""Studies: a recipe run in several variants (arms) with several seeds. One module per study.

study_spec.py     the definition of a study
study_runner.py   runs a study, several runs in parallel; an interrupted study is resumed
study_job.py      one run of a study, in its own process
study_results.py  means with intervals over seeds, and paired differences
study_report.py   tables, study.json and the plot
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
