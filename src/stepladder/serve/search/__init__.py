"""The search server, with Search-R1's protocol."""
