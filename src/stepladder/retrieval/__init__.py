"""Retrievers find passages for queries."""
