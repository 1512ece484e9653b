"""I/O: atomic files, JSON lines, trace records, request bodies, retry backoff and auth tokens."""
