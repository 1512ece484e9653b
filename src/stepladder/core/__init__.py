"""The base of every other package: traces, requests, config, errors, registry, seeds, files and answer metrics."""
