"""Comparison of runs: one table and one page over evaluations of equal questions.

In: run folders and saved evaluations. Out: a `Compared`: a line a way to train, with intervals, paired differences to a
reference, what it costs to answer and what it cost to train; as text, as a page, as plain data. No model is loaded.

sources.py   what was named on the command line: which evaluation, of which recipe, agent and seed
lineage.py   what the evaluated policy was trained on: questions, tokens, minutes
lines.py     sources that differ by their seed alone become one line; the shortest names that tell lines apart
compared.py  the numbers; holm.py: p-values of several tests at once
text.py      the table on a terminal; page.py: the page, charts.py draws on it; plain.py: for other programs
"""

from stepladder.reporting.compare.compare_json import as_plain
from stepladder.reporting.compare.compare_page import write_page
from stepladder.reporting.compare.comparison import Compared, compare_lines
from stepladder.reporting.compare.evaluations import open_sources
from stepladder.reporting.compare.seed_groups import lines_of

__all__ = ["Compared", "as_plain", "compare_lines", "lines_of", "open_sources", "write_page"]
