"""Agents: how a question and its steps are put to a model, and how its text is read back."""
