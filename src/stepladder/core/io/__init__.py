"""I/O: atomic files, JSON lines, trace records, retry backoff, auth tokens, interrupts."""
