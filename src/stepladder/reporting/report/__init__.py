"""The report of a run: one HTML file that opens from disk and needs nothing else, no network and no other file.

In: the folder of a run, finished or not. Out: the page. Nothing is computed anew that a stage has measured, and no
model is loaded.

gather.py        what lies in the folder
scores.py        evaluations, their differences, F1 by searches needed
curves.py        learning curves; charts.py draws them
reward.py        what was found out about the reward model
trees.py         search trees to walk through
transcripts.py   the same question before and after; steps.py: a step as both show it
alarms.py, cost.py, origin.py
page.py          puts these into templates/
"""

from stepladder.reporting.report.report_page import write_report

__all__ = ["write_report"]
