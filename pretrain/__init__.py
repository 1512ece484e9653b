"""How nano was made: its documents, its tokenizer, its training, and the probe that says it can still learn."""
