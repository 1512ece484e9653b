"""Serves a trained agent: as a chat model over HTTP (OpenAI's API), and as a tool (MCP)."""
