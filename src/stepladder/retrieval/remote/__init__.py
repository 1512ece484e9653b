"""Search over HTTP."""
