"""Retrievers find passages for queries."""

from stepladder.retrieval.base import Retriever, check_retriever

__all__ = ["Retriever", "check_retriever"]
