"""How good a process reward model is."""
