"""Retrievers: queries in, passages out."""

from stepladder.retrieval.base import Retriever, check_retriever

__all__ = ["Retriever", "check_retriever"]
