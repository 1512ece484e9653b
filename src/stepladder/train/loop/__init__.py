"""Shared by all trainers."""
