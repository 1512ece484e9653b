"""The report of a run: one self-contained HTML file that needs no network.

In: a run folder, finished or not. Out: the page. It shows what the stages measured. No model is loaded and no user code
is run.

run_data.py         what is in the folder
scores.py           evaluations, paired differences, F1 by searches needed; evaluation of the process reward model
training_curves.py  learning curves, alarms of training monitors
tree_view.py        search trees
before_after.py     transcripts of the same questions before and after training
cost.py             time, tokens, searches and questions per stage
reproduction.py     commands, versions, data and recipe
report_page.py      renders all of them with templates/
"""

from stepladder.reporting.report.report_page import write_report

__all__ = ["write_report"]
