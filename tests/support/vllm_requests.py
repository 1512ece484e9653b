"""Prompts for a vLLM engine, and what it generates for them."""

from typing import Any

from stepladder.core.requests import Generate, Generation
from stepladder.core.trace import Author, Segment


def prompt(text: str, **settings: Any) -> Generate:
    return Generate((Segment(Author.PROMPT, text),), **settings)


def written(engine: Any, *requests: Generate) -> list[Generation]:
    replies = engine.generate(requests)
    assert all(isinstance(reply, Generation) for reply in replies), replies
    return list(replies)
