"""What the studio knows about the files of runs, kept up to date while they are written, in bounded memory.

appended_file.py  the new lines of a file that grows
curve_file.py     learning curves: every column of a metrics log, downsampled
tree_index.py     search trees: where each is in its file, and what can be filtered by
run_state.py      one run: its state, stages, scores, alarms and cost
run_watch.py      all runs, and what has changed
"""
