"""Rejection-sampling fine-tuning."""
