"""What the workers of a Ray cluster do for a run: play questions, score steps, encode passages."""
