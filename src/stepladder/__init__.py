"""Stepladder: train language models to answer hard questions by searching, one graded step at a time."""

__version__ = "0.1.0"
