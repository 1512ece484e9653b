"""Direct preference optimization on pairs of steps."""
