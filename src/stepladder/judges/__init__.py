"""Judges, which compare steps from one state, and step scorers, which grade the steps of a trajectory."""
