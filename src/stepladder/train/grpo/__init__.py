"""GRPO with step-level advantages."""
