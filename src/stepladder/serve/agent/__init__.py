"""A trained agent for other programs: as a chat model over HTTP (OpenAI's API), and as a tool (MCP)."""
