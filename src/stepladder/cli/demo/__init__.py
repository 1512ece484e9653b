"""The command `demo`: its story, the size that fits the machine, and the studio beside it."""
