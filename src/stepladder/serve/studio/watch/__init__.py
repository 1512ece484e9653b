"""What the studio knows about the files of runs, kept up to date while they are written, in bounded memory.

appended_file.py  the new lines of a file that grows
curve_file.py     learning curves: every column of a metrics log, downsampled
curve_library.py  the curves of all runs
tree_index.py     search trees: where each is in its file, and what can be filtered by
tree_library.py   the trees of all runs
run_state.py      one run: its state, stages, scores, alarms and cost
run_memory.py     what is remembered of a run between two looks
run_watch.py      all runs, and what has changed
"""
