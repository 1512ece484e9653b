"""Corpora: files of texts as passages."""
