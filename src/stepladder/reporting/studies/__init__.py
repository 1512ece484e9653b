"""Studies: a recipe run in several variants (arms) with several seeds, defined by a YAML file.

study_spec.py          the definition of a study, and where the built-in ones are
study_arms.py          the arms as recipes: what they share, and whether they fit the study
study_registration.py  what was written down before the first run
study_runner.py        runs a study or other commands, several jobs in parallel; resumes what was interrupted
jobs/                  the jobs in processes of their own
study_run_result.py    the number of one run and what it consumed, which may be kept without the run
study_results.py       a number per arm and seed, and paired differences
study_ledger.py        labels, judge calls, tokens and seconds of each arm
study_statistics.py    intervals and tests over seeds, power
study_verdict.py       the answers, one sentence per contrast
study_json.py          the results as plain data, with how they came about
study_report.py        tables, study.json and the plot
study_power.py         how many seeds a study needs, from a pilot
"""

from stepladder.reporting.studies.study_spec import Study, built_in_studies, find_study

__all__ = ["Study", "built_in_studies", "find_study"]
