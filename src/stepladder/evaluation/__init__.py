"""Evaluation: scores, confidence intervals and significance tests."""
