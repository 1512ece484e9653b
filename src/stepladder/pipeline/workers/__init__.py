"""What the workers of a Ray cluster do for a run: generate episodes, score steps, encode passages."""
