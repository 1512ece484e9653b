"""A language model as a judge of steps."""
