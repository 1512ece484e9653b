"""Agents: how a question and its steps are put to a model, and how its text is read back."""

from stepladder.agents.base import Agent, check_agent
from stepladder.agents.cot import CoT
from stepladder.agents.direct import Direct
from stepladder.agents.prorag import ProRAG, ProRAGBrief
from stepladder.agents.rag import RAG
from stepladder.agents.reasonrag import ReasonRAG, ReasonRAGBrief
from stepladder.errors import unknown_name

AGENTS: dict[str, type[Agent]] = {
    agent.name: agent for agent in (CoT, Direct, ProRAG, ProRAGBrief, RAG, ReasonRAG, ReasonRAGBrief)
}

__all__ = ["AGENTS", "Agent", "check_agent", "make_agent"]


def make_agent(name: str) -> Agent:
    """The agent of that name."""
    if name not in AGENTS:
        raise unknown_name("agent", name, AGENTS)
    return AGENTS[name]()
