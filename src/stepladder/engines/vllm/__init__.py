"""vLLM in this process: the engine, its settings, and how its tokens are read."""
