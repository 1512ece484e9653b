"""Preference pairs from search trees."""
