"""Ways to walk through the states of a question."""
