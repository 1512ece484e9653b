"""Algorithms that explore a question: episodes, tree search, guided inference."""
