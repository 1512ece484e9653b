"""Reading and writing: atomic files, JSON lines, trace records, request bodies, retries and tokens."""
