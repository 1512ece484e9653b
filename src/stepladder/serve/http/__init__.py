"""Shared by all HTTP servers: the ASGI application, client timeouts, metrics, graceful shutdown."""
