"""Grammars: what a policy may write in a step, for engines that enforce it token by token."""
