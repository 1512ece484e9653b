"""The in-process engine on `transformers`: batching, prefix cache, sampling."""
