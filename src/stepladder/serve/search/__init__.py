"""The search server, which speaks the protocol of Search-R1."""
