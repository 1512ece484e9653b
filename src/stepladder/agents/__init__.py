"""Agents: how a question and its steps are put to a model, and how its text is read back."""

from stepladder.agents.base import Agent, check_agent
from stepladder.agents.cot import CoT
from stepladder.agents.direct import Direct
from stepladder.agents.own import is_agent_file, load_agent
from stepladder.agents.prorag import ProRAG, ProRAGBrief
from stepladder.agents.rag import RAG
from stepladder.agents.react import ReAct, ReActBrief
from stepladder.agents.reasonrag import ReasonRAG, ReasonRAGBrief
from stepladder.agents.research import ReSearch, ReSearchBrief
from stepladder.agents.search_o1 import SearchO1, SearchO1Brief
from stepladder.agents.search_r1 import SearchR1, SearchR1Brief
from stepladder.core.errors import unknown_name
from stepladder.core.io.files import expand_path

AGENTS: dict[str, type[Agent]] = {
    agent.name: agent
    for agent in (
        CoT,
        Direct,
        ProRAG,
        ProRAGBrief,
        RAG,
        ReAct,
        ReActBrief,
        ReasonRAG,
        ReasonRAGBrief,
        ReSearch,
        ReSearchBrief,
        SearchO1,
        SearchO1Brief,
        SearchR1,
        SearchR1Brief,
    )
}

__all__ = ["AGENTS", "Agent", "check_agent", "is_agent_file", "make_agent"]


def make_agent(name: str) -> Agent:
    """The agent of that name, or the one in a Python file (`my_agent.py`)."""
    if is_agent_file(name):
        return load_agent(expand_path(name))
    if name not in AGENTS:
        raise unknown_name("agent", name, AGENTS)
    return AGENTS[name]()
