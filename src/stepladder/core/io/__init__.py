"""I/O: atomic files, JSON lines, trace records, retry backoff and auth tokens."""
