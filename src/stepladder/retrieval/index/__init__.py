"""Indexes on disk, one module per kind."""
