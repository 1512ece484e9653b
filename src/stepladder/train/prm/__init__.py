"""Training a process reward model."""
