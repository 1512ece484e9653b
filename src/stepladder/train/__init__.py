"""Training: from transcripts to weights, on transformers' own trainer."""
