"""Engines write text: transformers in process, any OpenAI-compatible server, the gold oracle, a script."""
