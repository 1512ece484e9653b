"""Judges: who says which of several steps is better."""
