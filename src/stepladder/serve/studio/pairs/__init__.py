"""The preference pairs of a run, for the page that shows and marks them.

pair_index.py    where each pair is in its file, and what pairs are filtered by
pair_detail.py   one pair as the page shows it
pair_readers.py  which stages of the run train on the pairs, and whether they leave marked ones out
"""
