"""Studies: a recipe run in several variants (arms) with several seeds.

study_spec.py     the definition of a study, and the built-in studies
study_runner.py   runs a study or other commands, several jobs in parallel; resumes what was interrupted
study_job.py      one job in its own process
study_results.py  means with intervals over seeds, and paired differences
study_report.py   tables, study.json and the plot
"""

from stepladder.reporting.studies.study_spec import STUDIES, find_study

__all__ = ["STUDIES", "find_study"]
