"""Evaluation of process reward models."""
