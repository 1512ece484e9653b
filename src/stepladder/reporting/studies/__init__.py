"""Studies: a recipe run in several variants (arms) with several seeds.

study_spec.py     the definition of a study
grpo_studies.py   the studies
study_runner.py   runs a study or other commands, several jobs in parallel; resumes what was interrupted
study_job.py      one job in its own process
study_results.py  means with intervals over seeds, and paired differences
study_report.py   tables, study.json and the plot
"""

from stepladder.core.errors import unknown_name
from stepladder.reporting.studies.grpo_studies import DATA_EFFICIENCY, RL_MODES
from stepladder.reporting.studies.study_spec import Study

STUDIES: dict[str, Study] = {study.name: study for study in (RL_MODES, DATA_EFFICIENCY)}


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    return STUDIES[name]
