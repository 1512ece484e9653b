"""Servers: search, agent, MCP."""
